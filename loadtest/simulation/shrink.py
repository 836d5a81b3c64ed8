"""Makes the plan of a failing run smaller: it drops faults and clients for as long as the same rule is violated."""

from collections.abc import Callable, Iterator
from dataclasses import replace

from loadtest.simulation.plan import Plan
from loadtest.simulation.run import Run

MAX_RUNS = 300


def rule_of(plan: Plan) -> str | None:
    """The first rule that a run violates, None if it violates none."""
    violations = Run(plan).execute().violations
    return violations[0].rule if violations else None


def shrink(plan: Plan, broken: Callable[[Plan], str | None] = rule_of) -> Plan:
    """The smallest plan that was found in `MAX_RUNS` runs. `plan` has to fail."""
    rule = broken(plan)
    assert rule is not None, "this plan does not fail"
    runs = 0
    smaller = True
    while smaller:
        smaller = False
        for candidate in _candidates(plan):
            if runs >= MAX_RUNS:
                return plan
            runs += 1
            if broken(candidate) == rule:
                plan, smaller = candidate, True
                break
    return plan


def _candidates(plan: Plan) -> Iterator[Plan]:
    """Smaller plans, those with the largest step first."""
    for parts in (2, 4):
        size = max(1, len(plan.faults) // parts)
        for start in range(0, len(plan.faults), size):
            yield plan.without(faults=set(range(start, start + size)))
    for place in range(len(plan.faults)):
        yield plan.without(faults={place})
    for place in range(len(plan.clients) if not _named_clients(plan) else 0):
        yield plan.without(clients={place})
    for place, client in enumerate(plan.clients):
        if client.requests > 1:
            fewer = replace(client, requests=client.requests // 2)
            yield replace(plan, clients=(*plan.clients[:place], fewer, *plan.clients[place + 1 :]))
    if plan.gateways > 1 and all(client.gateway < plan.gateways - 1 for client in plan.clients) and not plan.faults:
        yield replace(plan, gateways=plan.gateways - 1)


def _named_clients(plan: Plan) -> bool:
    """True if a fault names a client by its place."""
    return any(fault.kind in ("leave", "cut_client", "reset_client") for fault in plan.faults)
