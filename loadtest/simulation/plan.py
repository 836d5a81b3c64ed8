"""Everything that a run decides before it begins: settings, clients and faults. A plan can be shrunk."""

import random
from collections.abc import Collection
from dataclasses import dataclass, replace

LIMITS = (20_000, 50_000, 200_000)
FLOOD_LIMIT = 5_000_000
FLOOD_FETCH = 80_000
HOPPERS = 3
WARM_UP = 3.0
"""Seconds from the start of the gateways to the first client."""


@dataclass(frozen=True, slots=True)
class Client:
    """One client with its own connection. It begins at `begin` and sends `requests` requests; times are in seconds."""

    number: int
    kind: str  # producer, consumer, admin (creates topics), operator (sets quotas), member or chatter
    client_id: str
    gateway: int
    begin: float
    requests: int
    depth: int
    size: int
    acks: int = -1
    pause: float = 0.0
    polite: bool = True  # it waits for the throttle time
    in_session: bool = False
    slow: float = 0.0  # seconds for which it reads nothing, again and again
    topics: tuple[str, ...] = ()  # of each Produce; () is one topic, without topic quotas
    hops: bool = False  # it makes a new connection after each request
    broker: int = 0  # the node id of the broker whose port it connects to; 0 is the bootstrap port
    user: str = ""  # that it authenticates as
    header: str = ""  # the kind of its PROXY header: it comes through a balancer


@dataclass(frozen=True, slots=True)
class Fault:
    """One disturbance. `target` is a gateway, a broker or a client, by its index; `amount` depends on the kind."""

    at: float
    kind: str
    target: int
    seconds: float = 0.0
    amount: float = 0.0


@dataclass(frozen=True, slots=True)
class Settings:
    """One version of the config."""

    limit: int = 50_000
    fetch_limit: int = 200_000
    group_limit: int | None = None
    mutation_rate: int | None = None
    samples: int = 3
    request_rate: int | None = None
    window: bool = False  # Kafka's own algorithm
    enforce: bool = True
    volumes: bool = False
    capacity: int | None = None  # that two groups share
    topics: int | None = None  # the threshold of all topics together
    by_broker: bool = False  # each quota holds at each broker
    shadow: int | None = None  # the shadow limit of each quota of bytes


@dataclass(frozen=True, slots=True)
class Plan:
    """A whole run of `seconds`, then a drain. `settings` has the first config and those of reloads."""

    seed: int
    seconds: float
    gateways: int
    brokers: int
    sharing: bool
    interval_ms: int
    fair_share: bool
    settings: tuple[Settings, ...]
    clients: tuple[Client, ...]
    faults: tuple[Fault, ...]
    drain_seconds: float = 4.0

    def numbers(self, client_ids: Collection[str]) -> tuple[int, ...]:
        """The clients with these client-ids, by their numbers."""
        return tuple(client.number for client in self.clients if client.client_id in client_ids)

    def without(self, clients: Collection[int] = (), faults: Collection[int] = ()) -> "Plan":
        """The plan without the clients and faults at these places."""
        return replace(
            self,
            clients=tuple(each for place, each in enumerate(self.clients) if place not in clients),
            faults=tuple(each for place, each in enumerate(self.faults) if place not in faults),
        )


def mixed_plan(seed: int) -> Plan:
    """The plan of a seed without the styles of `styles.py`. Depends on nothing else."""
    choose = random.Random(seed)
    gateways = choose.choice((1, 1, 2, 2, 3))
    sharing = choose.random() < (0.8 if gateways > 1 else 0.2)
    seconds = choose.choice((3.0, 4.0, 6.0))
    settings = [_settings(choose)]
    settings += [_changed(choose, settings[0]) for _ in range(3)]
    style = choose.choice(("mixed", "mixed", "mixed", "crowd", "hoppers", "flood"))
    if style == "flood":
        settings = [replace(each, fetch_limit=FLOOD_LIMIT, limit=FLOOD_LIMIT, group_limit=None) for each in settings]
    lowest = replace(
        settings[0], limit=min(each.limit for each in settings), fetch_limit=min(each.fetch_limit for each in settings)
    )
    clients = tuple(
        _styled(choose, style, _client(choose, number, gateways, seconds, lowest), lowest)
        for number in range(choose.randrange(2, 8))
    )
    brokers = choose.choice((1, 1, 3))
    calm = choose.random() < (0.8 if style == "crowd" else 0.25)
    wanted = 0 if calm else choose.randrange(1, 7)
    faults = tuple(
        sorted((_fault(choose, gateways, brokers, seconds, clients) for _ in range(wanted)), key=lambda fault: fault.at)
    )
    return Plan(
        seed=seed,
        seconds=seconds,
        gateways=gateways,
        brokers=brokers,
        sharing=sharing,
        interval_ms=choose.choice((200, 300, 500)),
        fair_share=choose.random() < 0.5,
        settings=tuple(settings),
        clients=clients,
        faults=faults,
    )


