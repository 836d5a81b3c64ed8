"""Kafka's own quota tests as data, replayed step by step.

data/quota-vectors.json: what Kafka's unit tests feed in and assert, and some cases derived from its source by hand. Every kind
of vector is either replayed here or stands in `NOT_REPLAYED` with the reason.
"""

import io
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest

from gateway.alterations import Change, QuotaApiError
from gateway.features.connection_quotas.admission import HeldSockets
from gateway.features.connection_quotas.rules import AcceptLimits, ConnectionLimits, ConnectionQuotas, ConnectionSlot
from gateway.features.controller_mutations import handlers as mutations
from gateway.features.controller_mutations.costs import KnownTopics
from gateway.features.controller_mutations.rules import MutationQuota
from gateway.features.quota_api.rules import ListedQuotas, alteration, altered, described, with_brokers
from gateway.features.volume_quotas.limits import Limit, LimitType, Volume, VolumeUsage
from gateway.features.volume_quotas.rules import ClusterVolumes, VolumeState, VolumeVerdict
from gateway.proxy.channel_throttle import ChannelThrottle
from gateway.proxy.counters import Counters
from gateway.proxy.states import IllegalEventError, Mute, MuteEvent, MuteState
from gateway.quotas.bucket import Bucket
from gateway.quotas.engine import QuotaEngine
from gateway.quotas.entity import BOOTSTRAP, DEFAULT, ClientQuotaEntity, DynamicQuotas, EntityQuota
from gateway.quotas.meter import Window, throttle_time_ms
from gateway.quotas.quota_table import QuotaTable
from gateway.quotas.rate import SampledRate, WindowMeter
from gateway.quotas.settings import QuotaSettings
from gateway.quotas.token_bucket import TokenBucket
from gateway.steps import at_once
from protocol.bodies import client_quotas
from protocol.throttle import MAX_THROTTLE_MS
from tests.gateway.features.controller_mutations import mutation_session as m
from tests.gateway.proxy.transcript import SilentWire, Transcript
from tests.gateway.quotas.engines import bucket_of, rows_of
from tests.protocol import codec

VECTORS: list[dict[str, Any]] = json.loads((Path(__file__).parents[2] / "data" / "quota-vectors.json").read_text())

NOT_REPLAYED = {
    "combine": "the larger of the bandwidth and the request quota's delay: the request quota is the broker's",
    "connection_quota_realtime": "runs against the wall clock: tests/broker/test_connections.py has tests of its own",
    "client_side": "what a client does with throttle_time_ms: tests/broker asks real clients",
    "integration": "needs a cluster: tests/broker has tests of its own",
}

UNLIMITED_IN_KAFKA = float(2**63 - 1)
UNBOUNDED_IN_KAFKA = 1.7976931348623157e308

# Deliberate differences between Weir and Kafka: (case, index of the step) -> Weir's answer.
DEVIATIONS: dict[tuple[str, int], dict[str, Any]] = {
    # Kafka keeps the low 32 bits of a long delay, finds it negative and lets the client through.
    ("throttle time wraps past 2^31-1 ms", 1): {"eq": MAX_THROTTLE_MS},
    # In Kafka no default quota applies to a client without a client-id (KAFKA-13341).
    ("empty client id escapes <user>/<default client-id>", 1): {"eq": 1_990_000},
    # Kafka exempts its inter-broker listener from the broker's maximum, and closes other connections in favour of it. Brokers
    # don't connect through Weir, so no listener is exempt and no connection has to be closed.
    ("testMaxBrokerWideConnectionLimit", 6): {"eq": False},
    ("testMaxBrokerWideConnectionLimit", 7): {"raises": "Waits"},
    ("testMaxBrokerWideConnectionLimit", 8): {"eq": False},
    ("testMaxBrokerWideConnectionLimit", 10): {"raises": "Waits"},
    ("testMaxBrokerWideConnectionLimit", 12): {"eq": True},
    # Strimzi's factor expires above its validity, a cached volume at it. In Weir, a usage is stale at its validity for both.
    ("shouldNotExpireAtBoundary", 0): {"eq": True},
    ("shouldNotCountFallbackFactorAppliedWhenFactorIsValid", 1): {"eq": 1},
    # Strimzi lowers the byte quota of all producers to 1 byte/s. Weir leaves byte quotas alone and pauses the producers.
    ("shouldNotThrottleToZeroBytes / shouldThrottleOnAvailableRatio", 0): {"eq": UNBOUNDED_IN_KAFKA},
}


