"""`--command-config`: a properties file as Kafka's own tools take it, read into the settings of Weir's connections."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gateway.config.problems import nearest
from gateway.files.java_properties import Property, properties_of
from gateway.files.path_faults import file_text
from gateway.migration import MigrationError
from gateway.proxy.tls.contexts import ClientTls
from gateway.whole_number import whole_number

KEYS: Final = (
    "security.protocol", "sasl.mechanism", "sasl.jaas.config", "ssl.truststore.type", "ssl.truststore.location",
    "ssl.keystore.type", "ssl.keystore.location", "ssl.endpoint.identification.algorithm", "client.id", "request.timeout.ms",
)  # fmt: skip
"""The keys that Weir understands. `command_line` explains them without the imports of this module."""

_PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_MODULES: Final = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}
_VALUE = r'"(?:[^"\\]|\\.)*"|\'(?:[^\'\\]|\\.)*\'|[^\s;"\'=]+'
_JAAS = re.compile(rf"\s*(?P<module>[\w.$]+)\s+(?P<flag>\w+)(?P<options>(?:\s+[\w.]+\s*=\s*(?:{_VALUE}))*)\s*;\s*")
_OPTION = re.compile(rf"\s+([\w.]+)\s*=\s*({_VALUE})")
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"}
_MAX_TIMEOUT_MS: Final = 3_600_000


@dataclass(frozen=True, slots=True)
class SaslLogin:
    """A user of PLAIN or SCRAM. The password is never shown."""

    mechanism: str
    username: str
    password: str

    def __repr__(self) -> str:
        return f"SaslLogin({self.mechanism}, {self.username})"


@dataclass(frozen=True, slots=True)
class ClientProperties:
    """The settings of a connection. `tls` and `sasl` are None if the security protocol has no such layer."""

    source: str
    tls: ClientTls | None = None
    sasl: SaslLogin | None = None
    client_id: str = "weir"
    request_timeout_ms: int = 10_000

    @property
    def security_protocol(self) -> str:
        return ("SASL_" if self.sasl else "") + ("SSL" if self.tls else "PLAINTEXT")


def read_properties(path: Path) -> ClientProperties:
    """Raises MigrationError without any password. Relative file names start at the working directory, as for Kafka's tools."""
    try:
        text = file_text(path)
    except OSError as error:
        raise MigrationError(
            f"--command-config {path}: can't be read: {error.strerror or error} — name a properties file of a Kafka client"
        ) from None
    except UnicodeDecodeError:
        raise MigrationError(f"--command-config {path}: is not UTF-8 text — name a properties file of a Kafka client") from None
    return parse_properties(text, str(path))


def parse_properties(text: str, source: str) -> ClientProperties:
    """Raises MigrationError."""
    try:
        properties = list(properties_of(text))
    except ValueError as error:
        raise MigrationError(f"{source}: {error} — correct it") from None
    values = {each.key: each.value for each in properties}
    if _is_for_kerberos(values):
        raise MigrationError(
            f"{source}: logs in by Kerberos (GSSAPI), which Weir itself can't use — name a file with a user of"
            f" {', '.join(_MODULES)}. The how-to page on Kerberos shows how to create one"
        )
    for each in properties:
        if each.key not in KEYS:
            raise _unknown(each, source)
    protocol = _one_of(values, "security.protocol", "PLAINTEXT", _PROTOCOLS, source)
    return ClientProperties(
        source,
        _tls(values, source) if protocol.endswith("SSL") else None,
        _sasl(values, source) if protocol.startswith("SASL_") else None,
        values.get("client.id") or "weir",
        _timeout(values, source),
    )


def _is_for_kerberos(values: Mapping[str, str]) -> bool:
    """True for a usual file with Kerberos. It has keys that Weir does not know, and to remove them would not help."""
    if "sasl.mechanism" in values:
        return values["sasl.mechanism"].strip().upper() == "GSSAPI"
    return any(key.startswith("sasl.kerberos.") for key in values)  # GSSAPI is Kafka's default


