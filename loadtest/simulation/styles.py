"""Runs with one aim: groups that share a capacity, members of consumer groups under a rate of requests, topic quotas, quotas
of each broker, shadow limits, users, a balancer, clients that leave, or the topic of the quotas.

They have a generator of their own, so that the plans of all other seeds stay as they are.
"""

import random
from dataclasses import replace
from typing import Final

from loadtest.simulation.balancer import GOOD, WRONG
from loadtest.simulation.plan import FLOOD_LIMIT, TARGETS, Client, Fault, Plan, Settings, mixed_plan
from loadtest.simulation.topic_messages import BIG_TOPICS, SMALL_TOPIC

EVERY: Final = 16
"""Of so many seeds, each style has one."""

UNLIMITED: Final = FLOOD_LIMIT * 20
CAPACITIES: Final = (1_000_000, 1_500_000)
TOPIC_TOTALS: Final = (100_000, 200_000)
PARTING_LIMITS: Final = (40_000, 160_000)
MEMBER_RATES: Final = (1, 2)
USERS: Final = ("alice", "bob")
_WRONG_PART: Final = 1 / 3
"""The part of the clients behind a balancer that have a wrong header."""
_CALM: Final = 0.6
"""The part of the runs with greedy clients that has no faults: only those show that quotas are shared well."""


def plan_of(seed: int) -> Plan:
    """The plan of a seed. Depends on nothing else."""
    plan = mixed_plan(seed)
    choose = random.Random(f"{seed}-style")
    styles = {
        1: _brokers,
        2: _parting,
        3: _shadows,
        5: _tree,
        7: _users,
        9: _members,
        11: _balanced,
        13: _topics,
        15: _operators,
    }
    style = styles.get(seed % EVERY)
    if style is None:
        return plan
    plan = style(plan, choose)
    if style in (_tree, _members, _topics, _parting) and choose.random() < _CALM:
        return replace(plan, faults=())
    known = len(plan.clients)
    return replace(plan, faults=tuple(each for each in plan.faults if TARGETS[each.kind] != "client" or each.target < known))


def _tree(plan: Plan, choose: random.Random) -> Plan:
    """Greedy producers of two groups below a capacity. One of the groups may begin later, and finds its part lent."""
    capacity = choose.choice(CAPACITIES)
    settings = Settings(limit=UNLIMITED, fetch_limit=UNLIMITED, capacity=capacity)
    late = round(plan.seconds * choose.choice((0.0, 0.3)), 1)
    clients = [
        Client(
            number=number,
            kind="producer",
            client_id=("etl", "job-1", "job-2")[number % 3],
            gateway=choose.randrange(plan.gateways),
            begin=late if number % 3 == 0 else 0.0,
            requests=9_000,  # more than it can send
            depth=choose.choice((3, 6)),
            size=int(capacity * choose.choice((0.02, 0.04))),
            polite=choose.random() < 0.5,
        )
        for number in range(choose.choice((3, 4)))
    ]
    return replace(plan, settings=(settings,) * len(plan.settings), clients=tuple(clients), seconds=6.0)


def _brokers(plan: Plan, choose: random.Random) -> Plan:
    """Quotas that hold at each broker, and clients at the ports of brokers and at the bootstrap port."""
    settings = tuple(replace(each, by_broker=True) for each in plan.settings)
    clients = tuple(replace(each, broker=choose.randrange(plan.brokers + 1)) for each in plan.clients)
    return replace(plan, settings=settings, clients=clients)


def _parting(plan: Plan, choose: random.Random) -> Plan:
    """Producers with acks=0 that leave after the last request, while the gateway still delays most of them."""
    limit = choose.choice(PARTING_LIMITS)
    settings = tuple(replace(each, limit=limit, group_limit=None, volumes=False) for each in plan.settings)
    clients = [
        Client(
            number=number,
            kind="producer",
            client_id=("job-1", "etl")[number % 2],
            gateway=choose.randrange(plan.gateways),
            begin=round(choose.random(), 2),
            requests=choose.choice((3, 12)),
            depth=1,
            size=limit // choose.choice((4, 12)),
            acks=0,
            polite=False,
            hops=True,
        )
        for number in range(4)
    ]
    return replace(plan, settings=settings, clients=tuple(clients), seconds=8.0)