def check(case: str, index: int, expect: dict[str, Any] | None, actual: Any) -> None:
    expect = DEVIATIONS.get((case, index), expect)
    if expect is None:
        return
    ((how, value),) = expect.items()
    where = f"{case}, step {index}"
    match how:
        case "eq":
            assert actual == value, where
        case "lt" if value == 0:  # Kafka's helper goes below zero if the rate is below the quota; Weir's delay is then 0
            assert actual == 0, where
        case "gt":
            assert actual > value, where
        case "approx":
            assert actual == pytest.approx(value[0], abs=value[1]), where
        case "between":
            assert value[0] <= actual <= value[1], where
        case "raises" if value == "ThrottlingQuotaExceeded":
            assert actual == value, where
        case "raises" if isinstance(actual, QuotaApiError):
            assert ERRORS[actual.code] == value, where
        case "raises":
            assert isinstance(actual, RAISED[value]), where
        case _:
            pytest.fail(f"{where}: {how} is no expectation that is known here")


Step = Callable[[str, dict[str, Any], float | None], Any]


def window(config: dict[str, Any]) -> Window:
    return Window(config["num_samples"], float(config["window_s"]))


def replay_sampled_rate(config: dict[str, Any]) -> Step:
    rate = SampledRate(window(config))

    def step(op: str, args: dict[str, Any], now: float) -> Any:
        if op == "record":
            return rate.record(args["value"], now)
        return {"measure": rate.measure, "live_samples": rate.live_samples}[op](now)

    return step


def replay_token_bucket(config: dict[str, Any]) -> Step:
    burst_seconds = config["num_samples"] * float(config["window_s"])
    bucket = TokenBucket(float(config["quota"]), burst_seconds, config["base_ms"] / 1000)

    def step(op: str, args: dict[str, Any], now: float) -> Any:
        match op:
            case "record":
                return bucket.charge(args["value"], now)
            case "set_quota":
                return bucket.set_limit(args["quota"], now)
            case _:
                return {"measure": bucket.tokens}[op](now)

    return step


def replay_quota_utils(config: dict[str, Any]) -> Step:
    def step(op: str, args: dict[str, Any], now: float) -> Any:
        assert op == "throttle_time"
        seconds = float(config["window_s"])
        meter = WindowMeter(args["quota"], Window(args["num_samples"], seconds))
        delay = meter.charge(args["observed"] * (args["num_samples"] - 1) * seconds, now)
        # Only the broker's request quota and connection rates have a maximum delay.
        return min(throttle_time_ms(delay), args["max_ms"] or MAX_THROTTLE_MS)

    return step


