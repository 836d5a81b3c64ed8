"""Measures how evenly up to a thousand gateways divide one quota, and the price of their messages: `python -m
loadtest.scenarios.thousand_gateways`.

It runs real engines and members in simulated time, as `sharing_simulation` does. All clients begin at the same moment with full
buckets: the worst case. `A model` has a tenth of the gateways, the clients and the quota, see `tenth`.
"""

import argparse
import json
from collections import defaultdict
from dataclasses import asdict, dataclass
from itertools import pairwise
from statistics import quantiles
from time import process_time

from gateway.features.sharing.member import CROWD, Member
from gateway.features.sharing.shared_usage import most_rows, reading_pause
from gateway.features.sharing.use_message import EntityUse, UseMessage, encode, parse, parse_member
from gateway.quotas.engine import QuotaEngine
from gateway.quotas.entity import DEFAULT, ClientQuotaEntity, EntityQuota, Tags
from gateway.quotas.settings import QuotaSettings
from loadtest.scenarios.sharing_simulation import ROUND_TRIP, Scenario, Simulation
from loadtest.testkit.paths import RESULTS

RESULT_FILE = RESULTS / "thousand-gateways.json"
ENTITIES = 500
"""The number of entities in the messages that are read at full size."""

SPAN = 10
"""Seconds of which the rate is compared with the quota."""


@dataclass(frozen=True, slots=True)
class Crowd(Scenario):
    """Clients of one entity at many gateways. `spread` is the way in which the clients choose their gateways:

    `all`: one after the other. `some`: at every tenth gateway. `zipf`: the n-th gateway has a part in proportion to 1/n.
    """

    spread: str = "all"


@dataclass(frozen=True, slots=True)
class Evenness:
    """Rates are fractions of the quota, after the burst and its debt. `empty_seconds` is the fraction without any byte.

    A client's gap is its longest pause, in pauses of an even flow; `client_gap` is the 99th percentile of all clients.
    Messages, bytes and CPU are those of one gateway in one second. CPU seconds are those of reading messages and dividing.
    """

    gateways: int
    clients: int
    rate: float
    lowest_ten_seconds: float
    highest_ten_seconds: float
    empty_seconds: float
    lowest_second: float
    highest_second: float
    client_gap: float
    overshoot_bytes: int
    messages_sent: float
    messages_read: float
    bytes_read: float
    cpu: float


class CrowdSimulation(Simulation):
    """The CPU of the first gateway is measured."""

    scenario: Crowd

    def __init__(self, scenario: Crowd) -> None:
        super().__init__(scenario)
        self.cpu = 0.0
        self.bytes = 0
        self.sent: dict[int, list[float]] = defaultdict(list)
        self._places = self._placed(scenario.clients or scenario.members)

    def _placed(self, clients: int) -> list[int]:
        members = range(self.scenario.members)
        if self.scenario.spread == "some":
            members = members[::10]
        if self.scenario.spread == "zipf":
            return self.random.choices(members, [1 / (number + 1) for number in members], k=clients)
        return [members[client % len(members)] for client in range(clients)]

    def _step(self, number: int, now: float) -> None:
        began = process_time()
        super()._step(number, now)
        if number == 0:
            self.cpu += process_time() - began

    def _deliver(self, key: bytes, value: bytes | None, now: float) -> None:
        self.bytes += len(key) + len(value or b"")
        began = process_time()
        identity, message = parse_member(key), None if value is None else parse(value)
        self.members[0].handle(identity, message, now)
        self.cpu += process_time() - began
        for member in self.members[1:]:
            member.handle(identity, message, now)

    def _send(self, client: int, number: int, now: float) -> None:
        number = self._places[client]
        bucket = self.engines[number].acquire_path("produce", "alice", f"client-{client}", now)[0]
        delay, _ = bucket.charge(self.scenario.request_bytes, now)
        self.engines[number].release(bucket, now)
        self.used.append((now, self.scenario.request_bytes))
        self.sent[client].append(now)
        self.at(now + max(delay, ROUND_TRIP * (0.5 + self.random.random())), lambda when: self._send(client, number, when))

    def evenness(self) -> Evenness:
        outcome = self.run()
        scenario, begin = self.scenario, self.begun
        end = begin + scenario.seconds
        # If the clients have not used the burst up early, the second half counts.
        settled = end - scenario.seconds / 2 if self.paid is None else min(self.paid, end - scenario.seconds / 2)
        seconds = [0.0] * int(end - settled)
        for when, amount in self.used:
            if when >= settled and int(when - settled) < len(seconds):
                seconds[int(when - settled)] += amount / scenario.quota
        spans = [sum(seconds[first : first + SPAN]) / SPAN for first in range(len(seconds) - SPAN + 1)]
        even = outcome.clients * scenario.request_bytes / scenario.quota
        gaps = []
        for times in self.sent.values():
            late = [when for when in times if when >= settled]
            points = [settled, *late, end]
            gaps.append(max(after - before for before, after in pairwise(points)) / even)
        elapsed = begin + scenario.seconds
        return Evenness(
            gateways=scenario.members,
            clients=outcome.clients,
            rate=round(sum(seconds) / len(seconds), 3),
            lowest_ten_seconds=round(min(spans), 3),
            highest_ten_seconds=round(max(spans), 3),
            empty_seconds=round(seconds.count(0.0) / len(seconds), 3),
            lowest_second=round(min(seconds), 3),
            highest_second=round(max(seconds), 3),
            client_gap=round(quantiles(gaps, n=100)[-1] if len(gaps) > 1 else gaps[0], 2),
            overshoot_bytes=outcome.overshoot_bytes,
            messages_sent=round(self.messages / elapsed / scenario.members, 2),
            messages_read=round(self.messages / elapsed, 1),
            bytes_read=round(self.bytes / elapsed),
            cpu=round(self.cpu / elapsed, 4),
        )


