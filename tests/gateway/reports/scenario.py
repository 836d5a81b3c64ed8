"""A scenario as uses and decisions instead of events: three hours around a midnight, three gateways, a dozen actors.

`events()` folds the scenario as a gateway's ledger does. `expected.py` computes the reports' rows from the same uses and
decisions in plain Python.
"""

import datetime as dt
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from gateway.events import (
    ConfigApplied,
    ConnectionRejected,
    Event,
    GrantExpired,
    GroupSample,
    QuotaChanged,
    ShadowSample,
    ThrottleEvent,
    TopicRejected,
    UsageSample,
    VolumeStateChanged,
)
from gateway.throttle_slots import throttle_slot

HOUR, MINUTE, SECOND = 3_600_000, 60_000, 1000
START = int(dt.datetime(2026, 11, 20, 22, tzinfo=dt.UTC).timestamp()) * 1000
HOURS = 3
CHANGE = START + HOUR + 10 * MINUTE + 5 * SECOND
"""The greedy client's quota doubles at 23:10:05."""


@dataclass(frozen=True)
class Bucket:
    """One entity and its quota."""

    kind: str
    user: str | None = None
    client_id: str | None = None
    ip: str | None = None
    quota: str | None = None
    limit: float | None = None
    group: str | None = None

    @property
    def entity(self) -> tuple[str, str | None, str | None, str | None, str | None]:
        return self.kind, self.user, self.client_id, self.ip, self.group


GREEDY = Bucket("produce", user="greedy", quota="user=greedy", limit=1000.0)
RAISED = replace(GREEDY, limit=2000.0)
STEADY = Bucket("produce", client_id="steady", quota="client-id=<default>", limit=1000.0)
BULK = Bucket("fetch", user="bulk", client_id="app")
VICTIM = Bucket("fetch", user="victim", quota="user=<default>", limit=100_000.0)
ADMIN = Bucket("controller_mutation", user="admin", quota="user=<default>", limit=2.0)
TRIAL = Bucket("produce", user="trial", client_id="", quota="user=trial, client-id=<default>", limit=500.0)
STORM = Bucket("connection", ip="10.0.0.9", quota="ip=<default>", limit=50.0)
WRITER = Bucket("produce", user="victim", client_id="writer", quota="user=victim, client-id=writer", limit=1e6)
FULL_DISK = Bucket("volume", client_id="steady")
"""The volume quota holds the steady client's records."""
JOBS = Bucket("produce", group="jobs", quota="group=jobs", limit=3000.0)
"""A group. Its members have its use as well."""
WORKER = Bucket("produce", user="worker", quota="user=<default>", limit=1e6)
CLUSTER = Bucket("produce", group="cluster", quota="group=cluster", limit=1000.0)
"""A group with groups below. It has the use of all their members."""
PAYMENTS = replace(CLUSTER, group="payments", quota="group=payments")
BATCH = replace(CLUSTER, group="batch", quota="group=batch")
PAYER = replace(WORKER, user="payer")
LOADER = replace(WORKER, user="loader")
MEMBER_OF = {"worker": (JOBS,), "payer": (PAYMENTS, CLUSTER), "loader": (BATCH, CLUSTER)}
"""The groups of the clients in groups, by user."""
SECOND_APP = Bucket("fetch", user="bulk", client_id="=1+1")
"""Another client of a user, with a name that a spreadsheet would compute."""
NOBODY = Bucket("produce", user="ANONYMOUS", quota="user=<default>", limit=1e6)
UNNAMED = Bucket("fetch", client_id="")
CROWD = Bucket("fetch", user="<other>", client_id="client-id=<default>", quota="client-id=<default>", limit=1e6)
"""The shared bucket of the clients beyond `quotas.max_entities`."""
AT_BROKER = Bucket("produce", user="spread", quota="user=spread at broker 1", limit=1000.0)
"""The bucket of one broker, with `scope: broker`."""
RESTARTED = Bucket("produce", user="restarted", quota="user=restarted", limit=1000.0)
"""The bucket of a client whose gateway restarts within a minute, so that the gateway writes two samples for this minute."""
SAME_BIT = ("weir-5", "weir-45")
"""Two gateways that share a bit of `hours.gateway_bit`."""
HOSTILE = Bucket("fetch", user='</script><b>"type":"usage"', quota="user=<default>", limit=100_000.0)