class ReplayedManager:
    """The part of Kafka's `ClientQuotaManager` that its tests use: the engine, and one throttle per throttled client."""

    # The vectors of the request quota count a thread's time in ms against a percentage. One percent is 10 ms per second.
    MICROSECONDS, MICROSECONDS_OF_A_PERCENT = 1_000, 10_000

    def __init__(self, config: dict[str, Any], broker: int | None = None) -> None:
        """`broker`: the manager is this broker's, and the engine has buckets for each broker."""
        self.broker = broker
        self.window = window(config)
        self.longest_ms = config.get("max_throttle_ms", MAX_THROTTLE_MS)
        self.unit = self.MICROSECONDS_OF_A_PERCENT if "unit" in config else 1
        self.limits: dict[ClientQuotaEntity, float] = {}
        self.engine = QuotaEngine(self.settings(), config["base_ms"] / 1000)
        self.counters = Counters()
        self.throttles: list[ChannelThrottle] = []
        self.reaped = 0

    def step(self, op: str, args: dict[str, Any], now: float) -> Any:
        return getattr(self, op)(now, **args)

    def settings(self) -> QuotaSettings:
        quotas = tuple(EntityQuota(entity, {"producer_byte_rate": limit}) for entity, limit in self.limits.items())
        return QuotaSettings(quotas, algorithm="window", window=self.window, by_broker=self.broker is not None)

    def bucket(self, user: str, client_id: str, now: float) -> Bucket:
        return self.engine.acquire_path("produce", user, client_id, now, broker=self.broker or BOOTSTRAP)[0]

    def update_quota(self, now: float, user: str | None, client_id: str | None, quota: float | None) -> None:
        entity = ClientQuotaEntity(*(DEFAULT if name == "<default>" else name for name in (user, client_id)))
        self.limits.pop(entity, None)
        if quota is not None:
            self.limits[entity] = quota * self.unit
        self.engine.apply(self.settings(), now)

    def resolve(self, user: str, client_id: str) -> Any:
        return QuotaTable(self.settings().quotas).resolve("producer_byte_rate", user, client_id)

    def quota(self, now: float, user: str, client_id: str) -> float:
        limit = self.resolve(user, client_id).limit
        return UNLIMITED_IN_KAFKA if limit is None else limit

    def tags(self, now: float, user: str, client_id: str) -> list[str]:
        tags = self.resolve(user, client_id).tags
        return [tags.user or "", tags.client_id or ""]

    def max_value_in_window(self, now: float, user: str, client_id: str) -> float:
        bucket = self.bucket(user, client_id, now)
        self.engine.release(bucket, now)
        return UNBOUNDED_IN_KAFKA if bucket.meter is None else bucket.meter.capacity

    def record(self, now: float, user: str, client_id: str, value: int = 0, value_ms: float = 0) -> int:
        bucket = self.bucket(user, client_id, now)
        delay, _ = bucket.charge(value or round(value_ms * self.MICROSECONDS), now)
        self.engine.release(bucket, now)
        return min(throttle_time_ms(delay), self.longest_ms)

    def throttle(self, now: float, ms: int) -> None:
        bucket = self.bucket("ANONYMOUS", "unknown", now)
        self.throttles.append(ChannelThrottle(SilentWire(), self.counters))
        self.throttles[-1].start((ms / 1000, True), now, bucket, None)

    def queue_size(self, now: float) -> int:
        return self.counters.muted

    def reap(self, now: float) -> int:
        self.reaped += sum(throttle.wake(now) for throttle in self.throttles)
        return self.reaped

    def drop_sensor(self, now: float, name: str) -> None:
        """A bucket holds all its values itself, so no separate sensor can expire."""

    def sensor_exists(self, now: float, name: str) -> bool:
        user, client_id = name.removeprefix("ProduceThrottleTime-").removeprefix("Produce-").split(":")
        return (user, client_id) in {(row.user, row.client_id) for row in rows_of(self.engine, now)}


def replay_two_brokers(config: dict[str, Any]) -> Step:
    """Each step is taken at two brokers that share an engine, one after the other: each has to decide as if it were alone."""
    first, second = (ReplayedManager(config, broker) for broker in (1, 2))
    second.engine, second.limits = first.engine, first.limits

    def step(op: str, args: dict[str, Any], now: float | None) -> Any:
        of_first, of_second = (manager.step(op, args, now) for manager in (first, second))
        assert of_first == of_second
        return of_first

    return step


class ConnectionThrottled(Exception):
    """Held for `seconds`, then closed."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds


class TooManyConnections(Exception):
    """Closed at once."""


class Waits(Exception):
    """Left in the listening socket's queue."""


class IllegalArgument(Exception):
    """There is no connection to close."""


RAISED: dict[str, type[Exception]] = {
    "IllegalState": IllegalEventError,
    "ConnectionThrottled": ConnectionThrottled,
    "TooManyConnections": TooManyConnections,
    "Waits": Waits,
    "IllegalArgument": IllegalArgument,
}
"""What the vectors call an exception, and what stands for it here."""


