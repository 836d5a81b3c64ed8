"""Measures how far many gateways together exceed one quota, and how evenly: `python -m
loadtest.scenarios.sharing_simulation`.

It runs real engines and members (`gateway.features.sharing`) in simulated time; only the topic is replaced by a delay. Each
client sends a request, waits for its throttle time and at least a round trip, and sends the next. All clients start at the
same moment with full buckets: the worst case.
"""

import argparse
import heapq
import json
import random
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import count

from gateway.features.sharing.member import CROWD, Member
from gateway.features.sharing.shared_usage import SMALL
from gateway.features.sharing.use_message import parse, parse_member
from gateway.quotas.engine import QuotaEngine
from gateway.quotas.entity import ClientQuotaEntity, EntityQuota
from gateway.quotas.meter import Window
from gateway.quotas.settings import QuotaSettings
from loadtest.testkit.paths import RESULTS

WINDOW = Window(11, 1.0)
BURST_SECONDS = 10.0
ROUND_TRIP = 0.002
RESULT_FILE = RESULTS / "sharing-simulation.json"


@dataclass(frozen=True, slots=True)
class Scenario:
    """Clients of one entity. They move to the first member at `gather_at`; its neighbour is killed at `kill_at` (seconds)."""

    members: int
    clients: int = 0  # 0 means one per member
    request_bytes: int = 16_384
    interval: float = 0.2
    latency: float = 0.02
    seconds: float = 60.0
    gather_at: float | None = None
    kill_at: float | None = None
    seed: int = 1
    quota: float = 10_000_000.0
    crowd: int = CROWD  # see `Member`; fewer, with fewer members and a smaller quota, make a smaller model of the same flow

    @property
    def capacity(self) -> float:
        return self.quota * BURST_SECONDS


@dataclass(frozen=True, slots=True)
class Outcome:
    """The figures of a scenario.

    `overshoot_bytes` is the largest debt of a bucket with global knowledge, and `overshoot_bound_bytes` is the bound in
    docs/decisions/013-sharing.md. `rate_ratio` covers the second half; `empty_seconds` and `worst_second_ratio` cover the
    time after the burst. `settled_seconds` after the disturbance, the rate over five seconds stays within 3 %.
    """

    members: int
    clients: int
    overshoot_bytes: int
    overshoot_bound_bytes: int
    rate_ratio: float
    worst_second_ratio: float
    best_second_ratio: float
    empty_seconds: int
    settled_seconds: float
    messages_per_second: float


