"""The events of the throttle ledger, and the lines of its files.

Pure data, imports nothing of the gateway: the ledger writes these events, the live page and the Spark reports read them.

A line is one JSON object in UTF-8, without a newline inside. `v` is the schema's version, `type` the event's type; the event's
fields follow by their names, without those that are None. Within a version, a new field needs a default, and readers ignore
unknown fields. Any other change needs a new version. Times are integers, milliseconds since 1970 in UTC: they depend on no zone
and cost little to write and to parse (`jq '.time_ms / 1000 | todate'`). Amounts are in the unit of their quota kind
(`gateway.quotas.kinds`), those of `VOLUME` in bytes. The names of files are in `ledger_paths`.
"""

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import MISSING, dataclass, fields
from types import UnionType
from typing import Any, ClassVar, Final, get_args, get_origin, get_type_hints

VERSION: Final = 1

LINE_HEADER: Final = "weir-line"
"""The header of a record in `ledger.topic`: `SOURCE-NUMBER`, where SOURCE is another one for each start of a gateway. Numbers
of a source rise. Lines whose confirmation got lost are sent again: a number that is not above the last one was there before."""

AT_BROKER: Final = " at broker "
"""Between the entity and the broker in `quota`. So a report compares the use at a broker with the limit of that broker."""

VOLUME: Final = "volume"  # the kind of a throttle by the volume quota


