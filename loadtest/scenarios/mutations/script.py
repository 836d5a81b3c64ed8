"""The scenarios. Each starts with a full bucket and takes far less time than the bucket needs to fill.

Every step uses a new connection, because the previous one may be muted.
"""

import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from loadtest.scenarios.mutations.raw import Answer, RawAdmin

RATE, SAMPLES = 0.2, 11
"""A burst of 2.2: a few partitions cause a long throttle time, so the duration of a step does not matter."""

NUM_PARTITIONS = 5
"""The cluster's num.partitions."""

MANY = 5

THROTTLED = 89
_NO_BROKER = 99


@dataclass
class Side:
    """The broker or the gateway in one scenario: its address, the client-id with the quota, and the prefix of topics."""

    address: str
    client_id: str

    def topic(self, name: str) -> str:
        return f"{self.client_id}-{name}"

    def plain(self, topic: str | None) -> str:
        return (topic or "").removeprefix(f"{self.client_id}-")

    def admin(self) -> RawAdmin:
        return RawAdmin(self.address, self.client_id)

    def prepare(self, topics: dict[str, int]) -> dict[str, uuid.UUID]:
        """Create topics as a client without a quota; returns their ids."""
        with RawAdmin(self.address, "prepare") as admin:
            created = admin.create([{"name": self.topic(name), "count": count} for name, count in topics.items()])
        return {self.plain(name): topic_id for name, topic_id in created.ids.items()}


Steps = Iterator[Answer]
Scenario = Callable[[Side], Steps]


def _create(side: Side, topics: dict[str, int], version: int = 7, *, validate_only: bool = False) -> Answer:
    with side.admin() as admin:
        rows = [{"name": side.topic(name), "count": count} for name, count in topics.items()]
        return admin.create(rows, version, validate_only=validate_only)


def _delete(side: Side, names: list[str], version: int = 6) -> Answer:
    with side.admin() as admin:
        return admin.delete([side.topic(name) for name in names], version)


def _grow(side: Side, topics: dict[str, int], version: int = 3, *, validate_only: bool = False) -> Answer:
    with side.admin() as admin:
        rows = [{"name": side.topic(name), "count": count} for name, count in topics.items()]
        return admin.grow(rows, version, validate_only=validate_only)


def create_and_more(side: Side) -> Steps:
    """Many partitions at once, and then more."""
    yield _create(side, {"a": 6})
    yield _create(side, {"b": 1})
    yield _create(side, {"b": 1})


def create_two(side: Side) -> Steps:
    """The second topic of a request finds the bucket overdrawn."""
    yield _create(side, {"a": MANY, "b": MANY, "c": 1})


def create_mixed(side: Side) -> Steps:
    """Invalid topics get their own errors and cost nothing."""
    yield _create(side, {"there": 1})
    with side.admin() as admin:
        rows = [
            {"name": side.topic("there"), "count": MANY},
            {"name": side.topic("none"), "count": 0},
            {"name": side.topic("a"), "count": 1},
            {"name": side.topic("replicas"), "count": MANY, "replicas": 0},
            {"name": side.topic("b"), "count": MANY},
            {"name": side.topic("both"), "count": 4, "assignments": [0, 0]},
            {"name": side.topic("c"), "count": 1},
            {"name": side.topic("not a name"), "count": MANY},
            {"name": side.topic("d"), "count": 1},
        ]
        yield admin.create(rows)


def create_older(side: Side) -> Steps:
    """An older client is throttled and never rejected."""
    yield _create(side, {"a": 3, "b": 3}, version=5)
    yield _create(side, {"c": 1}, version=5)
    yield _create(side, {"d": 1}, version=2)
    yield _create(side, {"e": 1})


def create_defaults(side: Side) -> Steps:
    """The default count is num.partitions."""
    with side.admin() as admin:
        yield admin.create([{"name": side.topic(name)} for name in "ab"])


def create_by_hand(side: Side) -> Steps:
    """A manual assignment of replicas sets the number of partitions."""
    with side.admin() as admin:
        yield admin.create(
            [{"name": side.topic(name), "assignments": [0] * count} for name, count in zip("abc", (2, MANY, 1), strict=True)]
        )