class ReplayedConnections:
    """The part of Kafka's `ConnectionQuotas` and acceptors that its tests use."""

    UNLIMITED_RATE = 2**31 - 1

    def __init__(self, config: dict[str, Any]) -> None:
        self.ip_rates: dict[str | None, float] = {}
        self.window = window({"num_samples": 11, "window_s": 1} | config)
        self.now = config["base_ms"] / 1000
        self.engine = QuotaEngine(self.settings(), self.now)
        # Such a high limit throttles no client, but the rate is measured.
        rate = float(self.UNLIMITED_RATE)
        self.limits = ConnectionLimits(
            config.get("max_connections_per_ip", self.UNLIMITED_RATE),
            gateway=AcceptLimits(config.get("max_connections"), rate),
            listeners={name: AcceptLimits(config.get("listener_max"), rate) for name in config["listeners"]},
        )
        self.quotas = ConnectionQuotas(self.engine, self.limits, self.now)
        self.throttles: Counter[str] = Counter()
        self.held = HeldSockets(100)
        # Kafka counts an excess connection until its acceptor has closed it. Weir closes the connection at once.
        # These connections are in between.
        self.refused: Counter[str] = Counter()

    def step(self, op: str, args: dict[str, Any], now: float | None) -> Any:
        self.now = self.now if now is None else now
        try:
            return getattr(self, op)(**args)
        except (ConnectionThrottled, TooManyConnections, Waits, IllegalArgument) as error:
            return error

    def settings(self) -> QuotaSettings:
        quotas = tuple(
            # A quota is above 0 in Weir, so the smallest quota replaces 0.
            EntityQuota(ClientQuotaEntity(ip=DEFAULT if ip is None else ip), {"connection_creation_rate": rate or 1e-9})
            for ip, rate in self.ip_rates.items()
        )
        return QuotaSettings(quotas, algorithm="window", window=self.window)

    def set_ip_rate(self, ip: str | None, rate: float | None) -> None:
        self.ip_rates.pop(ip, None)
        if rate is not None:
            self.ip_rates[ip] = rate
        self.engine.apply(self.settings(), self.now)
        self.quotas.apply(self.limits, self.now)

    def open(self, listener: str, ip: str) -> str:
        if self.quotas.wait(listener, self.now) > 0:
            raise Waits
        verdict = self.quotas.accept(listener, ip, self.now)
        if isinstance(verdict, ConnectionSlot):
            return "ok"
        if verdict.reason == "max_per_ip":
            self.refused[ip] += 1
            raise TooManyConnections
        self.throttles[listener] += 1
        assert self.held.hold(io.BytesIO(), self.now + verdict.delay)
        raise ConnectionThrottled(verdict.delay)

    def open_until_throttled(self, listener: str, ip: str, n: int) -> str:
        for _ in range(n):
            self.open(listener, ip)
        return "ok"

    def open_many(self, listener: str, ip: str, n: int, interval_ms: int, expect_throttle: bool = False) -> float:
        """The connections per second of a client that connects every `interval_ms` and waits while it is throttled."""
        start, before = self.now, self.quotas.count(ip)
        due = start
        for _ in range(n):
            due += interval_ms / 1000
            try:
                self.open(listener, ip)
            except ConnectionThrottled as error:
                assert expect_throttle
                self.now += error.seconds
            self.now = max(self.now, due)
        return (self.quotas.count(ip) - before) / round(self.now - start, 3)

    def close(self, listener: str, ip: str, n: int) -> None:
        refused = min(n, self.refused[ip])
        self.refused[ip] -= refused
        try:
            for _ in range(n - refused):
                self.quotas.release(listener, ip)
        except ValueError as error:
            raise IllegalArgument from error

    def count(self, ip: str) -> int:
        return self.quotas.count(ip) + self.refused[ip]

    def rate(self, ip: str | None = None, listener: str | None = None, broker: bool = False) -> float:
        if ip is not None:
            bucket = self.engine.acquire_ip("connection", ip, self.now)
            self.engine.release(bucket, self.now)
            return bucket.rate(self.now)
        gate = self.quotas.gateway if broker else self.quotas.listeners[listener]
        return gate.meter.rate(self.now)

    def ip_quota(self, ip: str) -> float:
        limit = QuotaTable(self.settings().quotas).resolve_ip("connection_creation_rate", ip).limit
        return self.UNLIMITED_RATE if limit is None else limit

    def ip_throttles(self, listener: str | None = None) -> int:
        return self.throttles.total() if listener is None else self.throttles[listener]

    def slot_available(self, listener: str) -> bool:
        return self.quotas.wait(listener, self.now) == 0

    def max_exceeded(self, listener: str) -> bool:
        gate = self.quotas.gateway
        return gate.connections > (gate.limits.max_connections or self.UNLIMITED_RATE)

    def held_sockets(self) -> int:
        return len(self.held)

    def reap_sockets(self) -> int:
        self.held.close_due(self.now)
        return len(self.held)