@dataclass(frozen=True)
class Use:
    """The use of a bucket at one gateway in the minute that begins at `at`, in so many active `seconds`."""

    at: int
    gateway: str
    bucket: Bucket
    amount: int
    requests: int
    latency_ms: float | None = None
    seconds: int | None = None
    partial: bool | None = None


@dataclass(frozen=True)
class Decision:
    """One throttle decision, not folded. `early_ms` is the time by which the client's next request came too early."""

    at: int
    gateway: str
    bucket: Bucket
    ms: int
    amount: int
    rate: float | None
    address: str
    api: str
    broker: int | None = 1
    early_ms: int | None = None
    enforced: bool = True


def uses() -> Iterator[Use]:
    for number in range(60 * HOURS):
        at, minute = START + number * MINUTE, number % 60
        if at < CHANGE - 5 * SECOND:
            yield Use(at, "weir-0", GREEDY, 40_000, 40)
            yield Use(at, "weir-1", GREEDY, 19_760, 20, seconds=50)
        else:
            yield Use(at, "weir-0", RAISED, 100_000, 100, seconds=55)
        steady = 60_000 if minute % 30 == 0 else 48_000 if minute % 10 == 0 else 30_000 + minute
        yield Use(at, "weir-1", STEADY, steady, 30, seconds=45 if number > 120 else None)
        yield Use(at, "weir-0", BULK, 10_000_000 + number, 100, 300.0)
        slow = number in range(65, 70)
        if number % 2 == 1:
            yield Use(at, "weir-1", VICTIM, 600_000, 10, 500.0 if slow else 20.0)
    # In the last minute a broker refused partitions that the minute before had charged.
    for number, amount in ((3, 60), (4, 200), (100, 7), (101, -2)):
        yield Use(START + number * MINUTE, "weir-0", ADMIN, amount, 2)
    yield Use(START + 70 * MINUTE, "weir-2", STEADY, 10, 1)  # the last line before a kill
    yield Use(START + 115 * MINUTE, "weir-2", STEADY, 10, 1)
    yield Use(START + 65 * MINUTE, "weir-0", WRITER, 5_000_000, 50)  # the slowed client's own use
    yield Use(START + 30 * MINUTE, "weir-0", TRIAL, 45_000, 9, seconds=40)
    for use in uses_in_groups():
        yield use
        for group in MEMBER_OF[str(use.bucket.user)]:
            yield replace(use, bucket=group)
    yield Use(START + 95 * MINUTE, "weir-1", AT_BROKER, 30_000, 3)
    for minute in (95, 96):
        yield Use(START + minute * MINUTE, "weir-1", replace(AT_BROKER, quota="user=spread at broker 2"), 60_000, 6)
    yield Use(START + 2 * HOUR, "weir-0", HOSTILE, 5, 1)
    for minute, gateway, seconds in ((80, 0, 30), (80, 0, 29), (81, 0, 20), (81, 0, 25), (81, 1, 40), (82, 0, 40), (82, 0, 40)):
        partial = gateway == 0 or None
        yield Use(START + minute * MINUTE, f"weir-{gateway}", RESTARTED, 950 * seconds, 5, seconds=seconds, partial=partial)
    for gateway_name in SAME_BIT:
        yield Use(START + 83 * MINUTE, gateway_name, RESTARTED, 9_500, 5, seconds=20)
    for number, bucket in enumerate((SECOND_APP, NOBODY, UNNAMED, CROWD)):
        yield Use(START + 60 * MINUTE + number * MINUTE, "weir-2", bucket, 1_000_003 + number, 1)


