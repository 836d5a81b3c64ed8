"""The faults and changes of a run, from a seed."""

import random
from dataclasses import dataclass
from typing import Final

from loadtest.scenarios.soak.setting import WORKERS

KILL_WORKER: Final = "kill worker"
REPEATED: Final = (
    "reload quotas", "alter quotas", "stop broker", "replace certificate", "kill broker", "freeze broker"
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Event:
    """`target` chooses a broker or a factor, for a worker it is its number. `seconds` is the length of an absence."""

    at: float
    kind: str
    target: int
    seconds: float


def schedule_of(seed: int, seconds: float, every: float) -> list[Event]:
    """One event for each period of `every` seconds, but for the first and the last. Each repeated kind comes once a round.

    The first round kills each worker as well. The heap of a new worker grows for about an hour, without a leak.
    """
    chance = random.Random(seed)
    events: list[Event] = []
    round_ = [*REPEATED, *[KILL_WORKER] * WORKERS]
    victims = iter(range(WORKERS))
    chance.shuffle(round_)
    at = every
    while at < seconds - every:
        if not round_:
            round_ = list(REPEATED)
            chance.shuffle(round_)
        kind = round_.pop()
        begin = at + chance.uniform(0, every / 4)
        target, absence = chance.randrange(6), chance.uniform(3, 9)
        events.append(Event(begin, kind, next(victims) if kind == KILL_WORKER else target, absence))
        at += every
    return events