def replay_delay_queue(config: dict[str, Any]) -> Step:
    throttles: dict[str, ChannelThrottle] = {}
    engine = QuotaEngine(QuotaSettings(), 0.0)

    def step(op: str, args: dict[str, Any], now: float) -> Any:
        throttle = throttles.setdefault(args["id"], ChannelThrottle(SilentWire(), Counters()))
        if op == "add":
            throttle.start((args["ms"] / 1000, True), now, bucket_of(engine, "produce", "u", args["id"], now), None)
        return throttle.time_left_ms(now)

    return step


def replay_mute_state(config: dict[str, Any]) -> Step:
    mute = Mute()
    mute.state = MuteState[config.get("initial", "NOT_MUTED")]

    def step(op: str, args: dict[str, Any], now: float) -> Any:
        if op == "state":
            return mute.state.name
        try:
            return mute.fire(MuteEvent[args["name"].upper()])
        except IllegalEventError as error:
            return error

    return step


class ReplayedQuotaApi:
    """DescribeClientQuotas and AlterClientQuotas of an administrator, through a gateway to a broker."""

    ADDRESSES = ("1.2.3.4", "2.3.4.5")

    def __init__(self, config: dict[str, Any]) -> None:
        self.own: DynamicQuotas = {}
        self.brokers: DynamicQuotas = {}

    def step(self, op: str, args: dict[str, Any], now: float) -> Any:
        return getattr(self, op)(**args)

    def alter(self, entity: dict[str, str | None], ops: dict[str, float | None], validate_only: bool) -> str:
        entry = client_quotas.AlterEntry(parts_of(entity), tuple(client_quotas.Op(*op) for op in ops.items()))
        found = alteration([entry], self.ADDRESSES.__contains__)
        if not validate_only:
            self.own = altered(self.own, found.changes)
            sent = [op for each in found.for_broker for op in each.ops]
            name = ClientQuotaEntity(**{key.replace("-", "_"): DEFAULT if n is None else n for key, n in entity.items()})
            self.brokers = altered(self.brokers, [Change(name, *op) for op in sent])
        (result,) = found.results.values()
        return ERRORS[result.error_code]

    def describe(self, filters: list[Any], strict: bool) -> list[client_quotas.DescribedEntity]:
        components = [client_quotas.Component(kind, MATCHES[how], match) for kind, how, match in filters]
        shown = (
            at_once(described(ListedQuotas(quotas, (), QuotaTable()), components, strict=strict))
            for quotas in (self.own, self.brokers)
        )
        return at_once(with_brokers(*shown))

    def describe_exact(self, entity: dict[str, str | None]) -> dict[str, float] | None:
        filters = [(kind, "default" if name is None else "exact", name) for kind, name in entity.items()]
        found = {frozenset(each.entity): dict(each.values) for each in self.describe(filters, strict=True)}
        return found.get(frozenset(parts_of(entity)))

    def describe_count(self, filter: list[Any], strict: bool) -> int | QuotaApiError:  # noqa: A002 - the vectors' word
        try:
            return len(self.describe(filter, strict))
        except QuotaApiError as error:
            return error