def _settings(choose: random.Random) -> Settings:
    limit = choose.choice(LIMITS)
    return Settings(
        limit=limit,
        fetch_limit=choose.choice(LIMITS),
        group_limit=limit * choose.choice((1, 2)) if choose.random() < 0.4 else None,
        mutation_rate=choose.choice((2, 5)) if choose.random() < 0.7 else None,
        samples=choose.choice((2, 3)),
        request_rate=choose.choice((10, 40)) if choose.random() < 0.2 else None,
        window=choose.random() < 0.15,
        enforce=choose.random() < 0.95,
        volumes=choose.random() < 0.25,
    )


def _changed(choose: random.Random, settings: Settings) -> Settings:
    change = choose.choice(("limit", "group_limit", "mutation_rate", "enforce", "fetch_limit", "request_rate", "window"))
    if change == "request_rate":
        return replace(settings, request_rate=choose.choice((None, 20)))
    if change == "window":
        return replace(settings, window=not settings.window)
    if change == "limit":
        return replace(settings, limit=choose.choice(LIMITS))
    if change == "fetch_limit":
        return replace(settings, fetch_limit=choose.choice(LIMITS))
    if change == "group_limit":
        return replace(settings, group_limit=choose.choice((None, settings.limit)))
    if change == "mutation_rate":
        return replace(settings, mutation_rate=choose.choice((None, 3)))
    return replace(settings, enforce=not settings.enforce)


def _client(choose: random.Random, number: int, gateways: int, seconds: float, settings: Settings) -> Client:
    kind = choose.choice(("producer", "producer", "producer", "consumer", "consumer", "admin", "chatter", "operator"))
    limit = settings.limit if kind == "producer" else settings.fetch_limit
    return Client(
        number=number,
        kind=kind,
        client_id=choose.choice(("job-1", "job-2", "etl")),
        gateway=choose.randrange(gateways),
        begin=choose.choice((0.0, choose.random() * seconds * 0.7)),
        requests=choose.randrange(3, 25),
        depth=choose.choice((1, 1, 2, 5)),
        size=max(50, int(limit * choose.choice((0.002, 0.05, 0.2, 0.5, 1.5)))),
        acks=choose.choice((-1, -1, 1, 0)),
        pause=choose.choice((0.0, 0.0, 0.05)),
        polite=choose.random() < 0.7,
        in_session=choose.random() < 0.5,
        slow=choose.choice((0.0, 0.0, 0.0, 1.0)),
    )


def _styled(choose: random.Random, style: str, client: Client, settings: Settings) -> Client:
    """Clients of some runs have one aim: to share a quota, to escape a debt, or to fill buffers."""
    if style == "crowd":  # of one client-id, or of one group if there is one
        client_id = "etl" if settings.group_limit is None else f"job-{client.number % 2 + 1}"
        size = settings.limit // 10
        return replace(
            client, kind="producer", client_id=client_id, gateway=client.number, begin=0.0, requests=40, size=size, slow=0.0
        )
    if style == "hoppers" and client.number < HOPPERS:
        size, acks = int(settings.limit * 0.7), choose.choice((-1, 1))
        return replace(
            client,
            kind="producer",
            client_id="etl",
            depth=1,
            acks=acks,
            hops=True,
            polite=False,
            size=size,
            requests=12,
            slow=0.0,
        )
    if style == "flood" and client.kind == "consumer":
        return replace(client, size=FLOOD_FETCH, depth=20, requests=40, in_session=False, slow=1.0, pause=0.0)
    if style == "flood" and client.kind == "producer":
        return replace(client, size=FLOOD_FETCH * 2, depth=10, pause=0.0)
    if style == "flood" and client.kind == "operator":  # under the quotas of operators, the flood would last for minutes
        return replace(client, kind="chatter")
    return client


def _fault(choose: random.Random, gateways: int, brokers: int, seconds: float, clients: tuple[Client, ...]) -> Fault:
    kind = choose.choice(KINDS)
    target = choose.randrange({"broker": brokers, "gateway": gateways, "client": len(clients)}[TARGETS[kind]])
    return Fault(
        at=round(choose.random() * seconds, 3),
        kind=kind,
        target=target,
        seconds=round(choose.choice((0.05, 0.5, 2.0)) * (0.5 + choose.random()), 3),
        amount=choose.choice((-3_600.0, -5.0, 5.0, 86_400.0)) if kind == "jump_wall_clock" else choose.random(),
    )


TARGETS = {
    "cut_clients": "gateway",  # all connections of clients
    "cut_brokers": "gateway",  # all its connections to brokers
    "slow_gateway": "gateway",
    "slow_broker": "broker",
    "stop_broker": "broker",
    "lose_topics": "gateway",  # Weir's own connections to the cluster
    "delete_topic": "broker",
    "kill_gateway": "gateway",
    "restart_gateway": "gateway",  # SIGTERM, then a start
    "reload": "gateway",
    "broken_config": "gateway",
    "jump_wall_clock": "gateway",
    "fill_disk": "broker",
    "leave": "client",  # the client closes its connection
    "cut_client": "client",
    "reset_client": "client",  # in the middle of a request
}
KINDS = tuple(TARGETS)
