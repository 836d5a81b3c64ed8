"""`connections`, and what a listener may accept: bounds on connections and on how fast they come."""

from collections.abc import Iterable, Mapping
from ipaddress import ip_address
from typing import Annotated, Protocol

from pydantic import Field, PlainSerializer, PlainValidator

from gateway.config.section import Section, invalid
from gateway.features.connection_quotas.rules import AcceptLimits, ConnectionLimits

_MAX_INT64 = 2**63 - 1
_Count = Annotated[int, Field(gt=0, le=_MAX_INT64)]


def ip_text(value: object) -> str:
    """An address as connections show it. Raises ValueError for anything else."""
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is not text")  # noqa: TRY004 - what validators of sections raise
    return str(ip_address(value))


def _overrides(value: object) -> Mapping[str, int]:
    remedy = 'write one "address: count" per line, such as "10.0.0.1": 5'
    if not isinstance(value, Mapping):
        raise invalid("is not a section of addresses and counts", remedy)
    overrides: dict[str, int] = {}
    for address, count in value.items():
        try:
            ip = ip_text(address)
        except ValueError:
            raise invalid(f"names {address!r}, which is not an IP address", remedy) from None
        if type(count) is not int or count < 1:
            raise invalid(f"gives {address} {count!r} connections", "write a whole number of 1 or more")
        if ip in overrides:
            raise invalid(f"names {ip} twice", "keep one of them")
        overrides[ip] = count
    return overrides


class AcceptSection(Section):
    """The keys of a section that limits open connections and new connections per second."""

    max_connections: _Count | None = None
    connection_creation_rate: _Count | None = None

    def accept_limits(self) -> AcceptLimits:
        """The two of them as the connection quotas take them."""
        return AcceptLimits(self.max_connections, self.connection_creation_rate)


class ConnectionsConfig(AcceptSection):
    """`connections`: bounds on client connections, in milliseconds, bytes and seconds as the names say."""

    max_idle_ms: _Count = 600_000
    max_per_ip: _Count = 1_000
    max_per_ip_overrides: Annotated[
        Mapping[str, int], PlainValidator(_overrides, json_schema_input_type=dict[str, int]), PlainSerializer(dict)
    ] = {}
    max_frame_bytes: Annotated[int, Field(gt=0, le=2**31 - 1)] = 104_857_600
    drain_delay_seconds: Annotated[float, Field(ge=0, le=3_600)] = 0.0
    drain_seconds: Annotated[float, Field(ge=0, le=86_400)] = 10.0


class _Listener(Protocol):
    @property
    def name(self) -> str: ...

    def accept_limits(self) -> AcceptLimits: ...


def connection_limits(connections: ConnectionsConfig, listeners: Iterable[_Listener]) -> ConnectionLimits:
    """All limits on connections that stand outside of `quotas`."""
    return ConnectionLimits(
        connections.max_per_ip,
        connections.max_per_ip_overrides,
        connections.accept_limits(),
        {listener.name: listener.accept_limits() for listener in listeners},
    )