def uses_in_groups() -> Iterator[Use]:
    yield Use(START + 90 * MINUTE, "weir-1", WORKER, 170_000, 12, 300.0)
    for minute, gateway, member, amount in (
        (20, "weir-0", PAYER, 10_000),
        (20, "weir-0", LOADER, 30_000),
        (20, "weir-1", LOADER, 10_000),
        (21, "weir-0", PAYER, 28_000),
        (21, "weir-0", LOADER, 50_000),
        (22, "weir-1", LOADER, 17_000),
        (23, "weir-0", PAYER, 15_000),
        (24, "weir-0", PAYER, 16_000),
        (25, "weir-0", PAYER, 1),
        (70, "weir-0", PAYER, 31_000),
    ):
        yield Use(START + minute * MINUTE, gateway, member, amount, 5)


def decisions() -> Iterator[Decision]:
    for number in range(70):
        for nth in range(number % 4 + 1):
            yield Decision(
                at=START + number * MINUTE + 7000 * nth,
                gateway=f"weir-{nth % 2}",
                bucket=GREEDY,
                ms=10 + number * 13 + nth * 101,
                amount=500 + nth,
                rate=1500.0 + number,
                address=f"10.0.0.{nth}",
                api="Produce",
                broker=nth,
                early_ms=nth * 5 if nth == 3 else None,
            )
    yield Decision(START + 90 * MINUTE, "weir-1", JOBS, 800, 300, 3500.0, "10.0.0.7", "Produce")
    yield Decision(START + 20 * MINUTE, "weir-1", BATCH, 1_500, 300, 700.0, "10.0.0.7", "Produce")
    for nth, ms in enumerate((29_000, 31_000, 5)):
        yield Decision(START + 4 * MINUTE + nth * 900, "weir-0", ADMIN, ms, 60 + nth, 9.5, "10.0.1.1", "CreateTopics", None)
    for nth in range(10):
        yield Decision(
            START + 30 * MINUTE + nth * SECOND, "weir-0", TRIAL, 40 + nth, 100, 900.0, "10.0.2.2", "Produce", 2, enforced=False
        )
    for minute in (52, 53):
        yield Decision(START + minute * MINUTE, "weir-1", FULL_DISK, 400 + minute, 1000, None, "10.0.3.3", "Produce", 2)
    yield Decision(START + 2 * HOUR + 5, "weir-1", STORM, 800, 1, 70.0, "10.0.0.9", "ApiVersions", None)
    yield Decision(START + 2 * HOUR + 9, "weir-0", HOSTILE, 3, 5, 70.0, "10.6.6.6", "Fetch", 0, early_ms=2)


TOPIC_REJECTIONS = [
    TopicRejected(
        time_ms=START + minute * MINUTE,
        last_ms=START + minute * MINUTE + 30_000,
        gateway="weir-0",
        topic=topic,
        reason=reason,
        user="greedy",
        broker=1,
        count=minute,
        amount=minute * 1000.0,
        rate=6e6 + minute,
        limit=5e6 if minute < 100 else 7e6,
        total_rate=2e7 - minute,
        total_limit=1e7,
    )
    for minute, topic, reason in (
        (1, "payments", "quota"),
        (2, "payments", "quota"),
        (130, "payments", "quota"),
        (7, "logs", "quota"),
        (8, "logs", "MESSAGE_TOO_LARGE"),
    )
]

REJECTED_CONNECTIONS = [
    ConnectionRejected(
        time_ms=START + minute * MINUTE,
        last_ms=START + minute * MINUTE + 1,
        gateway=f"weir-{minute % 2}",
        reason=reason,
        address=address,
        listener="clients",
        user=user,
        count=minute + 1,
    )
    for minute, reason, address, user in (
        (0, "max_per_ip", "10.0.0.9", None),
        (90, "max_per_ip", "10.0.0.9", None),
        (91, "authentication", "10.0.0.8", None),
        (92, "max_per_user", "10.0.0.8", "greedy"),
    )
]

