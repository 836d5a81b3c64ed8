"""Checks of the certificate files that a config names. They run after the text of the config has been validated."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from gateway.config.document import Document
from gateway.config.model import ListenerConfig, WeirConfig
from gateway.config.problems import KeyPath, Problem, key_path
from gateway.config.pydantic_errors import problem
from gateway.files.path_faults import READABLE, file_bytes, read_remedy
from gateway.proxy.tls.contexts import client_context, server_context

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

SOON = timedelta(days=14)
"""A certificate that expires within this time is worth a warning."""

_DER_START, _JAVA_KEYSTORE, _PKCS12_HINT = b"\x30", b"\xfe\xed\xfe\xed", (".p12", ".pfx")


class _UnusableError(Exception):
    def __init__(self, message: str, remedy: str) -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy


_Use = tuple[KeyPath, dict[str, str], Callable[[], object]]
"""A section `tls`: its path, its files by key, and a function that makes its context."""


def check_certificates(config: WeirConfig, document: Document, config_file: Path) -> list[Problem]:
    """A problem for each unusable certificate, key and authority."""
    return _problems(_uses(config, config_file.parent), document, config_file.parent)


def check_upstream_certificates(config: WeirConfig, document: Document, config_file: Path) -> list[Problem]:
    """The same for the connections to brokers alone."""
    return _problems(_upstream_use(config, config_file.parent), document, config_file.parent)


def _problems(uses: Iterable[_Use], document: Document, directory: Path) -> list[Problem]:
    found: list[Problem] = []
    for path, names, use in uses:
        mine = [
            problem(document, (*path, key), message, remedy, value=names[key])
            for key, message, remedy in _faults({key: directory / name for key, name in names.items()}, names)
        ]
        if not mine:
            try:
                use()
            except OSError as error:
                mine.append(problem(document, path, f"can't be used: {error}", "make new certificates with other parameters"))
        found += mine
    return found


def file_problem(files: Mapping[str, Path]) -> Problem | None:
    """The first problem of the files of a `tls` section, or None. `files` has their paths by config key."""
    for key, message, remedy in _faults(files, {key: str(file) for key, file in files.items()}):
        return Problem(key, message, remedy, value=str(files[key]))
    return None


def _faults(files: Mapping[str, Path], names: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """The key, the message and the remedy of each unusable file. `names` has the files' names for messages."""
    usable = True
    for key, file in files.items():
        try:
            (_read_key if key == "key" else _read_certificates)(file)
        except _UnusableError as error:
            usable = False
            yield key, error.message, error.remedy
    if usable and "cert" in files:
        yield from _mismatch(files, names)


def certificate_warnings(config: WeirConfig, directory: Path, now: float) -> list[str]:
    """One line for each usable file that is probably a mistake. `now` is wall clock seconds."""
    found: list[str] = []
    moment = datetime.fromtimestamp(now, UTC)
    # The files were valid a moment ago, so an unusable file is being replaced.
    with suppress(_UnusableError):
        for path, names, _ in _uses(config, directory):
            for key, file in names.items():
                if key != "key":
                    found += (f"{key_path((*path, key))}: {file}: {said}" for said in _bad_dates(directory / file, moment))
        for index, listener in enumerate(config.listeners):
            found += _wrong_names(listener, f"listeners[{index}].tls.cert", directory)
    return found


def date_warnings(section: str, certificates: Mapping[str, Path], now: float) -> list[str]:
    """One line for each certificate that is not valid, or not for long. `certificates` has the paths by config key.

    `now` is wall clock seconds.
    """
    found: list[str] = []
    for key, file in certificates.items():
        with suppress(_UnusableError, ValueError):
            found += (f"{section}.{key}: {file}: {said}" for said in _bad_dates(file, datetime.fromtimestamp(now, UTC)))
    return found


def first_expiries(certificates: Mapping[str, Path]) -> dict[str, float]:
    """The wall clock seconds at which the first certificate of each file expires.

    A file that can't be read is left out: OpenSSL has loaded it a moment ago, so it is being replaced.
    """
    found: dict[str, float] = {}
    for key, file in certificates.items():
        with suppress(_UnusableError, ValueError):
            found[key] = min(one.not_valid_after_utc.timestamp() for one in _read_certificates(file))
    return found


def _uses(config: WeirConfig, directory: Path) -> Iterator[_Use]:
    yield from _upstream_use(config, directory)
    for index, listener in enumerate(config.listeners):
        if (tls := listener.tls) is not None:
            names = {"cert": tls.cert, "key": tls.key, "client_ca": tls.client_ca}
            server = tls.resolved(directory)
            yield (
                ("listeners", index, "tls"),
                {key: file for key, file in names.items() if file},
                lambda server=server: server_context(server),  # type: ignore[misc]
            )