def create_refused(side: Side) -> Steps:
    """Topics that only the controller can reject cost nothing either."""
    with side.admin() as admin:
        yield admin.create([{"name": side.topic("a"), "count": MANY, "configs": {"retention.ms": "x"}}])
        yield admin.create([{"name": side.topic("b"), "count": MANY, "replicas": 3}])
        yield admin.create([{"name": side.topic("c"), "assignments": [_NO_BROKER] * MANY}])
        yield admin.create([{"name": side.topic("d"), "count": 10_001}])
    yield _create(side, {"e": MANY})
    yield _create(side, {"f": 1})


def validate_only(side: Side) -> Steps:
    """A validation costs as much as a creation."""
    yield _create(side, {"a": MANY}, validate_only=True)
    yield _create(side, {"a": 1}, validate_only=True)
    yield _create(side, {"a": 1})


def delete_by_name(side: Side) -> Steps:
    """A topic costs its number of partitions; an unknown topic costs nothing."""
    side.prepare({"a": MANY, "b": 1})
    yield _delete(side, ["a", "nowhere"])
    yield _delete(side, ["b"])


def delete_several(side: Side) -> Steps:
    """The quota admits one of three topics; KRaft chooses any of them."""
    side.prepare(dict.fromkeys("abc", MANY))
    yield _delete(side, ["a", "b", "c"])


def delete_by_id(side: Side) -> Steps:
    """An unknown id costs nothing."""
    ids = side.prepare({"a": MANY, "b": 1})
    with side.admin() as admin:
        yield admin.delete([ids["a"], uuid.UUID(int=12345)])
    with side.admin() as admin:
        yield admin.delete([ids["b"], uuid.UUID(int=12345)])


def delete_just_created(side: Side) -> Steps:
    """The broker may not know the topic yet."""
    created = _create(side, {"a": MANY})
    yield created
    with side.admin() as admin:
        yield admin.delete([created.ids[side.topic("a")]])
    yield _delete(side, ["a"], version=4)


def delete_older(side: Side) -> Steps:
    """An older client is throttled for its deletions too, except for unknown topics."""
    side.prepare({"a": MANY, "b": 2})
    yield _delete(side, ["a", "b"], version=4)
    yield _delete(side, ["nowhere"], version=1)


def grow(side: Side) -> Steps:
    """More partitions cost their number."""
    yield _create(side, {"a": 1})
    yield _grow(side, {"a": 1 + MANY})
    yield _grow(side, {"a": 2 + MANY})


def grow_wrong(side: Side) -> Steps:
    """Invalid requests cost nothing."""
    yield _create(side, {"a": 2})
    yield _grow(side, {"a": 2})
    yield _grow(side, {"a": 1})
    yield _grow(side, {"nowhere": 400})
    with side.admin() as admin:
        yield admin.grow([{"name": side.topic("a"), "count": 2 + MANY, "assignments": [0] * 3}])
    yield _grow(side, {"a": 2 + MANY}, validate_only=True)
    yield _grow(side, {"a": 3})


def grow_charged(side: Side) -> Steps:
    """KRaft looks for replicas after it has charged the quota."""
    yield _create(side, {"a": 1})
    with side.admin() as admin:
        yield admin.grow([{"name": side.topic("a"), "count": 1 + MANY, "assignments": [_NO_BROKER] * MANY}])
    yield _grow(side, {"a": 2})


def grow_older(side: Side) -> Steps:
    """An older client is throttled and never rejected."""
    yield _create(side, {"a": 1, "b": 1})
    yield _grow(side, {"a": 4, "b": 4}, version=2)
    yield _grow(side, {"a": 5}, version=0)


SCENARIOS: tuple[Scenario, ...] = (
    create_and_more, create_two, create_mixed, create_older, create_defaults, create_by_hand, create_refused, validate_only,
    delete_by_name, delete_several, delete_by_id, delete_just_created, delete_older, grow, grow_wrong, grow_charged, grow_older,
)  # fmt: skip
