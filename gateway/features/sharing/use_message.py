"""A member's message about the use of its entities: JSON in a compacted topic, with the member as key.

    key    2f6c1b7e9d034a58          a member: 16 random hex digits, new at each start
    value  {"Version": 1, "Sequence": 17, "Entities": [["produce", {"user": "alice"}, 123456789, 4096], ...],
            "Connections": [["user", "alice", 12], ...], "Demands": [["produce", "payments", 1048576.0], ...]}

A row has the kind, the tags or the name (`{"name": "payments"}` with the kind `topic`), and two counts in the kind's unit. The
tag `broker` is a node id as text; an older Weir skips rows with it.
The first count is the use since the member began to count, the second the use within the quota window. A row of `Connections`
has the kind and the name of a maximum number, and the member's open connections. Each message has all such rows; messages of
an older Weir have none. With `"Turns": 3`, the rows are too many for one message, and the last three messages together have all
of them. An older Weir takes only the last message's rows. A row with the kind `producers` has the producers of a topic that
take turns; an older Weir does not use it. A row of `Demands` has the kind and the name of a group, and the demand of its
clients per second. Null is a demand without a bound. Each message has the rows that changed, and later messages
have them again. A row of `Balances` has the kind, the tags or the name, the limit per second, and the balance in seconds. A
debt is below zero. The last field is the member's use as in `Entities`, which the balance contains. An older Weir ignores
such rows. `"Interval": 200` is the member's configured interval in milliseconds. A member without `quotas.enforce` has
`"Enforced": false`, and publishes no balances. An older Weir neither writes nor reads these two fields. A record without a
value means that the member has left.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

from gateway.cluster.client import BadRecordError
from gateway.features.sharing.config import MAX_INTERVAL_MS
from gateway.quotas.entity import MAX_NAME as SHORT_NAME
from gateway.quotas.entity import TAG_NAMES, Tags
from gateway.quotas.scope import node_id
from gateway.quotas.shared_meter import UsageKey
from gateway.quotas.token_bucket import MAX_DEBT_SECONDS
from gateway.whole_number import MAX_INT64

VERSION = 1
MAX_MESSAGE_BYTES = 512 * 1024
MAX_ENTITIES = 500
"""The maximum in one message."""

MAX_COUNTS = 500
"""The maximum number of counts of connections in one message."""

MAX_TURNS = 20
"""The maximum number of messages that have the counts of connections together."""

MAX_DEMANDS = 1_000
"""The maximum number of demands in one message."""

DemandKey = tuple[str, str]
"""A kind and the name of a group."""

PeerCountKey = tuple[str, str]
"""The open connections of a listener, the gateway, an address or a user: its kind and its name."""

ID_DIGITS = 16
_HEX = frozenset("0123456789abcdef")
MAX_NAME = 32_767
"""The maximum number of characters in a name, as long as a client-id may be. An entity of more encoded bytes is not shared."""
_ROW = 4


@dataclass(frozen=True, slots=True)
class EntityUse:
    """An entity's use at one member: in total, and within the quota window."""

    kind: str
    name: Tags | str
    total: int
    recent: int


class Balance(NamedTuple):
    """An entity's balance: `seconds` of its `limit`, below zero for a debt. It contains the `total` use of the publisher."""

    limit: float
    seconds: float
    total: int


@dataclass(frozen=True, slots=True)
class UseMessage:
    """A member's use, its open connections and its demands. `sequence` rises by one with each message; `skipped` has the
    reasons of unusable rows. The last `turns` messages together have all counts of connections. The `interval` is in seconds,
    and 0.0 if the member is an older Weir."""

    sequence: int
    entities: tuple[EntityUse, ...]
    skipped: tuple[str, ...] = ()
    connections: Mapping[PeerCountKey, int] = field(default_factory=dict)
    demands: Mapping[DemandKey, float] = field(default_factory=dict)
    turns: int = 1
    balances: Mapping[UsageKey, Balance] = field(default_factory=dict)
    interval: float = 0.0
    enforced: bool = True