class InvalidEventError(ValueError):
    """A line that is no event of this version; says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ThrottleEvent:
    """Throttle decisions for one entity, quota kind, matched quota, api and broker, folded over at most a minute.

    The entity is that of the bucket: `user`, `client_id` and `ip` are None where the quota's level does not look at them. The
    bucket of a group has `group` alone.
    `quota` is the configured entity whose limit applied (`user=alice, client-id=<default>`), None where it is a limit of the
    whole gateway (`volume`). For a limit of a single broker (`quotas.scope: broker`), ` at broker 1` stands behind it.
    `address` (without port), `rate` and `limit` (units per second) are those of the longest throttle. `rate` is the use through
    all gateways that share the quota.
    `enforced` is False if the throttle was only noted (`quotas.enforce: false`).
    `early_count` counts requests before the end of their throttle time; `early_ms` sums up the time that was left.
    """

    TYPE: ClassVar[str] = "throttle"

    time_ms: int
    """The time of the first decision."""
    last_ms: int
    """The time of the last decision."""
    gateway: str
    kind: str
    """The metric label: a quota kind's name or `volume`. Rejected connections have an event of their own."""
    user: str | None = None
    client_id: str | None = None
    ip: str | None = None
    group: str | None = None
    quota: str | None = None
    address: str | None = None
    broker: int | None = None
    """The broker's node id; None before the first Metadata response (bootstrap)."""
    api: str | None = None
    """Kafka's name: `Produce`, `Fetch`, `CreateTopics`."""
    count: int = 1
    """Decisions folded into this one."""
    amount: float = 0.0
    """The units that these decisions charged, summed up."""
    rate: float | None = None
    limit: float | None = None
    throttle_ms: int
    """Summed up."""
    throttle_max_ms: int
    throttle_slots: Mapping[int, int]
    """The number of decisions in each `throttle_slot`; they add up to `count`."""
    early_count: int = 0
    early_ms: int = 0
    early_max_ms: int = 0
    enforced: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageSample:
    """The use of one kind by one entity in one minute through one gateway; minutes without use have no sample."""

    TYPE: ClassVar[str] = "usage"

    time_ms: int
    """The minute's beginning."""
    gateway: str
    kind: str
    user: str | None = None
    client_id: str | None = None
    ip: str | None = None
    group: str | None = None
    quota: str | None = None
    limit: float | None = None
    """The limit at the minute's end for the cluster as a whole, or for its broker, units per second; None: unlimited."""
    amount: float
    """The units used in this minute."""
    requests: int = 0
    latency_ms: float | None = None
    """The brokers' response times, summed over `requests`, without the client's throttle time."""
    active_seconds: int | None = None
    """Seconds of the minute with use or throttled clients, from 1 to 60; None in lines of older gateways: the whole minute."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowSample:
    """The throttles of one minute by one shadow limit, if it were real. Minutes without use have no sample.

    Throttle times are those of a client that waits. Their sum over all gateways is the time by which the same work would have
    taken longer, so it may exceed the minute.
    """

    TYPE: ClassVar[str] = "shadow"

    time_ms: int
    """The minute's beginning."""
    gateway: str
    kind: str
    user: str | None = None
    client_id: str | None = None
    ip: str | None = None
    group: str | None = None
    quota: str | None = None
    limit: float | None = None
    """The shadow limit at the minute's end, units per second; None if it was removed."""
    amount: float
    """The units used in this minute."""
    active_seconds: int | None = None
    """Seconds of the minute with use, from 1 to 60."""
    count: int = 1
    """Requests that would have been throttled."""
    throttle_ms: int
    """Summed up."""
    throttle_max_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSample:
    """The right of one group to a shared capacity in one minute. The group's `usage` lines have its use.

    Minutes in which neither the group nor its parent was used have no sample. All gateways that share the quotas have the same
    figures, apart from the one second between their clocks.
    """

    TYPE: ClassVar[str] = "group"

    time_ms: int
    """The minute's beginning."""
    gateway: str
    kind: str
    group: str
    parent: str | None = None
    """The group above that shares its capacity; None for the group that has the capacity."""
    guarantee: float = 0.0
    entitlement: float
    """The part of the capacity that the group may use while all others want more. Units per second, as for `guarantee`."""
    waited_seconds: int = 0
    """Seconds in which clients of the group waited for its bucket, from 0 to 60. Always 0 for a group with groups below."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigApplied:
    """A config file was read again: applied, or refused as a whole."""

    TYPE: ClassVar[str] = "config"

    time_ms: int
    gateway: str
    result: str
    """`success` or `failure`, as in `weir_config_reloads_total`."""
    config_version: str
    """Of the configuration in effect afterwards: what `/api/config` shows."""
    changes: tuple[str, ...] = ()
    """One line each, as in the log; secrets left out. For a failure: the errors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaChanged:
    """One limit of one configured entity changed: in the file, through AlterClientQuotas, or by the clock."""

    TYPE: ClassVar[str] = "quota_change"

    time_ms: int
    gateway: str
    kind: str
    quota: str
    """The configured entity, as in the events that it matches: `user=alice, client-id=<default>`."""
    user: str | None = None
    client_id: str | None = None
    ip: str | None = None
    group: str | None = None
    """The entity's parts; `<default>` for the default entity, None where it has no such part."""
    old_limit: float | None = None
    new_limit: float | None = None
    """Units per second; None: no limit configured."""
    source: str
    """`file`, `api`, or `schedule` for a row of the file that began or ended to count."""
    principal: str | None = None
    """The principal of a change through the API, such as `User:admin`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GrantExpired:
    """The `until` of an entity's row passed while the gateway ran. Changed limits have a `quota_change` beside this event."""

    TYPE: ClassVar[str] = "grant_expired"

    time_ms: int
    """The moment in `until`. Each gateway that ran then reports the same one."""
    gateway: str
    quota: str
    """The configured entity, as in `quota_change`."""
    user: str | None = None
    client_id: str | None = None
    ip: str | None = None
    group: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeStateChanged:
    """The cluster's volume quota went from one state to another, or its factor changed by 0.05 or more.

    A gateway that begins to watch the volumes reports the first state as well. A gateway that stops watching while it holds
    producers reports OPEN. `enforced` is False if no producer is held (`quotas.volumes.enforce: false`).
    """

    TYPE: ClassVar[str] = "volume_state"

    time_ms: int
    gateway: str
    state: str
    """`OPEN`, `THROTTLE` or `PAUSE`."""
    previous: str
    factor: float
    """The share of the producers' rate that is let through: 1.0 open, 0.0 paused."""
    reason: str
    """`soft_limit`, `hard_limit`, `unknown` (no fresh data), `recovered`."""
    broker: int | None = None
    volume: str | None = None
    """The broker and log directory that decided it."""
    capacity_bytes: int | None = None
    consumed_bytes: int | None = None
    enforced: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionRejected:
    """Connections that were refused or closed by a limit, folded over an interval of at most a minute."""

    TYPE: ClassVar[str] = "connection_rejected"

    time_ms: int
    last_ms: int
    gateway: str
    reason: str
    """The label of `weir_connections_rejected_total`: `max_per_ip`, `idle`, `authentication_timeout`, ..."""
    address: str | None = None
    listener: str | None = None
    user: str | None = None
    """The user whose limit refused the connections; None for other reasons."""
    count: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRejected:
    """Produce requests whose partitions of one topic were rejected, folded over an interval of at most a minute.

    `reason`: `quota` if its topic quota was exceeded, else the name of the broker's error (`MESSAGE_TOO_LARGE`).
    Rates and limits (bytes per second), `address` (without port) and `broker` are those of the last rejection. Rates are those
    through all gateways that share the thresholds.
    """

    TYPE: ClassVar[str] = "topic_rejected"

    time_ms: int
    last_ms: int
    gateway: str
    topic: str
    reason: str = "quota"
    user: str | None = None
    client_id: str | None = None
    address: str | None = None
    broker: int | None = None
    count: int = 1
    amount: float
    """Bytes that were rejected."""
    rate: float | None = None
    limit: float | None = None
    total_rate: float | None = None
    total_limit: float | None = None
    enforced: bool = True


