"""The rules that hold in every run, whatever the faults: at every moment, and at the end.

Only this module and `gateway_host` look inside of gateways.
"""

from collections import Counter, deque
from collections.abc import Collection, Iterable
from itertools import product
from math import inf
from typing import Final

from gateway.features.sharing.shared_usage import SMALL
from gateway.features.topic_quotas.rules import TOPIC
from gateway.proxy.broker_end import CORE, WRITE_BUFFER_HIGH
from gateway.proxy.connection import Session
from gateway.proxy.in_flight import MAX_IN_FLIGHT, MAX_OWN_BYTES, OwnRequest
from gateway.proxy.states import CLIENT_UNREAD, IN_FLIGHT, MUTED
from gateway.quotas.entity import BOOTSTRAP
from loadtest.simulation.brokers import Cluster
from loadtest.simulation.clients import CONNECTIONS
from loadtest.simulation.gateway_host import GatewayHost, Incarnation, transport_of
from loadtest.simulation.kafka_messages import ALTERED, ALTERED_KEYS, CLIENT_IDS
from loadtest.simulation.network import Verdicts
from loadtest.simulation.plan import Plan
from loadtest.simulation.sockets import MAX_READ
from loadtest.simulation.topic_messages import CLIENT_TOPICS

MAX_BUFFERED: Final = WRITE_BUFFER_HIGH + MAX_READ + MAX_OWN_BYTES
"""docs/reference/bounds.md: 256 KiB and one chunk, and the local responses that were waiting."""

TOPIC_SECONDS: Final = 0.3
"""The most that a message of `sharing` takes in a run without faults: two requests over slow lines."""

JOBS: Final = ("job-1", "job-2")
"""The members of the group."""

DISTURBS_SHARING: Final = frozenset({
    "kill_gateway", "restart_gateway", "lose_topics", "delete_topic", "stop_broker", "slow_broker", "reload",
})  # fmt: skip

ENDS_CONNECTIONS: Final = frozenset({
    "cut_clients", "cut_brokers", "cut_client", "reset_client", "stop_broker", "kill_gateway", "restart_gateway",
})  # fmt: skip


def check_sessions(hosts: Iterable[GatewayHost], verdicts: Verdicts) -> None:
    """No connection waits without a cause that ends, and no buffer exceeds its bound."""
    for host in hosts:
        for session in host.sessions():
            problem = _waits_for_nothing(session) or _holds_too_much(session)
            if problem:
                verdicts.fail(
                    "connection stuck" if problem.startswith("waits") else "memory", f"{host.name}, {session.peer}: {problem}"
                )


def _waits_for_nothing(session: Session) -> str:
    """The problem of a session that nothing will wake up, or ""."""
    client = transport_of(session)
    if client is None or client.is_closing():
        return ""
    core, timer = session._core, session._timer
    throttle, direction = core.throttle, core.requests._direction
    pending = throttle._entry in core.in_flight or core.responses.unfinished
    if throttle.active and (timer is None or timer.cancelled()) and not pending:
        return f"waits, muted ({throttle.cause}) without a timer and without a pending response"
    if direction.reasons & MUTED and not throttle.active:
        return "waits, paused for a mute that is over"
    if direction.reasons & IN_FLIGHT and not core.in_flight:
        return "waits, paused for requests in flight, of which there are none"
    if direction.reasons & CLIENT_UNREAD and not client.get_write_buffer_size():
        return "waits, paused for a client that has read everything"
    if client.paused != bool(session._paused):
        return (
            f"waits, the transport is {'paused' if client.paused else 'read'} and the session's reasons are {session._paused}"
        )
    held = bool(core.requests._splitter.held)
    if session._paused == CORE and not (direction.reasons or held or throttle.active or session.draining):
        return "waits, not read without a reason"
    return ""


def _holds_too_much(session: Session) -> str:
    client = transport_of(session)
    for name, transport in (("client", client), ("broker", session._broker)):
        buffered = 0 if transport is None else transport.get_write_buffer_size()
        if buffered > MAX_BUFFERED:
            return f"{buffered} bytes wait for the {name}"
    in_flight = sum(not isinstance(entry.special, OwnRequest) for entry in session._core.in_flight)
    return f"{in_flight} requests are in flight" if in_flight > MAX_IN_FLIGHT + MAX_READ // 30 else ""


def check_charges(plan: Plan, incarnation: Incarnation, name: str, verdicts: Verdicts) -> None:
    """The buckets of a gateway have what it forwarded: Produce bytes, Fetch responses, created partitions."""
    totals = incarnation.totals
    if plan.settings[0].topics is None:  # otherwise rejected batches are charged, and not forwarded
        _check_produced(plan, incarnation, name, verdicts)
    fetched = sum(bucket.amount_total for bucket in incarnation.buckets("fetch"))
    takes_back = any(settings.window for settings in plan.settings)  # Kafka's algorithm charges no response that it refuses
    if fetched != totals.fetched and not (takes_back and fetched < totals.fetched):
        text = f"{name}: {fetched} bytes of Fetch are charged, {totals.fetched} came from brokers"
        verdicts.fail("charged is not forwarded", text)
    unsent_partitions = sum(tap.unsent_partitions() for tap in incarnation.taps)
    created = sum(bucket.amount_total for bucket in incarnation.buckets("controller_mutation"))
    if not totals.created_least <= created <= totals.created_most + unsent_partitions:
        text = f"{name}: {created} partitions are charged, brokers created {totals.created_least} to {totals.created_most}"
        verdicts.fail("refund", text)


