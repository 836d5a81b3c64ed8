"""Types of the config for hosts, ports and addresses."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Final, NamedTuple

from pydantic import AfterValidator, Field, PlainSerializer, PlainValidator
from pydantic_core import PydanticCustomError

from gateway.config.section import invalid
from gateway.quotas.addresses import Network, address_of, network_of
from gateway.quotas.entity import DEFAULT
from gateway.whole_number import MAX_PORT, whole_number

_PORT_RANGE = re.compile(r"\s*(\d{1,9})\s*-\s*(\d{1,9})\s*", re.ASCII)
_LABEL = r"[A-Za-z0-9_-]{1,63}"
_HOST = re.compile(rf"(?!-){_LABEL}(\.{_LABEL})*(?<!-)\.?", re.ASCII)
_WILDCARDS = frozenset({"0.0.0.0", "::"})  # noqa: S104 -- recognised here, not bound
_LOOPBACK_NAMES: Final = frozenset({"localhost", "localhost.localdomain", "localhost6", "ip6-localhost", "ip6-loopback"})


class ServerAddress(NamedTuple):
    """A host, without the brackets of IPv6, and a port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class PortRange:
    """The ports from `first` to `last`, both included."""

    first: int
    last: int

    def __str__(self) -> str:
        return f"{self.first}-{self.last}"

    @property
    def ports(self) -> range:
        return range(self.first, self.last + 1)


def is_wildcard(host: str) -> bool:
    return host in _WILDCARDS


def _host(text: str) -> str:
    try:
        return str(address_of(text.removeprefix("[").removesuffix("]")))
    except ValueError:
        if not _HOST.fullmatch(text) or len(text) > 253 or text.replace(".", "").isdigit():
            raise invalid("is not a host name or address", "give one alone, without a port or a scheme") from None
        return text


def is_host(value: object) -> bool:
    try:
        return isinstance(value, str) and bool(_host(value))
    except PydanticCustomError:
        return False


def _advertised_host(text: str) -> str:
    host = _host(text)
    if is_wildcard(host):
        raise invalid(
            "is a wildcard address, and no client can connect to one",
            "set advertised_host to a name or address of this machine that clients can reach",
        )
    return host


def _allowed_host(text: str) -> str:
    try:
        return ("." if text.startswith(".") else "") + _host(text.removeprefix("."))
    except PydanticCustomError:
        raise invalid(
            "is not a host name",
            'write one without a port, such as "weir.example.com", or ".example.com" for all names below it',
        ) from None


def _address(value: object) -> ServerAddress:
    remedy = 'write "host:port", such as "broker1:9092" or "[::1]:9092"'
    if not isinstance(value, str):
        raise invalid("is not a broker's address", remedy)
    host, colon, port = value.strip().rpartition(":")
    if not colon:
        raise invalid("has no port", remedy)
    if not host:
        raise invalid("has no host", remedy)
    if "," in host:
        raise invalid("holds more than one address", f"make each an item of the list; {remedy}")
    if "://" in host:
        raise invalid("has a scheme in front", remedy)
    if ":" in host and not (host.startswith("[") and host.endswith("]")):
        raise invalid("is an IPv6 address without brackets, or has one colon too many", remedy)
    number = port_of(port, remedy)
    return ServerAddress(_host(host), number)


def port_of(text: str, remedy: str) -> int:
    """The port behind the colon of an address. The error is about the whole address."""
    number = whole_number(text)
    if number is None or not 0 < number <= MAX_PORT:
        raise invalid(f"has a port that is not a number from 1 to {MAX_PORT}", remedy)
    return number


def _port_range(value: object) -> PortRange:
    remedy = 'write the first and the last port, such as "29093-29192"'
    match = _PORT_RANGE.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise invalid("is not a range of ports", remedy)
    first, last = int(match[1]), int(match[2])
    if not (0 < first <= MAX_PORT and 0 < last <= MAX_PORT):
        raise invalid(f"has a port outside of 1 to {MAX_PORT}", remedy)
    if first > last:
        raise invalid("runs backwards", f'write the lower port first: "{last}-{first}"')
    return PortRange(first, last)


def ip_text(value: object) -> str:
    """An address as connections show it. Raises ValueError for anything else."""
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is not text")  # noqa: TRY004 - what validators of sections raise
    return str(address_of(value))


def address_or_default(value: object) -> str:
    if value == DEFAULT.value:
        return DEFAULT.value
    try:
        return ip_text(value)
    except ValueError:
        remedy = f'write one, such as "10.0.0.1", or "{DEFAULT.value}" for all other addresses'
        raise invalid("is not an IP address", remedy) from None


def as_network(value: object, remedy: str) -> Network:
    """A network, or an address as the network of this address alone."""
    if not isinstance(value, str):
        raise invalid("is not an address or a network", remedy)
    try:
        found, is_first = network_of(value)
    except ValueError:
        raise invalid("is not an address or a network", remedy) from None
    if is_first:
        return found
    address = value.partition("/")[0]
    raise invalid(
        f"is an address inside of a network: its last {found.max_prefixlen - found.prefixlen} bits are not zero",
        f"write {found} for the whole network, or {address} for this address alone",
    )


def is_loopback(host: str) -> bool:
    """True if other machines can't reach a server that binds `host`. Names other than localhost count as reachable."""
    try:
        return address_of(host).is_loopback
    except ValueError:
        return host == "localhost"


def plain_name(name: str) -> str:
    return name.strip().lower().removesuffix(".")


def plain_host(host: str) -> str:
    """The plain name. For localhost, its IPv4 address: that is the one that a listener binds."""
    name = plain_name(host)
    return "127.0.0.1" if name == "localhost" else name


def answers_to(name: str, bound: str, allowed: Iterable[str]) -> bool:
    """True if a server that binds `bound` answers requests for a plain name. A leading dot allows all names below.

    It answers for each address, `bound` and loopback names as well. Unless `bound` is loopback, names need no dot.
    """
    if name in _LOOPBACK_NAMES or name.endswith(".localhost") or name == plain_name(bound) or is_ip_address(name):
        return True
    if "." not in name and not is_loopback(bound):
        return True
    return any(_covers(plain_name(pattern), name) for pattern in allowed)


def _covers(pattern: str, name: str) -> bool:
    """True if the pattern is the name or, with a leading dot, a domain above the name."""
    return name == pattern.removeprefix(".") or (pattern.startswith(".") and name.endswith(pattern))


def is_ip_address(name: str) -> bool:
    try:
        address_of(name)
    except ValueError:
        return False
    return True


Host = Annotated[str, AfterValidator(_host)]
AllowedHost = Annotated[str, AfterValidator(_allowed_host)]
AdvertisedHost = Annotated[str, AfterValidator(_advertised_host)]
Port = Annotated[int, Field(ge=1, le=MAX_PORT)]
Ports = Annotated[PortRange, PlainValidator(_port_range, json_schema_input_type=str), PlainSerializer(str)]
Server = Annotated[ServerAddress, PlainValidator(_address, json_schema_input_type=str), PlainSerializer(str)]