def _upstream_use(config: WeirConfig, directory: Path) -> Iterator[_Use]:
    if (tls := config.upstream.tls) is not None:
        files = {"ca": tls.ca, "cert": tls.cert, "key": tls.key}
        client = tls.resolved(directory)
        yield ("upstream", "tls"), {key: file for key, file in files.items() if file}, lambda: client_context(client)


def _mismatch(files: Mapping[str, Path], names: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """A fault if the key does not belong to the first certificate in `cert`."""
    wanted = _read_key(files["key"])
    certificates = _read_certificates(files["cert"])
    owners = [position for position, one in enumerate(certificates) if _public_bytes(one.public_key()) == wanted]
    if owners[:1] == [0]:
        return
    if owners:
        message = f"has the certificate of {names['key']} in place {owners[0] + 1}"
        yield "cert", message, "put it first, then its intermediates"
        return
    owner = certificates[0].subject.rfc4514_string()
    message = f"is not the key of the certificate in {names['cert']}, which is for {owner!r}"
    yield "key", message, "name the key that the certificate was made with"


def _content(file: Path) -> bytes:
    try:
        return file_bytes(file)
    except FileNotFoundError:
        raise _UnusableError(
            f"does not exist: {file}", "name an existing file; a relative name starts at the config file's directory"
        ) from None
    except IsADirectoryError:
        raise _UnusableError("is a directory", "name the file in it") from None
    except OSError as error:
        raise _UnusableError(f"can't be read: {error.strerror}", read_remedy(error, READABLE)) from None


def _read_certificates(file: Path) -> "list[Certificate]":
    from cryptography import x509  # here, because this import takes as long as the whole of `weir check`

    content = _content(file)
    try:
        return x509.load_pem_x509_certificates(content)
    except ValueError:
        message = "holds no certificate in PEM" if b"-----BEGIN CERTIFICATE" not in content else "holds a damaged certificate"
        raise _UnusableError(message, _to_pem(file, content)) from None


def _read_key(file: Path) -> bytes:
    """The public half of a PEM file's private key."""
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    content = _content(file)
    try:
        return _public_bytes(load_pem_private_key(content, None).public_key())
    except TypeError:
        remedy = "remove the password (openssl pkey -in FILE -out NEW) and make the file readable for Weir's user only"
        raise _UnusableError("is encrypted, and Weir has no password for it", remedy) from None
    except ValueError:
        message = "holds no private key in PEM" if b"PRIVATE KEY-----" not in content else "holds a damaged private key"
        raise _UnusableError(message, _to_pem(file, content)) from None


def _public_bytes(key: object) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    encoded: bytes = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)  # type: ignore[attr-defined]
    return encoded


def _to_pem(file: Path, content: bytes) -> str:
    if content.startswith(_JAVA_KEYSTORE):
        return "it is a Java keystore: convert it to PKCS12 (keytool -importkeystore), then to PEM (openssl pkcs12)"
    if file.suffix.lower() in _PKCS12_HINT:
        return "convert it to PEM: openssl pkcs12 -in FILE -nodes"
    if content.startswith(_DER_START):
        return "it looks like DER: convert it to PEM with openssl x509 -inform der, or openssl pkey -inform der"
    return "name a PEM file, which begins with -----BEGIN"


def _bad_dates(file: Path, now: datetime) -> list[str]:
    """Raises _UnusableError."""
    # After the first certificate in `cert` come its intermediates; an expired intermediate is as bad.
    return [said for one in _read_certificates(file) if (said := _dates(one, now))]


def _dates(certificate: "Certificate", now: datetime) -> str | None:
    until, since = certificate.not_valid_after_utc, certificate.not_valid_before_utc
    who = certificate.subject.rfc4514_string() or "the certificate"
    if until <= now:
        return f"{who} expired on {until:%Y-%m-%d %H:%M} UTC, so peers that verify it refuse it — renew it"
    if until <= now + SOON:
        return f"{who} expires on {until:%Y-%m-%d %H:%M} UTC — renew it; Weir serves the new one without a restart"
    if since > now:
        return f"{who} is not valid before {since:%Y-%m-%d %H:%M} UTC — wait, or correct the clock"
    return None


def _wrong_names(listener: ListenerConfig, key: str, directory: Path) -> Iterator[str]:
    """Names that clients connect to, but that the certificate does not have."""
    if listener.tls is None:
        return
    from cryptography import x509

    certificate = _read_certificates(directory / listener.tls.cert)[0]
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        yield f"{key}: has no subjectAltName, so clients refuse it — make a certificate for {listener.advertised_host}"
        return
    valid = {*map(str.lower, names.get_values_for_type(x509.DNSName)), *map(str, names.get_values_for_type(x509.IPAddress))}
    for wanted in (listener.advertised_host, *([] if listener.sni is None else [listener.sni.name(0)])):
        parent = "*." + wanted.lower().partition(".")[2]
        if wanted.lower() not in valid and parent not in valid:
            shown = ", ".join(sorted(valid)) or "no name"
            yield f"{key}: is for {shown}; clients that verify host names refuse it for {wanted} — make one for that name too"