ERRORS = {0: "NONE", 35: "UNSUPPORTED_VERSION", 42: "INVALID_REQUEST"}
MATCHES = {"exact": 0, "default": 1, "specified": 2}


def parts_of(entity: dict[str, str | None]) -> tuple[client_quotas.EntityPart, ...]:
    return tuple(client_quotas.EntityPart(*part) for part in entity.items())


def mutation_settings(config: dict[str, Any]) -> QuotaSettings:
    limit = config["quota"]
    limits = {} if limit is None else {"controller_mutation_rate": float(limit)}
    return QuotaSettings((EntityQuota(ClientQuotaEntity(None, "etl"), limits),), window=window(config))


def replay_controller_quota(config: dict[str, Any]) -> Step:
    engine = QuotaEngine(mutation_settings(config), config["base_ms"] / 1000)
    bucket = bucket_of(engine, "controller_mutation", "ANONYMOUS", "etl", config["base_ms"] / 1000)
    strict = config["mode"] == "strict"
    quota = MutationQuota((bucket,), strict=strict)

    def record(permits: int, now: float) -> bool:
        """Charge at once, as Kafka's controller does. A refused operation ends its request."""
        nonlocal quota
        if not quota.refused:
            quota = MutationQuota((bucket,), strict=strict)
        admitted = quota.admit(permits, now)
        if admitted:
            quota.charge(permits, now)
        quota.settle(now)
        return admitted

    def step(op: str, args: dict[str, Any], now: float) -> Any:
        match op:
            case "record":
                return "ok" if record(args["permits"], now) else "ThrottlingQuotaExceeded"
            case "is_exceeded":
                return quota.time_left(now) > 0.0
            case _:
                return {"throttle_time": throttle_time_ms(quota.time_left(now))}[op]

    return step


class ReplayedController:
    """Requests that change topics, sent through a session to a controller that executes all of them."""

    NAMES: ClassVar = {0: "NONE", 89: "THROTTLING_QUOTA_EXCEEDED"}

    def __init__(self, config: dict[str, Any]) -> None:
        base = config["base_ms"] / 1000
        known = KnownTopics()
        self.t = Transcript(engine=QuotaEngine(mutation_settings(config), base), handlers=mutations.handler_factories(known))
        self.t.now = base
        self.controller = m.Controller(self.t, config["existing"])
        self.sent: dict[str, int] = {}
        self.errors: dict[str, int] = {}

    def step(self, op: str, args: dict[str, Any], now: float) -> Any:
        if now > self.t.now:
            self.t.passes(now - self.t.now)
        match op:
            case "request":
                return self.request(args["api"], args["version"], args["topics"])
            case "retry_rejected":
                # The client waits for Weir's throttle time. Kafka's test retries until a request is admitted.
                self.t.passes(max(self.t.core.throttle.until - self.t.now, 0.0))
                rejected = {name: count for name, count in self.sent.items() if self.errors[name] == 89}
                return self.request(args["api"], args["version"], rejected)
            case _:
                return {"last_errors_sorted": sorted(self.NAMES[error] for error in self.errors.values())}[op]

    def request(self, api: str, version: int, topics: dict[str, int]) -> int:
        key = {"CreateTopics": m.CREATE, "DeleteTopics": m.DELETE, "CreatePartitions": m.GROW}[api]
        frame = {
            m.CREATE: lambda: m.create(1, topics, version=version),
            m.DELETE: lambda: m.delete(1, list(topics), version=version),
            m.GROW: lambda: m.grow(1, topics, version=version),
        }[key]()
        self.t.client_sends(frame)
        self.controller.serve()
        got, self.t.client_inbox = bytes(self.t.client_inbox), bytearray()
        answer = codec.decode_response(key, version, got)
        results = answer[{m.CREATE: "topics", m.DELETE: "responses", m.GROW: "results"}[key]]
        self.sent = topics
        self.errors = {result["name"]: result["error_code"] for result in results}
        throttle: int = answer["throttle_time_ms"]
        return throttle