def _shadows(plan: Plan, choose: random.Random) -> Plan:
    """Shadow limits far below the clients' use, beside quotas far above it."""
    settings = Settings(
        limit=UNLIMITED, fetch_limit=UNLIMITED, samples=choose.choice((2, 3)), window=choose.random() < 0.5,
        shadow=min(each.limit for each in plan.settings) // 10,
    )  # fmt: skip
    clients = (replace(each, kind="chatter") if each.kind == "operator" else each for each in plan.clients)
    return replace(plan, settings=(settings,) * len(plan.settings), clients=tuple(clients))


def _users(plan: Plan, choose: random.Random) -> Plan:
    """Quotas of users. Each client authenticates on each connection, and clients of one user may have several client-ids."""
    return replace(plan, clients=tuple(replace(each, user=choose.choice(USERS)) for each in plan.clients))


def _balanced(plan: Plan, choose: random.Random) -> Plan:
    """Clients behind a balancer. A third of them send a wrong PROXY header, or none, each time."""
    kinds = [choose.choice(WRONG if choose.random() < _WRONG_PART else GOOD) for _ in plan.clients]
    return replace(plan, clients=tuple(replace(each, header=kind) for each, kind in zip(plan.clients, kinds, strict=True)))


def _topics(plan: Plan, choose: random.Random) -> Plan:
    """Producers that write more into two topics than topic quotas allow, and little into a third one."""
    total = choose.choice(TOPIC_TOTALS)
    settings = Settings(limit=UNLIMITED, fetch_limit=UNLIMITED, samples=choose.choice((2, 3)), topics=total)
    greedy = [
        Client(
            number=number,
            kind="producer",
            client_id=("job-1", "job-2", "etl")[number % 3],
            gateway=choose.randrange(plan.gateways),
            begin=round(choose.random(), 2),
            requests=9_000,  # more than it can send
            depth=choose.choice((1, 2)),
            size=total // choose.choice((20, 10)),
            pause=choose.choice((0.05, 0.1)),
            topics=choose.choice((BIG_TOPICS, BIG_TOPICS[:1], (*BIG_TOPICS[1:], SMALL_TOPIC))) if number else BIG_TOPICS,
        )
        for number in range(3)
    ]
    modest = replace(greedy[0], number=3, requests=10, depth=1, size=total // 80, pause=0.3, topics=(SMALL_TOPIC,))
    # Batches of the small topic are so few and so small that they stay within its threshold.
    clients = [replace(each, size=total // 400, requests=20) if SMALL_TOPIC in each.topics else each for each in greedy]
    return replace(plan, settings=(settings,) * len(plan.settings), clients=(*clients, modest))


def _members(plan: Plan, choose: random.Random) -> Plan:
    """Members of consumer groups, whose client-id has a rate of requests that others of the same name exceed by far."""
    settings = Settings(limit=UNLIMITED, fetch_limit=UNLIMITED, request_rate=choose.choice(MEMBER_RATES))
    clients = [
        Client(
            number=number,
            kind="member" if number < 2 else "chatter",
            client_id="etl",
            gateway=choose.randrange(plan.gateways),
            begin=0.0 if number < 2 else round(choose.random(), 2),
            requests=8,
            depth=2,
            size=100,
            pause=choose.choice((0.2, 0.6)) if number < 2 else 0.0,
            polite=choose.random() < 0.5,
        )
        for number in range(7)  # the debt of a rate grows with the connections
    ]
    return replace(plan, settings=(settings,) * len(plan.settings), clients=tuple(clients))


def _operators(plan: Plan, choose: random.Random) -> Plan:
    """Operators who change quotas at several gateways, while the topic of the quotas is deleted and gateways lose it."""
    gateways = choose.choice((2, 3))
    clients = [
        Client(
            number=number,
            kind="operator",
            client_id="etl",
            gateway=choose.randrange(gateways),
            begin=round(choose.random(), 2),
            requests=choose.choice((6, 12)),
            depth=1,
            size=100,
            pause=choose.choice((0.1, 0.3)),
        )
        for number in range(3)
    ]
    faults = [
        Fault(
            at=round(choose.random() * plan.seconds, 3),
            kind=(kind := choose.choice(("delete_topic", "delete_topic", "kill_gateway", "restart_gateway", "lose_topics"))),
            target=0 if kind == "delete_topic" else choose.randrange(gateways),
            seconds=choose.choice((0.05, 0.5, 2.0)),
            amount=0.0,  # the quotas have the first topic by name
        )
        for _ in range(choose.randrange(2, 7))
    ]
    faults.sort(key=lambda fault: fault.at)
    return replace(plan, gateways=gateways, sharing=True, clients=tuple(clients), faults=tuple(faults))