def _check_produced(plan: Plan, incarnation: Incarnation, name: str, verdicts: Verdicts) -> None:
    """Each bucket has the bytes of its own clients, and so has each shadow limit."""
    totals = incarnation.totals
    unsent = sum((tap.unsent_bytes() for tap in incarnation.taps), Counter())
    clients = {client.number: client for client in plan.clients}
    expected: Counter[tuple[str | None, str | None, int | None]] = Counter()
    for number, client in clients.items():
        uses = [*totals.produced.get(number, []), *totals.unanswered.get(number, [])]
        node = (client.broker or BOOTSTRAP) if plan.settings[0].by_broker else None
        tags = (client.user, None) if client.user else (None, client.client_id)
        expected[*tags, node] += sum(amount for _, amount in uses) + unsent[number]
    measured = {"charged": incarnation.buckets("produce")}
    if plan.settings[0].shadow is not None:
        shadows = incarnation.parts.engine.shadows.buckets()
        measured["in shadow limits"] = [bucket for bucket in shadows if bucket.kind.name == "produce"]
    for what, buckets in measured.items():
        found: Counter[tuple[str | None, str | None, int | None]] = Counter()
        for bucket in buckets:
            tags = bucket.resolution.tags
            found[tags.user, tags.client_id, tags.broker] += bucket.amount_total
        if +found != +expected:
            text = f"{name}: bytes of Produce are {what}: {dict(+found)}, and the clients have sent {dict(+expected)}"
            verdicts.fail("charged is not forwarded", text)


def check_topics(plan: Plan, incarnation: Incarnation, name: str, verdicts: Verdicts) -> None:
    """Topic quotas count the bytes that brokers have accepted, and bound them for all topics together.

    The rate falls behind by the requests in flight, and it forgets a whole sample at a time.
    """
    threshold, quotas = plan.settings[0].topics, incarnation.gateway._features.topics.quotas
    if threshold is None or quotas is None:
        return
    appended = incarnation.totals.appended
    for topic in CLIENT_TOPICS:
        use = quotas.whole.known(TOPIC, topic)
        counted, accepted = 0 if use is None else use.appended_bytes, sum(size for each, _, size in appended if each == topic)
        if counted != accepted:
            text = f"{name}: {counted} bytes of {topic} are counted, and brokers have accepted {accepted}"
            verdicts.fail("topic bytes", text)
    over = largest_debt([(when, size) for _, when, size in appended], threshold, threshold * plan.settings[0].samples)
    in_flight = sum(client.depth * client.size * len(client.topics) for client in plan.clients)
    if over > threshold + in_flight:
        text = f"{name} is {over:.0f} bytes over the threshold of all topics, the bound is {threshold + in_flight}"
        verdicts.fail("topic overshoot", text)


def quotas_agree(hosts: Iterable[GatewayHost]) -> bool:
    """True if all gateways have the same quotas of the quota API."""
    engines = [host.running.parts.engine for host in hosts if host.running is not None]
    return all(engine.settings.dynamic == engines[0].settings.dynamic for engine in engines)


def lost_alteration(hosts: Iterable[GatewayHost], cluster: Cluster) -> str:
    """A confirmed quota that is not in effect, although no later request has replaced it or may have; "" if there is none."""
    for client_id, key in product(CLIENT_IDS, ALTERED_KEYS):
        altered = [each for each in cluster.alterations.values() if (each.target, each.key) == (client_id, key)]
        confirmed = [each for each in altered if each.confirmed is not None]
        if not confirmed:
            continue
        last = max(confirmed, key=lambda each: each.confirmed or 0.0)
        possible = {each.value for each in altered if (each.confirmed or inf) >= last.sent}
        for host in hosts:
            if host.running is not None:
                found = _dynamic_limit(host.running, client_id, key)
                if found not in possible:
                    return f"{host.name} has {found} for {client_id}: {key}, and {last.value} was confirmed at {last.confirmed}"
    return ""


def _dynamic_limit(incarnation: Incarnation, client_id: str, key: str) -> float | None:
    for entity, limits in incarnation.parts.engine.settings.dynamic.items():
        if entity.client_id == client_id:
            limit = limits.get(key)
            return None if limit is None else float(limit)
    return None


def check_unanswered(plan: Plan, cluster: Cluster, verdicts: Verdicts) -> None:
    """Every Produce with acks=0 of a client that has left reaches a broker, unless a fault ends connections.

    The quotas of such clients let all their bytes pass before the run ends. A drain ends connections with unread requests.
    """
    if {fault.kind for fault in plan.faults} & ENDS_CONNECTIONS:
        return
    leaving = {client.number for client in plan.clients if client.hops}
    for number, sent in cluster.sent.items():
        if sent.acks == 0 and not sent.forwarded and sent.connection // CONNECTIONS in leaving:
            verdicts.fail("request lost", f"request {number} (PRODUCE with acks=0) has reached no broker")