class ReplayedVolumes:
    """The part of Strimzi's quotas plugin that its tests use. Weir gets the plugin's observations as messages of brokers."""

    CAPACITY, EMPTY = 2_000, 2_000

    def __init__(self, config: dict[str, Any]) -> None:
        self.valid = config.get("valid_ms", 300_000) / 1000
        assert config.get("fallback", 0.0) == 0.0
        self.soft = self.hard = Limit(LimitType.MIN_FREE_BYTES, 0)
        match config.get("policy"):
            case "min_available_bytes":
                self.soft = self.hard = Limit(LimitType.MIN_FREE_BYTES, config["limit"])
            case "min_available_ratio":
                self.soft = self.hard = Limit(LimitType.MIN_FREE_PERCENTAGE, config["limit"] * 100)
            case "soft_hard":
                self.soft, self.hard = (Limit(LimitType.CONSUMED_SPACE, config[name]) for name in ("soft", "hard"))
        self.volumes = ClusterVolumes(self.valid, VolumeState.PAUSE)
        self.known: frozenset[int] = frozenset()
        self.expirations = 0
        self.verdict: VolumeVerdict | None = None
        self.produce, self.excluded = config.get("produce"), config.get("excluded", "")
        self.observe_success(0.0, 1.0)

    def step(self, op: str, args: dict[str, Any], now: float) -> Any:
        if op == "factor":
            return self.factor(now, **args)
        return getattr(self, op)(now, **args)

    def tell(self, now: float, volumes: list[tuple[int, str, int, int]]) -> None:
        """`volumes`: broker, folder, capacity, available bytes."""
        for broker in {broker for broker, *_ in volumes}:
            of_broker = tuple(Volume(name, size, max(size - free, 0)) for each, name, size, free in volumes if each == broker)
            self.volumes.take_usage(VolumeUsage(broker, now, self.hard, self.soft, of_broker), 0.0, now)
        self.known |= {broker for broker, *_ in volumes}

    def check(self, now: float) -> VolumeVerdict:
        self.volumes.take_brokers(self.known, now)
        before, self.verdict = self.verdict, self.volumes.judge(now)
        self.expirations += bool(self.verdict.unknown and not (before and before.unknown))
        return self.verdict

    def observe_failure(self, now: float) -> None:
        self.check(now)

    def observe_success(self, now: float, factor: float) -> None:
        assert factor == 1.0
        self.tell(now, [(0, "d0", self.CAPACITY, self.EMPTY)])
        if self.valid > 0.0:
            assert self.check(now).factor == factor

    def fallback_count(self, now: float) -> int:
        return self.expirations

    def factor(self, now: float, volumes: list[dict[str, Any]] | None = None) -> float:
        if volumes is not None:
            self.tell(now, [(int(each["broker"]), each["dir"], each["capacity"], each["available"]) for each in volumes])
        return self.check(now).factor

    def expired(self, now: float, valid_from_ms: float) -> bool:
        assert valid_from_ms == 0
        return bool(self.check(now).unknown)

    def observe(self, now: float, volumes: list[tuple[str, str, int]]) -> list[list[Any]]:
        self.tell(now, [(int(broker), name, self.CAPACITY, free) for broker, name, free in volumes])
        rows = [(row.broker, row.volume) for row in self.check(now).rows if row.volume.name != "d0"]
        return [[str(broker), volume.name, volume.capacity - volume.consumed] for broker, volume in rows]

    def limit(self, now: float, type: str, factor: float, principal: str = "ANONYMOUS") -> float:  # noqa: A002 - the vectors' word
        """The byte quota of producers. `factor`, the one for full volumes, does not change it."""
        assert type == "PRODUCE"
        limits = {} if self.produce is None else {"producer_byte_rate": float(self.produce)}
        quotas = [EntityQuota(ClientQuotaEntity(DEFAULT), limits)]
        users = [user.removeprefix("User:") for user in self.excluded.split(";") if user]
        quotas += [EntityQuota(ClientQuotaEntity(user), exempt=True) for user in users]
        found = QuotaTable(quotas).resolve("producer_byte_rate", principal, "etl").limit
        return UNBOUNDED_IN_KAFKA if found is None else found