SHADOWS = [
    ShadowSample(
        time_ms=START + minute * MINUTE,
        gateway=f"weir-{gateway}",
        kind="produce",
        user=user,
        group=group,
        quota="user=greedy" if user else "group=jobs",
        limit=500.0 if minute < 100 else 600.0,
        amount=minute * 1000.0,
        active_seconds=20 + gateway,
        count=count,
        throttle_ms=count * 1_500,
        throttle_max_ms=2_000 + minute if count else 0,
    )
    for minute, gateway, user, group, count in (
        (10, 0, "greedy", None, 3),
        (10, 0, "greedy", None, 1),
        (10, 1, "greedy", None, 0),
        (90, 0, "greedy", None, 5),
        (130, 0, "greedy", None, 7),
        (11, 0, None, "jobs", 0),
    )
]

GROUP_RIGHTS = [
    GroupSample(
        time_ms=START + minute * MINUTE,
        gateway=f"weir-{gateway}",
        kind="produce",
        group=group,
        parent=None if group == "cluster" else "cluster",
        guarantee=400.0 if group == "payments" else 0.0,
        entitlement=entitlement,
        waited_seconds=waited + gateway if group == "payments" and waited else 0,
    )
    for minute, waited in ((20, 0), (21, 0), (22, 0), (23, 40), (24, 40), (25, 20), (25, 15), (70, 0))
    for gateway in range(2)
    for group, entitlement in (("cluster", 1000.0), ("payments", 500.0), ("batch", 300.0), ("night", 200.0))
]
"""The group `night` is idle."""

VOLUME_CHANGES = [
    VolumeStateChanged(
        time_ms=START + int(minute * MINUTE),
        gateway=gateway,
        state=state,
        previous=previous,
        factor=factor,
        reason=reason,
        broker=2,
        volume="/var/kafka",
        capacity_bytes=1000,
        consumed_bytes=consumed,
        enforced=state != "THROTTLE",
    )
    for gateway, minute, previous, state, factor, reason, consumed in (
        ("weir-0", 20.5, "OPEN", "THROTTLE", 0.5, "soft_limit", 900),
        ("weir-0", 50, "THROTTLE", "PAUSE", 0.0, "hard_limit", 960),
        ("weir-0", 121, "PAUSE", "OPEN", 1.0, "recovered", 700),
        ("weir-2", 51, "OPEN", "PAUSE", 0.0, "hard_limit", 960),
        ("weir-2", 110, "OPEN", "OPEN", 1.0, "recovered", 700),  # started again after a kill
        ("weir-3", 30, "OPEN", "PAUSE", 0.0, "hard_limit", 960),  # without clients
        ("weir-3", 100, "PAUSE", "OPEN", 1.0, "recovered", 700),
    )
]

CONFIGS = [
    ConfigApplied(
        time_ms=START + 40 * MINUTE + 50 * SECOND * gateway,
        gateway=f"weir-{gateway}",
        result="success",
        config_version=str(7 + gateway),
        changes=("one", "two"),
    )
    for gateway in range(3)
]
"""One change that three gateways notice within two minutes."""

QUOTA_CHANGES = [
    QuotaChanged(
        time_ms=CHANGE + later,
        gateway=f"weir-{gateway}",
        kind="produce",
        quota="user=greedy",
        user="greedy",
        old_limit=old,
        new_limit=new,
        source="api",
        principal="User:admin",
    )
    for later, gateway, old, new in (
        (0, 0, 1000.0, 2000.0),
        (150, 1, 1000.0, 2000.0),
        (MINUTE, 0, 2000.0, 1000.0),
        (2 * MINUTE, 0, 1000.0, 2000.0),
    )
]
"""A change that two gateways report. One of them reports that it is taken back, and made again."""

EXPIRED_GRANTS = [
    GrantExpired(
        time_ms=CHANGE + 5 * MINUTE,
        gateway=f"weir-{gateway}",
        quota="user=greedy",
        user="greedy",
    )
    for gateway in range(2)
]


def _line(event: str, more: str) -> str:
    return f'{{"v":1,"type":"{event}","time_ms":{START},"gateway":"weir-0","kind":"produce",{more}}}'


def _throttle(longest: int, slots: str) -> str:
    more = f'"last_ms":{START},"throttle_ms":1,"throttle_max_ms":{longest},"throttle_slots":{{{slots}}}'
    return _line("throttle", more)


