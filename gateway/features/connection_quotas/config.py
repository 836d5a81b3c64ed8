"""`connections`, and what a listener may accept: bounds on connections and on how fast they come."""

from collections.abc import Iterable, Mapping
from typing import Annotated, Protocol

from pydantic import Field, PlainSerializer, PlainValidator, ValidationError
from pydantic_core import InitErrorDetails

from gateway.config.endpoints import ip_text
from gateway.config.section import Section, described, invalid
from gateway.features.connection_quotas.rules import AcceptLimits, ConnectionLimits
from gateway.whole_number import MAX_INT32, MAX_INT64

_Count = Annotated[int, Field(gt=0, le=MAX_INT64)]


def _overrides(value: object) -> Mapping[str, int]:
    remedy = 'write one "address: count" per line, such as "10.0.0.1": 5'
    if not isinstance(value, Mapping):
        raise invalid("is not a section of addresses and counts", remedy)
    overrides: dict[str, int] = {}
    errors: list[InitErrorDetails] = []
    for address, count in value.items():
        fault = None
        try:
            ip = ip_text(address)
        except ValueError:
            fault = invalid("is not an IP address", remedy)
        else:
            if type(count) is not int or count < 1:
                fault = invalid("is not a number of connections", "write a whole number of 1 or more")
            elif ip in overrides:
                fault = invalid(f"is an address with another row: {ip}", "keep one of them")
            overrides[ip] = count
        if fault is not None:
            errors.append(InitErrorDetails(type=fault, loc=(str(address),), input=count))
    if errors:
        raise ValidationError.from_exception_data("max_per_ip_overrides", errors)
    return overrides


class AcceptSection(Section):
    """The keys of a section that limits open connections and new connections per second."""

    max_connections: _Count | None = described(
        "Open client connections at a time.", None, unit="connections", changes="reload", absent="no limit"
    )
    connection_creation_rate: _Count | None = described(
        "New client connections per second.", None, unit="connections per second", changes="reload", absent="no limit"
    )

    def accept_limits(self) -> AcceptLimits:
        """Both limits, for `ConnectionQuotas`."""
        return AcceptLimits(self.max_connections, self.connection_creation_rate)


class ConnectionsConfig(AcceptSection):
    """`connections`: bounds on client connections."""

    max_idle_ms: _Count = described(
        "A connection without bytes in either direction is closed after this time (Kafka: `connections.max.idle.ms`).",
        600_000,
        unit="milliseconds",
    )
    max_per_ip: _Count = described(
        "Open connections of one address (Kafka: `max.connections.per.ip`).", 1_000, unit="connections"
    )
    max_per_ip_overrides: Annotated[
        Mapping[str, int], PlainValidator(_overrides, json_schema_input_type=dict[str, int]), PlainSerializer(dict)
    ] = described("Open connections of single addresses (Kafka: `max.connections.per.ip.overrides`).", {}, unit="connections")
    max_frame_bytes: Annotated[int, Field(gt=0, le=MAX_INT32)] = described(
        "Largest request; a reload changes it for new connections (Kafka: `socket.request.max.bytes`).",
        104_857_600,
        unit="bytes",
    )
    drain_delay_seconds: Annotated[float, Field(ge=0, le=3_600)] = described(
        "Time after SIGTERM in which `/readyz` answers 503 and Weir still accepts connections.", 0.0, unit="seconds"
    )
    drain_seconds: Annotated[float, Field(ge=0, le=86_400)] = described(
        "Time that open connections then have for their pending requests.", 10.0, unit="seconds"
    )


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