VOLUME_KINDS = ("volume_factor", "volume_throttle", "volume_expiry", "volume_limit", "volume_cache")

REPLAYED: dict[str, Callable[[dict[str, Any]], Step]] = {
    "sampled_stat": replay_sampled_rate,
    "rate": replay_sampled_rate,
    "quota_utils": replay_quota_utils,
    "token_bucket": replay_token_bucket,
    "client_quota": lambda config: ReplayedManager(config).step,
    "delay_queue": replay_delay_queue,
    "mute_state": replay_mute_state,
    "connection_quota": lambda config: ReplayedConnections(config).step,
    "quota_api": lambda config: ReplayedQuotaApi(config).step,
    "controller_quota": replay_controller_quota,
    "controller_request": lambda config: ReplayedController(config).step,
    **dict.fromkeys(VOLUME_KINDS, lambda config: ReplayedVolumes(config).step),
}


def test_every_vector_kind_is_replayed_or_excluded():
    assert REPLAYED.keys() & NOT_REPLAYED.keys() == set()
    assert {vector["kind"] for vector in VECTORS} == REPLAYED.keys() | NOT_REPLAYED.keys()
    assert all(vector["exec"] for vector in VECTORS if vector["kind"] in REPLAYED)


@pytest.mark.parametrize(
    "vector", [v for v in VECTORS if v["kind"] in REPLAYED], ids=lambda v: f"{v['suite']}-{v['case']}".replace(" ", "-")
)
def test_vector_steps_give_recorded_results(vector):
    # Strimzi's tests check a nanosecond before and after a moment. A float of seconds since 1970 is not that precise.
    base_ms = 0 if vector["kind"] in VOLUME_KINDS else vector["config"]["base_ms"]
    step = REPLAYED[vector["kind"]](vector["config"])
    for index, each in enumerate(vector["steps"]):
        # A step without a time runs at the time of the step before it.
        actual = step(each["op"], each["args"], None if each["t_ms"] is None else (base_ms + each["t_ms"]) / 1000)
        expect = each["expect"]
        if vector["kind"] == "delay_queue":  # Kafka's delay continues below zero, Weir's remaining time stops at zero
            expect = {how: max(value, 0) for how, value in expect.items()}
        check(vector["case"], index, expect, actual)


@pytest.mark.parametrize(
    "vector", [v for v in VECTORS if v["kind"] == "client_quota"], ids=lambda v: v["case"].replace(" ", "-")
)
def test_scope_broker_gives_kafkas_results_at_two_brokers(vector):
    step = replay_two_brokers(vector["config"])
    for index, each in enumerate(vector["steps"]):
        now = None if each["t_ms"] is None else (vector["config"]["base_ms"] + each["t_ms"]) / 1000
        check(vector["case"], index, each["expect"], step(each["op"], each["args"], now))


def test_deviations_name_existing_steps():
    steps = {(vector["case"], index) for vector in VECTORS for index in range(len(vector["steps"]))}
    assert DEVIATIONS.keys() <= steps


@pytest.mark.parametrize(
    ("seconds", "ms"),
    [
        (0.0, 0),
        (0.000499, 0),
        (0.0005, 1),
        (0.0015, 2),
        (0.0025, 3),  # half up, not to even
        (1.2344, 1234),
        (2_147_483.646, MAX_THROTTLE_MS - 1),
        (2_147_483.648, MAX_THROTTLE_MS),
        (1e300, MAX_THROTTLE_MS),
    ],
)
def test_milliseconds_round_half_up_and_saturate(seconds, ms):
    assert throttle_time_ms(seconds) == ms