OUT_OF_RANGE = [
    _line("usage", '"amount":1e300'),
    _line("usage", f'"amount":1,"requests":{2**62}'),
    _throttle(2**62, '"1":1'),
    _line("usage", '"amount":-1e300'),
    _throttle(-(2**63), '"1":1'),
    _throttle(1, '"1":-1'),
    _throttle(1, f'"1":{2**62}'),
    _throttle(1, '"x":1'),
    _throttle(1, '"12345678901":1'),
    _throttle(1, '"704":1'),
    *(_line("usage", f'"amount":{amount}') for amount in (2**47 + 1, -(2**47) - 1, "NaN")),
    *(_line("usage", f'"amount":1,"{name}":-1') for name in ("requests", "active_seconds")),
    _throttle(1, '"1":1').replace(f'"last_ms":{START}', '"last_ms":-1'),
]

BAD_LINES = {
    "not JSON, or a field of a wrong type or size": [
        *("{", '{"v":1,"type":"usage","time_ms":"yesterday"}', "[1]", "\u0000\u0001"),
        *OUT_OF_RANGE,
    ],
    "not of version 1": ['{"v":2,"type":"usage","time_ms":1}', "{}"],
    "unknown type": ['{"v":1,"type":"gossip","time_ms":1,"gateway":"weir-0"}'],
    "a required field is missing": [f'{{"v":1,"type":"usage","time_ms":{START},"gateway":"weir-0","kind":"produce"}}'],
    "not in the folder of its hour": [
        f'{{"v":1,"type":"usage","time_ms":{START + HOUR},"gateway":"weir-0","kind":"produce","amount":1}}'
    ],
}
"""Invalid lines in a file of the first hour, by reason."""


def events() -> Sequence[Event]:
    """The scenario as events in the ledgers of three gateways."""
    ledger: list[Event] = [*TOPIC_REJECTIONS, *REJECTED_CONNECTIONS, *VOLUME_CHANGES, *CONFIGS, *QUOTA_CHANGES, *EXPIRED_GRANTS]
    ledger += [*SHADOWS, *GROUP_RIGHTS]
    ledger += [
        UsageSample(
            time_ms=use.at,
            gateway=use.gateway,
            kind=use.bucket.kind,
            user=use.bucket.user,
            client_id=use.bucket.client_id,
            ip=use.bucket.ip,
            group=use.bucket.group,
            quota=use.bucket.quota,
            limit=use.bucket.limit,
            amount=float(use.amount),
            requests=use.requests,
            latency_ms=use.latency_ms,
            active_seconds=use.seconds,
            partial=use.partial,
        )
        for use in uses()
    ]
    folds: dict[tuple[object, ...], list[Decision]] = defaultdict(list)
    for decision in decisions():
        folds[decision.at // 30_000, decision.gateway, decision.bucket, decision.broker, decision.api].append(decision)
    return ledger + [_folded(fold) for fold in folds.values()]


def _folded(fold: Sequence[Decision]) -> ThrottleEvent:
    slots: dict[int, int] = defaultdict(int)
    for decision in fold:
        slots[throttle_slot(decision.ms)] += 1
    longest = max(fold, key=lambda decision: decision.ms)
    early = [decision.early_ms for decision in fold if decision.early_ms is not None]
    bucket = longest.bucket
    return ThrottleEvent(
        time_ms=min(decision.at for decision in fold),
        last_ms=max(decision.at for decision in fold),
        gateway=longest.gateway,
        kind=bucket.kind,
        user=bucket.user,
        client_id=bucket.client_id,
        ip=bucket.ip,
        group=bucket.group,
        quota=bucket.quota,
        address=longest.address,
        broker=longest.broker,
        api=longest.api,
        count=len(fold),
        amount=float(sum(decision.amount for decision in fold)),
        rate=longest.rate,
        limit=bucket.limit,
        throttle_ms=sum(decision.ms for decision in fold),
        throttle_max_ms=longest.ms,
        throttle_slots=slots,
        early_count=len(early),
        early_ms=sum(early),
        early_max_ms=max(early, default=0),
        enforced=longest.enforced,
    )