def encode(message: UseMessage) -> bytes:
    rows = [[use.kind, _parts(use.name), use.total, use.recent] for use in message.entities]
    fields = {"Version": VERSION, "Sequence": message.sequence, "Entities": rows}
    if message.connections:
        fields["Connections"] = [[kind, name, count] for (kind, name), count in message.connections.items()]
    if message.turns > 1:
        fields["Turns"] = message.turns
    if message.demands:
        rows = [[kind, name, None if demand == inf else demand] for (kind, name), demand in message.demands.items()]
        fields["Demands"] = rows
    if message.balances:
        rows = [[kind, _parts(name), *balance] for (kind, name), balance in message.balances.items()]
        fields["Balances"] = rows
    if message.interval > 0.0:
        fields["Interval"] = round(message.interval * 1000.0)
    if not message.enforced:
        fields["Enforced"] = False
    return json.dumps(fields, separators=(",", ":")).encode()


def parse_member(key: bytes | None) -> str:
    """The member in a record's key. Raises BadRecordError."""
    text = (key or b"").decode("ascii", "replace")
    if len(text) != ID_DIGITS or not set(text) <= _HEX:
        raise BadRecordError("bad_key", f"the key {text[:40]!r} is not a member")
    return text


def parse(value: bytes) -> UseMessage:
    """Raises BadRecordError for an unusable message. Skips unusable rows, and does not check the kinds."""
    if len(value) > MAX_MESSAGE_BYTES:
        raise BadRecordError("too_large", f"{len(value)} bytes, more than {MAX_MESSAGE_BYTES}")
    try:
        fields = json.loads(value)
    except (ValueError, RecursionError) as error:
        raise BadRecordError("bad_json", f"not JSON: {error}"[:200]) from None
    if not isinstance(fields, dict):
        raise BadRecordError("bad_type", "the message is not an object")
    version = fields.get("Version")
    if type(version) is not int or version != VERSION:
        raise BadRecordError("unknown_version", f"Version {str(version)[:40]}, this Weir knows {VERSION}")
    rows = _rows(fields.get("Entities"), "Entities", MAX_ENTITIES, "entities")
    sequence = _count(fields.get("Sequence"), "Sequence")
    uses: list[EntityUse] = []
    skipped: list[str] = []
    for row in rows:
        try:
            uses.append(_use(row))
        except BadRecordError as error:
            skipped.append(error.reason)
    connections = _connections(fields.get("Connections", []), skipped)
    demands = _demands(fields.get("Demands", []), skipped)
    turns = min(max(_count(fields.get("Turns", 1), "Turns"), 1), MAX_TURNS)
    balances = _balances(fields.get("Balances", []), skipped)
    interval = min(_count(fields.get("Interval", 0), "Interval"), MAX_INTERVAL_MS) / 1000.0
    enforced = fields.get("Enforced") is not False
    return UseMessage(sequence, tuple(uses), tuple(skipped), connections, demands, turns, balances, interval, enforced)


def _rows(rows: object, name: str, most: int, things: str) -> list[object]:
    """The rows of the field `name`. Raises BadRecordError if there are more than `most`; `things` is the word for them."""
    if not isinstance(rows, list):
        raise BadRecordError("bad_type", f"{name} is not a list")
    if len(rows) > most:
        raise BadRecordError("too_large", f"{len(rows)} {things}, more than {most}")
    return rows


def _use(row: object) -> EntityUse:
    if not isinstance(row, list) or len(row) != _ROW:
        raise BadRecordError("bad_type", f"an entity is not a list of {_ROW}")
    kind, parts, total, recent = row
    return EntityUse(*_entity(kind, parts), _count(total, "the total"), _count(recent, "the recent use"))