def _unknown(unknown: Property, source: str) -> MigrationError:
    similar = nearest(unknown.key, KEYS)
    hint = f"write {similar}, or remove it" if similar else "remove it"
    return MigrationError(
        f"{source}: {unknown.shown} is not a key that Weir understands — {hint}; the keys are {', '.join(KEYS)}"
    )


def _one_of(values: Mapping[str, str], key: str, default: str, allowed: tuple[str, ...], source: str) -> str:
    value = values.get(key, default).strip().upper()
    if value not in allowed:
        raise MigrationError(f"{source}: {key} is {values[key]!r}, which Weir can't use — write one of {', '.join(allowed)}")
    return value


def _timeout(values: Mapping[str, str], source: str) -> int:
    text = values.get("request.timeout.ms", "10000").strip()
    number = whole_number(text)
    if number is None or not 0 < number <= _MAX_TIMEOUT_MS:
        raise MigrationError(f"{source}: request.timeout.ms is {text[:40]!r} — write milliseconds, from 1 to {_MAX_TIMEOUT_MS}")
    return number


def _tls(values: Mapping[str, str], source: str) -> ClientTls:
    trusted = _pem_file(values, "truststore", source)
    own = _pem_file(values, "keystore", source)
    check = values.get("ssl.endpoint.identification.algorithm", "https").strip().lower()
    if check not in ("https", ""):
        raise MigrationError(
            f"{source}: ssl.endpoint.identification.algorithm is {check!r} — write https, or leave it empty to"
            " accept any host name"
        )
    return ClientTls(trusted, own, own, check == "https", "1.2")


def _pem_file(values: Mapping[str, str], store: str, source: str) -> Path | None:
    location, kind = values.get(f"ssl.{store}.location"), values.get(f"ssl.{store}.type", "JKS")
    if location is None:
        return None
    if kind.strip().upper() != "PEM":
        raise MigrationError(
            f"{source}: ssl.{store}.type is {kind}, and Weir reads PEM only — convert {location} with keytool and openssl."
            f" Name the new file in ssl.{store}.location, and add ssl.{store}.type=PEM"
        )
    return Path(location)


def _sasl(values: Mapping[str, str], source: str) -> SaslLogin:
    if "sasl.mechanism" not in values:
        raise MigrationError(f"{source}: has no sasl.mechanism, and Weir does not know Kafka's default, GSSAPI — write one of"
                        f" {', '.join(_MODULES)}")  # fmt: skip
    mechanism = _one_of(values, "sasl.mechanism", "", tuple(_MODULES), source)
    example = f'{_MODULES[mechanism]} required username="NAME" password="SECRET";'
    remedy = f"write sasl.jaas.config={example}"
    if "sasl.jaas.config" not in values:
        raise MigrationError(f"{source}: has no sasl.jaas.config, so there is no user for {mechanism} — {remedy}")
    found = _JAAS.fullmatch(values["sasl.jaas.config"])
    if found is None:
        raise MigrationError(f"{source}: sasl.jaas.config can't be read (its value is secret, so it is not shown) — {remedy}")
    if found["module"] != _MODULES[mechanism]:
        raise MigrationError(
            f"{source}: sasl.jaas.config names {found['module']}, which is not the module of {mechanism} — {remedy}"
        )
    options = {name: _unquoted(value) for name, value in _OPTION.findall(found["options"])}
    for name in ("username", "password"):
        if not options.get(name):
            raise MigrationError(f"{source}: sasl.jaas.config has no {name} — {remedy}")
    if unknown := sorted(options.keys() - {"username", "password"}):
        raise MigrationError(f"{source}: sasl.jaas.config has the option {unknown[0]}, unknown to Weir — remove it")
    return SaslLogin(mechanism, options["username"], options["password"])


def _unquoted(text: str) -> str:
    """A value as Java's StreamTokenizer reads it, without octal escapes."""
    if text[0] not in "\"'":
        return text
    return re.sub(r"\\(.)", lambda escape: _ESCAPES.get(escape[1], escape[1]), text[1:-1], flags=re.DOTALL)