Event = (
    ThrottleEvent
    | UsageSample
    | ShadowSample
    | GroupSample
    | ConfigApplied
    | QuotaChanged
    | GrantExpired
    | VolumeStateChanged
    | ConnectionRejected
    | TopicRejected
)

EVENTS: Final[Mapping[str, type[Event]]] = {event.TYPE: event for event in get_args(Event)}
"""Every event by its `type`."""


@dataclass(frozen=True, slots=True)
class EventField:
    """A field of an event. `holds` is its type: `int`, `float`, `str`, `bool`, `dict` (slots to counts), `tuple` (strings)."""

    name: str
    holds: type
    required: bool
    optional: bool
    """True if None is allowed."""
    default: int | float | str | bool | None = None
    """The value in lines without the field, unless it is None or the field is required."""


def _fields_of(event: type[Event]) -> tuple[EventField, ...]:
    hints = get_type_hints(event)
    found = []
    for each in fields(event):
        hint = hints[each.name]
        optional = isinstance(hint, UnionType)
        if optional:
            hint = next(one for one in get_args(hint) if one is not type(None))
        origin = get_origin(hint) or hint
        holds = dict if issubclass(origin, Mapping) else origin
        required = each.default is MISSING
        default = each.default if isinstance(each.default, (int, float, str)) else None
        found.append(EventField(each.name, holds, required, optional, default))
    return tuple(found)


FIELDS: Final[Mapping[str, tuple[EventField, ...]]] = {name: _fields_of(event) for name, event in EVENTS.items()}
"""The fields of each event by its `type`; the reports' Spark schema is made from them."""

_ENCODER: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def to_line(event: Event) -> str:
    """The event as a line of a ledger file, without the newline. Raises ValueError for a number that is not finite."""
    line: dict[str, Any] = {"v": VERSION, "type": event.TYPE}
    for each in FIELDS[event.TYPE]:
        value = getattr(event, each.name)
        if value is not None:
            line[each.name] = value
    # UTF-8 can't hold half a surrogate pair, which a client's name may have, so JSON escapes it.
    return _ENCODER.encode(line).encode("utf-8", "backslashreplace").decode()


def from_line(line: str | bytes) -> Event:
    """The event of a line. Raises InvalidEventError, which names the field."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InvalidEventError(f"not JSON: {error}") from None
    if not isinstance(found, dict):
        raise InvalidEventError("not a JSON object")
    if found.get("v") != VERSION:
        raise InvalidEventError(f"v is {found.get('v')!r}, and this is a reader of version {VERSION}")
    event = EVENTS.get(str(found.get("type")))
    if event is None:
        raise InvalidEventError(f"type is {found.get('type')!r}, none of {', '.join(EVENTS)}")
    values: dict[str, Any] = {}
    for each in FIELDS[event.TYPE]:
        value = found.get(each.name)
        if value is not None:
            values[each.name] = _value(each, value)
        elif each.required:
            raise InvalidEventError(f"{each.name} is missing")
    return event(**values)


def _value(wanted: EventField, value: object) -> object:
    holds = wanted.holds
    if holds is dict and isinstance(value, dict):
        try:
            return {int(slot): int(count) for slot, count in value.items()}
        except (TypeError, ValueError, OverflowError):
            pass
    elif holds is tuple and isinstance(value, list) and all(isinstance(one, str) for one in value):
        return tuple(value)
    elif holds is float and isinstance(value, (int, float)) and not isinstance(value, bool):
        with suppress(OverflowError):
            return float(value)
    elif holds is not float and type(value) is holds:
        return value
    raise InvalidEventError(f"{wanted.name} is {value!r}, not {holds.__name__}")