def _entity(kind: object, parts: object) -> UsageKey:
    if not isinstance(kind, str) or not isinstance(parts, dict) or not parts:
        raise BadRecordError("bad_type", "an entity has no kind or no parts")
    names: dict[str, str | None] = {}
    for part, name in parts.items():
        if part not in _PARTS:
            raise BadRecordError("unknown_part", f"an entity has a part {part[:40]!r}")
        if not isinstance(name, str) or not _is_name(name):
            raise BadRecordError("bad_type", f"{part} is not a name")
        names[part] = name
    name = names.pop(_NAME, None)
    if name is not None and names:
        raise BadRecordError("bad_type", "an entity has both a name and tags")
    broker = _broker(names.get("broker"))
    tags = Tags(names.get("user"), names.get("client_id"), ip=names.get("ip"), group=names.get("group"), broker=broker)
    if any(len(each or "") > SHORT_NAME for each in (kind, name, tags.ip, tags.group)):
        raise BadRecordError("bad_type", "an entity has a long name that is neither a user nor a client-id")
    return kind, tags.bounded() if name is None else name


def _broker(text: str | None) -> int | None:
    broker = None if text is None else node_id(text)
    if text is not None and broker is None:
        raise BadRecordError("bad_type", "broker is not a node id")
    return broker


def _connections(rows: object, skipped: list[str]) -> dict[PeerCountKey, int]:
    counts: dict[PeerCountKey, int] = {}
    for row in _rows(rows, "Connections", MAX_COUNTS, "counts of connections"):
        match row:
            case [str(kind), str(name), int(count)] if _is_short(kind, name) and 0 <= count <= MAX_INT64:
                counts[kind, name] = count
            case _:
                skipped.append("bad_type")
    return counts


def _demands(rows: object, skipped: list[str]) -> dict[DemandKey, float]:
    demands: dict[DemandKey, float] = {}
    for row in _rows(rows, "Demands", MAX_DEMANDS, "demands"):
        match row:
            case [str(kind), str(name), None] if _is_short(kind, name):
                demands[kind, name] = inf
            case [str(kind), str(name), int(demand) | float(demand)] if _is_short(kind, name) and 0 <= demand <= MAX_INT64:
                demands[kind, name] = float(demand)
            case _:
                skipped.append("bad_type")
    return demands


def _balances(rows: object, skipped: list[str]) -> dict[UsageKey, Balance]:
    balances: dict[UsageKey, Balance] = {}
    for row in _rows(rows, "Balances", MAX_ENTITIES, "balances"):
        match row:
            case [kind, parts, int(limit) | float(limit), int(seconds) | float(seconds), total] if (
                0 < limit <= MAX_INT64 and -MAX_DEBT_SECONDS <= seconds <= MAX_INT64
            ):
                try:
                    balances[_entity(kind, parts)] = Balance(float(limit), float(seconds), _count(total, "the total"))
                except BadRecordError as error:
                    skipped.append(error.reason)
            case _:
                skipped.append("bad_type")
    return balances


def _count(value: object, what: str) -> int:
    if type(value) is not int or not 0 <= value <= MAX_INT64:
        raise BadRecordError("bad_number", f"{what} is not a count")
    return value


def _is_name(name: str) -> bool:
    """True if a client or a topic can have this name. JSON may escape one half of a surrogate pair, which is no UTF-8."""
    if len(name) > MAX_NAME:
        return False
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_short(kind: str, name: str) -> bool:
    return len(kind) <= SHORT_NAME and len(name) <= SHORT_NAME and _is_name(name)


def encoded_size(name: Tags | str) -> int:
    """The bytes of a name in a message, or of the names in tags: up to 12 a character, as JSON escapes both its surrogates."""
    if isinstance(name, str):
        return len(_encoded(name))
    return sum(len(_encoded(part)) for part in (name.user, name.client_id, name.ip, name.group) if part)


_encoded = json.JSONEncoder().encode  # as `json.dumps` of one text, in half the time
_NAME = "name"
_PARTS = (*TAG_NAMES, _NAME)


def _parts(tags: Tags | str) -> dict[str, str]:
    if isinstance(tags, str):
        return {_NAME: tags}
    return {part: str(name) for part in TAG_NAMES if (name := getattr(tags, part)) is not None}
