"""`tls` of a listener and of `upstream`, and `sni`: certificates, users by certificate, and brokers by server name."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, PlainSerializer, PlainValidator, model_validator

from gateway.config.endpoints import port_of
from gateway.config.section import Section, described, filled_in, invalid
from gateway.proxy.tls.contexts import ClientTls, ServerTls
from gateway.proxy.tls.principal import BadRuleError, PrincipalMapping
from gateway.whole_number import whole_number

_NAME = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(?<!-)(\.(?!-)[A-Za-z0-9_-]{1,63}(?<!-))*", re.ASCII)
_ID = "{id}"


@dataclass(frozen=True, slots=True)
class BrokerNames:
    """`sni`: a template for the names of brokers, with `{id}` for the broker's id, and the advertised port.

    A port of None is the listener's own.
    """

    template: str
    port: int | None

    def __str__(self) -> str:
        return self.template if self.port is None else f"{self.template}:{self.port}"

    def name(self, node_id: int) -> str:
        return self.template.replace(_ID, str(node_id))

    def node_id(self, name: str) -> int | None:
        """The broker with that name (in lower case), or None."""
        before, _, after = self.template.lower().partition(_ID)
        text = name[len(before) : len(name) - len(after)]
        found = whole_number(text) if name.startswith(before) and name.endswith(after) else None
        return found if str(found) == text else None


def is_dns_name(text: str) -> bool:
    """True if a client can send it as server name (SNI): a name, not an address."""
    return len(text) <= 253 and _NAME.fullmatch(text) is not None and not text.rpartition(".")[2].isdigit()


def _broker_names(value: object) -> BrokerNames:
    remedy = 'write a name with {id} where the broker\'s id goes, such as "broker-{id}.kafka.example.com:9092"'
    if not isinstance(value, str):
        raise invalid("is not a name for brokers", remedy)
    template, colon, port = value.strip().partition(":")
    if template.count(_ID) != 1:
        raise invalid("does not have {id} exactly once", remedy)
    if not is_dns_name(template.replace(_ID, "0")):
        raise invalid("is not a host name", remedy)
    if not colon:
        return BrokerNames(template, None)
    return BrokerNames(template, port_of(port, remedy))


def _rules(text: str) -> str:
    try:
        PrincipalMapping(text)
    except BadRuleError as error:
        raise invalid(f"can't be used: {error}", error.remedy) from None
    return text


def _version(value: object) -> object:
    return str(value) if isinstance(value, float) else value  # YAML reads 1.2 as a number


FileName = Annotated[str, Field(min_length=1)]
"""A file name; a relative one starts at the config file's directory."""

MinVersion = Annotated[Literal["1.2", "1.3"], BeforeValidator(_version, json_schema_input_type=Literal["1.2", "1.3"] | float)]
Sni = Annotated[BrokerNames, PlainValidator(_broker_names, json_schema_input_type=str), PlainSerializer(str)]


class ListenerTlsConfig(Section):
    """`listeners[].tls`. With `client_ca`, clients need a certificate, unless `client_auth` says otherwise."""

    model_config = ConfigDict(json_schema_extra=filled_in("client_auth"))

    cert: FileName = described("PEM file with the listener's certificate first, then its intermediates.")
    key: FileName = described("PEM file with the private key, without a password.")
    client_ca: FileName | None = described("PEM file with the authorities that sign clients' certificates.", None)
    client_auth: Literal["none", "requested", "required"] = described(
        "Clients' certificates (Kafka: `ssl.client.auth`).", absent="`required` with client_ca, otherwise `none`"
    )
    principal_mapping_rules: Annotated[str, AfterValidator(_rules)] = described(
        "Rules that turn a certificate's subject into a user's name (Kafka: `ssl.principal.mapping.rules`).", "DEFAULT"
    )
    min_version: MinVersion = described("Lowest TLS version that clients may use.", "1.2")
    handshake_seconds: Annotated[float, Field(gt=0, le=600)] = described(
        "Time that a client has for the TLS handshake.", 10.0, unit="seconds"
    )

    @model_validator(mode="before")
    @classmethod
    def _defaults(cls, data: object) -> object:
        if not isinstance(data, dict):
            return data
        filled: dict[Any, Any] = {"client_auth": "none" if data.get("client_ca") is None else "required", **data}
        return filled

    @model_validator(mode="after")
    def _has_authority(self) -> "ListenerTlsConfig":
        if self.client_auth != "none" and self.client_ca is None:
            raise invalid(
                f"has client_auth: {self.client_auth} without client_ca, so no client certificate can be verified",
                "add client_ca, the file of the authority that signs them",
            )
        return self

    def resolved(self, directory: Path) -> ServerTls:
        """Relative file names start at `directory`, the config file's."""
        ca = None if self.client_ca is None or self.client_auth == "none" else directory / self.client_ca
        return ServerTls(directory / self.cert, directory / self.key, ca, self.client_auth, self.min_version)


class UpstreamTlsConfig(Section):
    """`upstream.tls`: verification of brokers, and Weir's own certificate. Without `ca`, the system's authorities."""

    ca: FileName | None = described(
        "PEM file with the authorities that sign the brokers' certificates.", None, absent="the system's authorities"
    )
    cert: FileName | None = described("PEM file with Weir's own certificate, for brokers that ask for one.", None)
    key: FileName | None = described("PEM file with the private key of Weir's own certificate.", None)
    verify_hostname: bool = described("`true`: a broker's certificate must have the name that Weir connects to.", True)
    min_version: MinVersion = described("Lowest TLS version that Weir uses towards brokers.", "1.2")

    @model_validator(mode="after")
    def _whole(self) -> "UpstreamTlsConfig":
        if (self.cert is None) != (self.key is None):
            missing = "key" if self.key is None else "cert"
            raise invalid(f"has a certificate or its key, but {missing} is missing", f"add {missing}, or remove the other")
        return self

    def resolved(self, directory: Path) -> ClientTls:
        """Relative file names start at `directory`, the config file's."""
        ca, cert, key = (None if file is None else directory / file for file in (self.ca, self.cert, self.key))
        return ClientTls(ca, cert, key, self.verify_hostname, self.min_version)
