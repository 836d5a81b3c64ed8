"""The rules for groups that share a capacity, and for members of consumer groups under a rate of requests."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from gateway.proxy.connection import Session
from gateway.proxy.membership import SHORTEST_SESSION_SECONDS
from gateway.quotas.group_buckets import INTERVAL_SECONDS
from gateway.quotas.group_meter import ENTITLED_PART
from gateway.quotas.kinds.produce import KIND as PRODUCE
from loadtest.simulation.brokers import Cluster
from loadtest.simulation.clients import SimulatedClient
from loadtest.simulation.gateway_host import GUARANTEES, GatewayHost
from loadtest.simulation.invariants import TOPIC_SECONDS, is_undisturbed, largest_debt, one_request_each, uses_of
from loadtest.simulation.kafka_messages import CLIENT_IDS
from loadtest.simulation.network import Verdicts
from loadtest.simulation.plan import Plan

LONGEST_MEMBER_MUTE: Final = SHORTEST_SESSION_SECONDS / 3.0 + 0.01
_FULL_REQUEST: Final = 1_048_576.0
"""The least burst of a group that shares a capacity."""

_HELD_INTERVALS: Final = 3.0
"""Presumed use is given back at the second division after it at the latest, or at the third if a message is late."""

_SETTLE_SECONDS: Final = 2.0
"""A group that waits has its guarantee after this time."""

_MEASURED_SECONDS: Final = 1.5
_LEAST: Final = 0.75
"""The part of the guarantee that a group uses at least, in a second in which it waits all the time."""


class GroupWatch:
    """Looks at the sessions from time to time, and judges at the end."""

    def __init__(self) -> None:
        self._waits: defaultdict[str, list[tuple[float, bool]]] = defaultdict(list)

    def look(self, hosts: Iterable[GatewayHost], clients: Sequence[SimulatedClient], now: float, verdicts: Verdicts) -> None:
        sessions = {session.peer: session for host in hosts for session in host.sessions()}
        muted = {group for session in sessions.values() for group in _muted_for(session)}
        for group in GUARANTEES:
            # At the end, clients wait for their last responses and want no more.
            self._waits[group].append((now, group in muted and not any(client.stopped for client in clients)))
        for client in clients:
            connection = client.connection
            if connection is None or not connection.is_member:
                continue
            host, port = connection.transport.connection.address
            session = sessions.get(f"{host}:{port}")
            if session is None or not session._core.throttle.active:
                continue
            throttle = session._core.throttle
            left = throttle.until - now
            if left > LONGEST_MEMBER_MUTE and throttle._bucket is not None and throttle._bucket.kind.spares_members:
                verdicts.fail("member muted too long", f"{session.peer} is muted for {left:.2f} s for its rate of requests")

    def check_guarantees(self, plan: Plan, hosts: Iterable[GatewayHost], verdicts: Verdicts) -> None:
        """A group whose clients wait gets its guarantee, also if the other group has borrowed it before."""
        capacity = plan.settings[0].capacity
        if capacity is None or plan.faults or (plan.gateways > 1 and not plan.sharing):
            return
        for group, (members, part, _) in GUARANTEES.items():
            uses = [
                use
                for host in hosts
                for incarnation in host.incarnations
                for number in plan.numbers(members)
                for use in incarnation.totals.produced.get(number, [])
            ]
            for begin, end in self._waiting_spans(group):
                used = sum(amount for when, amount in uses if begin <= when < end)
                least = _LEAST * part * capacity * (end - begin) - 2 * max(client.size for client in plan.clients)
                if used < least:
                    text = f"{group} has waited for {used} bytes from {begin:.2f} s to {end:.2f} s, and may use {least:.0f}"
                    verdicts.fail("guarantee", text)

    def check_ceiling(self, plan: Plan, hosts: Iterable[GatewayHost], cluster: Cluster, verdicts: Verdicts) -> None:
        """All groups together stay within the capacity, but for the bounds of docs/decisions/031."""
        capacity = plan.settings[0].capacity
        if capacity is None:
            return
        division = plan.interval_ms / 1000.0 if plan.sharing else INTERVAL_SECONDS
        burst = max(float(capacity) * division, _FULL_REQUEST)
        everybody = plan.numbers(CLIENT_IDS)
        bound = one_request_each(cluster, everybody) + _borrowers_debt(plan, cluster) + capacity * division * ENTITLED_PART
        kept, seconds = 0.0, 0.0
        if plan.sharing:
            members = plan.gateways + sum(fault.kind in ("kill_gateway", "restart_gateway") for fault in plan.faults)
            # A share is at least half of an even one. Gateways that have just ended count as members.
            kept, seconds = 2.0 * members - 1.0, _HELD_INTERVALS * division + TOPIC_SECONDS
            # After a silence, all presumed use of that time comes back at once, which fills the bucket once more.
            bound += 0.0 if is_undisturbed(plan) else burst
        every: list[tuple[float, int]] = []
        for host in hosts:
            for incarnation in host.incarnations:
                uses = uses_of(incarnation, everybody)
                every += uses
                over = largest_debt(uses, capacity, burst, kept, seconds)
                if over > bound:
                    text = f"{host.name} alone is {over:.0f} bytes over the capacity of all groups, the bound is {bound:.0f}"
                    verdicts.fail("ceiling", text)
        if plan.sharing and is_undisturbed(plan):
            bound += capacity * (division + TOPIC_SECONDS)
            over = largest_debt(sorted(every), capacity, burst, kept, seconds)
            if over > bound:
                text = f"all gateways are {over:.0f} bytes over the capacity of all groups, the bound is {bound:.0f}"
                verdicts.fail("ceiling of sharing", text)

    def _waiting_spans(self, group: str) -> Iterator[tuple[float, float]]:
        """The spans of `_MEASURED_SECONDS` at whose looks, and at those of `_SETTLE_SECONDS` before, the group waited."""
        looks = self._waits[group]
        since: float | None = None
        for now, waited in looks:
            if not waited:
                since = None
                continue
            since = now if since is None else since
            if now - since >= _SETTLE_SECONDS + _MEASURED_SECONDS:
                yield now - _MEASURED_SECONDS, now


def _borrowers_debt(plan: Plan, cluster: Cluster) -> float:
    """The debt of the parent at which the clients of one group use only their entitlement while they borrow.

    Each of them waits for the debt divided by the capacity.
    """
    spare = 1.0 - sum(part for _, part, _ in GUARANTEES.values())
    weights = sum(weight for _, _, weight in GUARANTEES.values())
    return max(
        one_request_each(cluster, plan.numbers(members)) / (part + spare * weight / weights)
        for members, part, weight in GUARANTEES.values()
    )


def _muted_for(session: Session) -> Iterator[str]:
    """The group that the session is muted for."""
    throttle = session._core.throttle
    bucket = throttle._bucket
    if throttle.active and bucket is not None and bucket.kind is PRODUCE and bucket.resolution.tags.group is not None:
        yield bucket.resolution.tags.group