class Simulation:
    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.random = random.Random(scenario.seed)
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._order = count()
        quota = EntityQuota(ClientQuotaEntity(user="alice"), {"producer_byte_rate": scenario.quota})
        settings = QuotaSettings(quotas=(quota,), window=WINDOW)
        self.engines = [QuotaEngine(settings, 0.0, shared=True) for _ in range(scenario.members)]
        self.members = [
            Member(f"{number:016x}", engine, scenario.interval, 0.0, crowd=scenario.crowd)
            for number, engine in enumerate(self.engines, start=1)
        ]
        self.dead: set[int] = set()
        self.messages = 0
        self.used: list[tuple[float, int]] = []
        self.begun = 0.0
        self.paid: float | None = None  # when the quota has paid the debt that the burst left

    def at(self, when: float, event: Callable[[float], None]) -> None:
        heapq.heappush(self._events, (when, next(self._order), event))

    def run(self) -> Outcome:
        scenario = self.scenario
        for number in range(scenario.members):
            self.at(self.random.random() * scenario.interval, lambda now, number=number: self._step(number, now))  # type: ignore[misc]
            self.at(1.0, lambda now, number=number: self._tick(number, now))  # type: ignore[misc]
        begin = self.begun = self._warm_up()
        clients = scenario.clients or scenario.members
        for client in range(clients):
            self.at(begin, lambda now, client=client: self._send(client, client % scenario.members, now))  # type: ignore[misc]
        end = begin + scenario.seconds
        if scenario.kill_at is not None:
            self.at(begin + scenario.kill_at, lambda _: self.dead.add(1))
        self.gather_at = begin + scenario.gather_at if scenario.gather_at is not None else end
        while self._events and self._events[0][0] < end:
            when, _, event = heapq.heappop(self._events)
            event(when)
        return self._outcome(begin, clients)

    def _warm_up(self) -> float:
        """Run until all members know each other."""
        return max(5.0, 6 * self.scenario.interval * max(1.0, self.scenario.members / self.scenario.crowd))

    def _step(self, number: int, now: float) -> None:
        if number in self.dead:
            return
        for key, value in self.members[number].step(now):
            self.messages += 1
            self.at(now + self.scenario.latency, lambda when: self._deliver(key, value, when))  # noqa: B023
        self.at(now + self.scenario.interval, lambda when: self._step(number, when))

    def _deliver(self, key: bytes, value: bytes | None, now: float) -> None:
        identity, message = parse_member(key), None if value is None else parse(value)
        for number, member in enumerate(self.members):
            if number not in self.dead:
                member.handle(identity, message, now)

    def _tick(self, number: int, now: float) -> None:
        self.engines[number].tick(now)
        self.at(now + 1.0, lambda when: self._tick(number, when))

    def _send(self, client: int, number: int, now: float) -> None:
        if now >= self.gather_at or number in self.dead:
            number = 0
        bucket = self.engines[number].acquire_path("produce", "alice", f"client-{client}", now)[0]
        delay, _ = bucket.charge(self.scenario.request_bytes, now)
        self.engines[number].release(bucket, now)
        self.used.append((now, self.scenario.request_bytes))
        self.at(now + max(delay, ROUND_TRIP * (0.5 + self.random.random())), lambda when: self._send(client, number, when))

    def _outcome(self, begin: float, clients: int) -> Outcome:
        scenario = self.scenario
        seconds = [0.0] * int(scenario.seconds)
        balance, last, lowest, spent = scenario.capacity, begin, 0.0, begin
        for when, amount in self.used:
            balance = min(scenario.capacity, balance + (when - last) * scenario.quota)
            if balance >= 0.0 and spent != begin and self.paid is None:
                self.paid = when
            balance -= amount
            last = when
            if balance < 0.0 and spent == begin:
                spent = when
            lowest = min(lowest, balance)
            if int(when - begin) < len(seconds):
                seconds[int(when - begin)] += amount / scenario.quota
        after = seconds[int(spent - begin) + 2 :]
        half = seconds[len(seconds) // 2 :]
        return Outcome(
            members=scenario.members,
            clients=clients,
            overshoot_bytes=round(-lowest),
            overshoot_bound_bytes=round(overshoot_bound(scenario, clients)),
            rate_ratio=round(sum(half) / len(half), 4),
            worst_second_ratio=round(min(after, default=0.0), 3),
            best_second_ratio=round(max(after, default=0.0), 3),
            empty_seconds=sum(second == 0.0 for second in after),
            settled_seconds=self._settled(seconds),
            messages_per_second=round(self.messages / (begin + scenario.seconds), 1),
        )

    def _settled(self, seconds: list[float]) -> float:
        disturbed = self.scenario.kill_at or self.scenario.gather_at or len(seconds) / 2
        width = 5
        settled = 0.0
        for first in range(int(disturbed), len(seconds) - width + 1):
            if abs(sum(seconds[first : first + width]) / width - 1.0) > 0.03:
                settled = first + 1 - disturbed
        return settled


def overshoot_bound(scenario: Scenario, clients: int) -> float:
    """The bound of record 013 if all members know each other.

    It is the sum of two requests of each client, the unpublished use, and the bytes that arrive before members receive a
    use.
    """
    interval = scenario.interval * max(1.0, scenario.members / scenario.crowd)
    shared = 0.0 if scenario.members == 1 else SMALL * scenario.capacity + scenario.quota * (interval + scenario.latency)
    return 2 * clients * scenario.request_bytes + shared


def simulate(scenario: Scenario) -> Outcome:
    """Run one scenario. The same seed gives the same outcome."""
    return Simulation(scenario).run()


SCENARIOS = {
    "1 member": Scenario(1, clients=16),
    "4 members, 16 clients": Scenario(4, clients=16),
    "4 members, all on one after 30 s": Scenario(4, clients=16, gather_at=30.0),
    "4 members, one killed after 30 s": Scenario(4, clients=16, kill_at=30.0),
    "4 members, requests of 1 MB": Scenario(4, clients=16, request_bytes=1_000_000),
    "10 members": Scenario(10),
    "10 members, 100 clients": Scenario(10, clients=100),
    "100 members": Scenario(100),
    "1000 members": Scenario(1000, seconds=20.0),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="the name of one scenario to run; its outcome is printed, but not written")
    only = parser.parse_args().only
    outcomes = {}
    for name, scenario in SCENARIOS.items():
        if only is None or only == name:
            outcomes[name] = {"scenario": asdict(scenario), "outcome": asdict(simulate(scenario))}
            print(name, json.dumps(outcomes[name]["outcome"]), flush=True)
    if only is None:
        RESULT_FILE.write_text(json.dumps(outcomes, indent=2) + "\n")


if __name__ == "__main__":
    main()
