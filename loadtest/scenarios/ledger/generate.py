"""Generates a large ledger hour by hour: draws all numbers at once, then builds lines from them.

Its population has some thousand entities, a few of them large, and a few far above their quota.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gateway.events import (
    ConfigApplied,
    ConnectionRejected,
    QuotaChanged,
    TopicRejected,
    VolumeStateChanged,
    to_line,
)
from gateway.ledger_paths import file_name, partition
from gateway.throttle_slots import throttle_slot
from loadtest.scenarios.ledger.files import write_lines

KINDS = ("produce", "fetch", "controller_mutation")
_OF_KIND = (0.62, 0.36, 0.02)
_GREEDY = 0.3
HOUR_MS, MINUTE_MS = 3_600_000, 60_000
_APIS = ("Produce", "Fetch", "CreateTopics")
_MARGIN = 1.4
"""Draws more lines than wanted by this factor, and drops the surplus at random."""


@dataclass(frozen=True)
class Population:
    """Entities by number. `who` and `quota` are pieces of JSON; `limit` and `usual` are units/s.

    `active` is the probability of activity in a minute.
    """

    kind: NDArray[np.int64]
    who: list[str]
    limit: NDArray[np.float64]
    usual: NDArray[np.float64]
    active: NDArray[np.float64]


def population(entities: int, seed: int) -> Population:
    """Returns the same population for the same arguments."""
    random = np.random.default_rng(seed)
    kind = random.choice(len(KINDS), entities, p=_OF_KIND)
    levels = random.choice(3, entities, p=(0.5, 0.3, 0.2))
    limit = np.where(kind == 2, random.choice((2.0, 5.0, 10.0), entities), 2.0 ** random.integers(16, 25, entities))
    greedy = random.random(entities) < _GREEDY
    usual = limit * np.where(greedy, random.uniform(0.9, 1.3, entities), random.beta(1.5, 6.0, entities))
    rank = random.permutation(entities) + 1
    active = np.minimum(1.0, 3.0 * rank**-0.35)
    return Population(kind, [_who(number, int(level)) for number, level in enumerate(levels)], limit, usual, active)


def _who(number: int, level: int) -> str:
    user, client_id = f"user-{number:05d}", f"app-{number % 700}"
    parts = (
        {"user": user, "quota": f"user={user}"},
        {"user": user, "client_id": client_id, "quota": f"user={user}, client-id=<default>"},
        {"client_id": f"{client_id}-{number}", "quota": "client-id=<default>"},
    )[level]
    return json.dumps(parts, separators=(",", ":"))[1:-1]


def write_hour(path: Path, people: Population, start_ms: int, events: int, gateways: int, seed: int) -> int:
    """Write the files of the hour from `start_ms` with `events` lines in total; returns the number of lines."""
    random = np.random.default_rng((seed, start_ms // HOUR_MS))
    lines = _lines(people, start_ms, events, gateways, random)
    if len(lines) > events:
        kept = np.sort(random.choice(len(lines), events, replace=False))
        lines = [lines[each] for each in kept]
    for gateway in range(gateways):
        name = file_name(f"weir-{gateway}", start_ms, 0)
        write_lines(path / partition(start_ms), name, lines[gateway::gateways])
    return len(lines)


def _lines(people: Population, start_ms: int, events: int, gateways: int, random: np.random.Generator) -> list[str]:
    day = 1.0 + 0.5 * np.sin(2 * np.pi * (start_ms % (24 * HOUR_MS)) / (24 * HOUR_MS))
    chance = people.active / people.active.sum() * events * _MARGIN / 60 / 1.15
    lines: list[str] = list(_rare(start_ms, random))
    for minute in range(60):
        at = start_ms + minute * MINUTE_MS
        who = np.flatnonzero(random.random(len(chance)) < chance)
        wanted = people.usual[who] * day * random.lognormal(0.0, 0.35, len(who))
        used = np.minimum(wanted, people.limit[who] * 0.996)
        lines += _usage(people, at, who, used, random.integers(0, gateways, len(who)))
        over = wanted > people.limit[who]
        lines += _throttles(people, at, who[over], (wanted[over] / people.limit[who[over]]) - 1.0, gateways, random)
    return lines


def _usage(
    people: Population, at: int, who: NDArray[np.int64], used: NDArray[np.float64], gateways: NDArray[np.int64]
) -> Iterator[str]:
    amounts = np.ceil(used * 60).astype(np.int64).tolist()
    requests = np.maximum(1, used * 60 // 16_384).astype(np.int64).tolist()
    for one, amount, asked, gateway in zip(who.tolist(), amounts, requests, gateways.tolist(), strict=True):
        yield (
            f'{{"v":1,"type":"usage","time_ms":{at},"gateway":"weir-{gateway}","kind":"{KINDS[people.kind[one]]}",{people.who[one]},'
            f'"limit":{people.limit[one]},"amount":{amount}.0,"requests":{asked},"latency_ms":{asked * (3 + one % 5)}.5}}'
        )


def _throttles(
    people: Population, at: int, who: NDArray[np.int64], over: NDArray[np.float64], gateways: int, random: np.random.Generator
) -> Iterator[str]:
    count = random.integers(1, 40, len(who)).tolist()
    longest = np.minimum(30_000, 1 + over * 2000 * random.exponential(1.0, len(who))).astype(np.int64).tolist()
    offset = np.sort(random.integers(0, MINUTE_MS - 10_000, len(who))).tolist()
    gateway = random.integers(0, gateways, len(who)).tolist()
    early = (random.random(len(who)) < 0.05).tolist()
    for one, times, most, later, through, sent_early in zip(who.tolist(), count, longest, offset, gateway, early, strict=True):
        kind = int(people.kind[one])
        limit = float(people.limit[one])
        half = max(1, most // 2)
        slots = (
            {throttle_slot(half): times - 1, throttle_slot(most): 1}
            if times > 1 and half < most
            else {throttle_slot(most): times}
        )
        sum_ms = half * (times - 1) + most if len(slots) > 1 else most * times
        yield (
            f'{{"v":1,"type":"throttle","time_ms":{at + later},"last_ms":{at + later + 9_500},"gateway":"weir-{through}",'
            f'"kind":"{KINDS[kind]}",{people.who[one]},"address":"10.{one >> 8 & 255}.{one & 255}.7","broker":{one % 3},'
            f'"api":"{_APIS[kind]}","count":{times},"amount":{int(limit * times / 10) + 1}.0,"rate":{limit * 1.2:.1f},'
            f'"limit":{limit},'
            f'"throttle_ms":{sum_ms},"throttle_max_ms":{most},"throttle_slots":{json.dumps(slots)},'
            f'"early_count":{int(sent_early)},"early_ms":{half * sent_early},"early_max_ms":{half * sent_early},'
            f'"enforced":true}}'
        )


def _rare(start_ms: int, random: np.random.Generator) -> Iterator[str]:
    """A few events of every other type in each hour."""
    hour = start_ms // HOUR_MS
    for number in range(40):
        at = start_ms + int(random.integers(0, HOUR_MS - 1))
        yield to_line(
            TopicRejected(
                time_ms=at,
                last_ms=at,
                gateway="weir-0",
                topic=f"topic-{number % 9}",
                user=f"user-{number:05d}",
                broker=number % 3,
                count=number + 1,
                amount=1000.0 * number,
                rate=6e6,
                limit=5e6,
                total_rate=1.1e7,
                total_limit=1e7,
            )
        )
        address = f"10.9.9.{number}"
        yield to_line(
            ConnectionRejected(
                time_ms=at,
                last_ms=at,
                gateway="weir-0",
                reason="max_per_ip",
                address=address,
                listener="clients",
                count=number + 1,
            )
        )
    at = start_ms + 10 * MINUTE_MS
    filling = hour % 2 == 1
    yield to_line(
        VolumeStateChanged(
            time_ms=at,
            gateway="weir-0",
            state="THROTTLE" if filling else "OPEN",
            previous="OPEN" if filling else "THROTTLE",
            factor=0.5 if filling else 1.0,
            reason="soft_limit" if filling else "recovered",
            broker=1,
            volume="/var/kafka",
            capacity_bytes=10**12,
            consumed_bytes=9 * 10**11,
        )
    )
    if hour % 24 == 9:
        user = f"user-{hour % 500:05d}"
        yield to_line(ConfigApplied(time_ms=at, gateway="weir-0", result="success", config_version=str(hour)))
        yield to_line(
            QuotaChanged(
                time_ms=at,
                gateway="weir-0",
                kind="produce",
                quota=f"user={user}",
                user=user,
                old_limit=1e6,
                new_limit=2e6,
                source="api",
                principal="User:admin",
            )
        )
