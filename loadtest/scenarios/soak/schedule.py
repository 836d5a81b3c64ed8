"""The faults and changes of a run, from a seed."""

import random
from dataclasses import dataclass
from typing import Final

KILL_WORKER: Final = "kill worker"
KINDS: Final = (
    "reload quotas", "alter quotas", "stop broker", KILL_WORKER, "replace certificate", "kill broker", "freeze broker"
)  # fmt: skip

_BOTH_UNTIL, _SECOND_UNTIL = 0.15, 0.3
"""Parts of the run in which worker 0 and worker 1 are killed. A worker fills its heap for about an hour, and that is no leak.
So both live for most of the run after their last start."""


@dataclass(frozen=True, slots=True)
class Event:
    """`target` chooses a broker or a factor, for a worker it is its number. `seconds` is the length of an absence."""

    at: float
    kind: str
    target: int
    seconds: float


def schedule_of(seed: int, seconds: float, every: float) -> list[Event]:
    """One event for each period of `every` seconds, but for the first and the last period. Each kind comes once a round."""
    chance = random.Random(seed)
    events: list[Event] = []
    round_: list[str] = []
    at = every
    while at < seconds - every:
        if not round_:
            round_ = list(KINDS)
            chance.shuffle(round_)
        kind = round_.pop()
        begin = at + chance.uniform(0, every / 4)
        target, absence = chance.randrange(6), chance.uniform(3, 9)
        if kind == KILL_WORKER:
            if begin > seconds * _SECOND_UNTIL:
                kind = "reload quotas"
            else:
                target = target % 2 if begin < seconds * _BOTH_UNTIL else 1
        events.append(Event(begin, kind, target, absence))
        at += every
    return events
