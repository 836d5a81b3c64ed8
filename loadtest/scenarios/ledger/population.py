"""The entities of a generated ledger: some thousands, a few of them large, and a few far above their quota."""

import json
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

KINDS = ("produce", "fetch", "controller_mutation")
_OF_KIND = (0.62, 0.36, 0.02)
_GREEDY = 0.3


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