def check_protocol_errors(incarnation: Incarnation, name: str, verdicts: Verdicts) -> None:
    """Clients and brokers keep to the protocol, but for clients that end in the middle of a request."""
    errors = {reason: count for reason, count in incarnation.parts.counters.protocol_errors.items() if reason != "truncated"}
    if any(errors.values()):
        verdicts.fail("protocol error", f"{name}: {errors}")


def is_undisturbed(plan: Plan) -> bool:
    return not {fault.kind for fault in plan.faults} & DISTURBS_SHARING


def check_overshoot(plan: Plan, hosts: list[GatewayHost], cluster: Cluster, verdicts: Verdicts) -> None:
    """The forwarded bytes stay within the bound of docs/decisions/013, for each gateway, and for all that share."""
    if not all(settings.enforce and not settings.window for settings in plan.settings):
        return
    limits = [settings.limit for settings in plan.settings]
    if cluster.alterations:
        limits += [value for value in ALTERED if value is not None]
    undisturbed = plan.sharing and plan.gateways > 1 and is_undisturbed(plan)
    owners = {(each.user or each.client_id, each.broker if plan.settings[0].by_broker else 0) for each in plan.clients}
    quotas: list[tuple[str, tuple[int, ...], int]] = []
    for owner, node in sorted(owners):
        of_owner = [each for each in plan.clients if (each.user or each.client_id) == owner]
        numbers = tuple(each.number for each in of_owner if not plan.settings[0].by_broker or each.broker == node)
        quotas.append((f"{owner} at broker {node}" if node else owner, numbers, max(limits)))
    groups = [settings.group_limit for settings in plan.settings if settings.group_limit is not None]
    if len(groups) == len(plan.settings):
        quotas.append(("group jobs", plan.numbers(JOBS), max(groups)))
    for whose, members, limit in quotas:
        capacity = limit * (plan.settings[0].samples - 1)
        requests = allowance(cluster, members)
        shared = SMALL * capacity + limit * (plan.interval_ms / 1000.0 + TOPIC_SECONDS) if plan.sharing else 0.0
        every: list[tuple[float, int]] = []
        for host in hosts:
            for incarnation in host.incarnations:
                uses = uses_of(incarnation, members)
                every += uses
                over = largest_debt(uses, limit, capacity)
                if over > requests + shared:
                    text = f"{host.name} alone is {over:.0f} bytes over for {whose}, the bound is {requests + shared:.0f}"
                    verdicts.fail("overshoot", text)
        if undisturbed and requests <= 2 * capacity:  # a debt above the capacity is cut, see 013
            over = largest_debt(sorted(every), limit, capacity)
            if over > requests + shared:
                text = f"all gateways together are {over:.0f} bytes over for {whose}, the bound is {requests + shared:.0f}"
                verdicts.fail("overshoot of sharing", text)


def uses_of(incarnation: Incarnation, members: Collection[int]) -> list[tuple[float, int]]:
    """The times and bytes of Produce requests of some clients, in order.

    A gateway that drains forwards every Produce with acks=0 that has arrived, because its client takes it for done.
    """
    totals, end = incarnation.totals, incarnation.terminated_at or inf
    answered = [use for number in members for use in totals.produced.get(number, [])]
    unanswered = [use for number in members for use in totals.unanswered.get(number, []) if use[0] < end]
    return sorted([*answered, *unanswered])


def allowance(cluster: Cluster, members: Collection[int]) -> float:
    """Two requests of each client: a new connection waits while the bucket is in debt, so reconnecting gains nothing."""
    return 2.0 * one_request_each(cluster, members)


def one_request_each(cluster: Cluster, members: Collection[int]) -> float:
    """The bytes of the largest Produce of each client."""
    largest: dict[int, int] = {}
    for sent in cluster.sent.values():
        client = sent.connection // CONNECTIONS
        if client in members and sent.head.api == 0:
            largest[client] = max(largest.get(client, 0), len(sent.frame))
    return float(sum(largest.values()))


def largest_debt(
    uses: Iterable[tuple[float, int]], limit: float, capacity: float, kept: float = 0.0, seconds: float = 0.0
) -> float:
    """The largest debt of a bucket that sees all uses at once.

    Presumed use of peers keeps the bucket of a gateway below its capacity, so that the inflow of that time is not cut off. It
    is at most `kept` times the own use in the last `seconds`.
    """
    balance, last, lowest = capacity, 0.0, 0.0
    recent: deque[tuple[float, int]] = deque()
    presumed = 0.0
    for when, amount in uses:
        while recent and recent[0][0] <= when - seconds:
            presumed -= kept * recent.popleft()[1]
        balance = min(capacity + presumed, balance + (when - last) * limit) - amount
        last = when
        lowest = min(lowest, balance)
        if kept:
            recent.append((when, amount))
            presumed += kept * amount
    return -lowest