def tenth(gateways: int, clients: int = 0, quota: float = 10_000_000.0, seconds: float = 60.0, spread: str = "all") -> Crowd:
    """A model of so many gateways, with a tenth of the gateways, the clients and the quota.

    A tenth of the members is a crowd, so the interval is that of all gateways. Each of them reads a tenth of the messages.
    """
    plain = Scenario(gateways)
    latency = plain.latency + reading_pause(plain.interval * gateways / CROWD, plain.interval)
    return Crowd(
        gateways // 10, clients // 10, latency=latency, quota=quota / 10, seconds=seconds, spread=spread, crowd=CROWD // 10
    )


@dataclass(frozen=True, slots=True)
class Reading:
    """The cost of a member that reads full messages of all `gateways` peers. `cores` is for the messages of one second."""

    gateways: int
    rows: int
    microseconds_per_row: float
    cores: float


def reading(gateways: int) -> Reading:
    quota = EntityQuota(ClientQuotaEntity(user=DEFAULT), {"producer_byte_rate": 10_000_000.0})
    member = Member(f"{1:016x}", QuotaEngine(QuotaSettings(quotas=(quota,)), 0.0, shared=True), Scenario(1).interval, 0.0)
    rows, now, spent = most_rows(gateways), 0.0, 0.0
    for sequence in (1, 2, 3):  # a peer's second message makes it known, and the third one is measured
        now += member.interval
        for peer in range(2, gateways + 2):
            names = (f"user-{(peer + place) % ENTITIES}" for place in range(rows))
            uses = tuple(EntityUse("produce", Tags(name, None), 1_000 * sequence, 500) for name in names)
            message = encode(UseMessage(sequence, uses))
            began = process_time()
            member.receive(f"{peer:016x}".encode(), message, now)
            spent += process_time() - began if sequence == 3 else 0.0
        began = process_time()
        member.step(now)
        spent += process_time() - began if sequence == 3 else 0.0
        member.receive(f"{1:016x}".encode(), encode(UseMessage(sequence, ())), now)
    per_row = spent / gateways / rows
    return Reading(gateways, rows, round(per_row * 1e6, 1), round(spent / member.interval, 3))


SCENARIOS = {
    "1 gateway, 16 clients": Crowd(1, 16),
    "20 gateways": Crowd(20),
    "20 gateways, clients at 2": Crowd(20, spread="some"),
    "20 gateways, uneven": Crowd(20, 40, spread="zipf"),
    "100 gateways": Crowd(100, seconds=40.0),
    "200 gateways, model": tenth(200),
    "1000 gateways, model": tenth(1_000),
    "1000 gateways, model, clients at 100": tenth(1_000, spread="some"),
    "1000 gateways, model, uneven": tenth(1_000, spread="zipf"),
    "1000 gateways, model, 40 clients": tenth(1_000, 40),
    "1000 gateways, model, 3000 clients": tenth(1_000, 3_000),
    "1000 gateways, model, 100 MB/s": tenth(1_000, quota=100_000_000.0),
    "1000 gateways, model, 1 MB/s": tenth(1_000, quota=1_000_000.0, seconds=120.0),
    "1000 gateways": Crowd(1_000, latency=0.22, seconds=20.0),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=list(SCENARIOS), help="run this scenario, and write no file")
    only = parser.parse_args().only
    outcomes: dict[str, dict[str, object]] = {}
    for name, scenario in SCENARIOS.items():
        if only is None or name in only:
            outcomes[name] = {"scenario": asdict(scenario), "outcome": asdict(CrowdSimulation(scenario).evenness())}
            print(name, json.dumps(outcomes[name]["outcome"]), flush=True)
    for gateways in () if only else (8, 20, 100, 1_000):
        outcomes[f"full messages of {gateways} gateways"] = {"outcome": asdict(reading(gateways))}
        print(outcomes[f"full messages of {gateways} gateways"], flush=True)
    if only is None:
        RESULT_FILE.write_text(json.dumps(outcomes, indent=2) + "\n")


if __name__ == "__main__":
    main()
