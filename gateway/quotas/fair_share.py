"""The division of a capacity among groups: guarantees first, and the rest by weight (weighted max-min, water-filling).

All amounts are in units per second. `inf` is a demand without a bound, or a missing ceiling.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Final

ROOT: Final = -1
"""The `parent` of a share that has none."""


@dataclass(frozen=True, slots=True)
class Share:
    """One group's part in the division. `parent` is the index of another share of the same tree, or `ROOT`."""

    parent: int = ROOT
    weight: float = 1.0
    guarantee: float = 0.0
    ceiling: float = inf


def fill(capacity: float, wants: list[float], firsts: list[float], weights: list[float]) -> list[float]:
    """Divide `capacity`: first each group gets its `firsts`, then weights divide the rest. No `firsts` exceed a want.

    A part that somebody does not want goes to the others. If the capacity is too small for all `firsts`, they are cut in
    proportion.
    """
    if sum(wants) <= capacity:
        return wants
    needed = sum(firsts)
    if needed > capacity:
        return [capacity * first / needed for first in firsts]
    found = list(firsts)
    rest = capacity - needed
    # The level of the water is the rest that each unit of weight gets. Those with the lowest brim are full first.
    open_ended = sorted(
        [
            ((wants[index] - firsts[index]) / weights[index], index)
            for index in range(len(wants))
            if wants[index] > firsts[index]
        ]
    )
    weight = sum([weights[index] for _, index in open_ended])
    last = len(open_ended) - 1
    for position, (_, index) in enumerate(open_ended):
        part = rest if position == last else rest * weights[index] / weight
        part = min(part, wants[index] - firsts[index])
        found[index] += part
        rest -= part
        weight -= weights[index]
    return found


class ShareTree:
    """The shares of one quota kind, each behind its parent.

    A share without a parent has a ceiling: the capacity of its tree. `entitlements` are the parts that the shares may use at
    any time, even if everybody wants everything. Only a change of the configuration changes them.
    """

    __slots__ = ("_ceilings", "_children", "_guarantees", "_parents", "_weights", "entitlements")

    def __init__(self, shares: Sequence[Share]) -> None:
        """Raises ValueError for a share before its parent, and for a root without a ceiling."""
        self._parents = [share.parent for share in shares]
        self._weights = [share.weight for share in shares]
        self._guarantees = [share.guarantee for share in shares]
        self._ceilings = [share.ceiling for share in shares]
        self._children: list[list[int]] = [[] for _ in shares]
        for index, share in enumerate(shares):
            if share.parent >= index:
                raise ValueError(f"share {index} stands before its parent {share.parent}")
            if share.parent >= 0:
                self._children[share.parent].append(index)
            elif share.ceiling == inf:
                raise ValueError(f"share {index} has neither a parent nor a ceiling")
        self.entitlements = self.divide([inf] * len(shares))

    def divide(self, demands: Sequence[float]) -> list[float]:
        """The allocation of each share. The demand of a share with children is that of its children, so its own is ignored.

        A guarantee below a share counts as that share's too, as far as it is wanted: otherwise its parent could not give it.
        """
        count = len(self._parents)
        wants, firsts = [0.0] * count, [0.0] * count
        for index in range(count - 1, -1, -1):
            want = min(wants[index] if self._children[index] else demands[index], self._ceilings[index])
            if want <= 0.0:
                wants[index] = 0.0
                continue
            first = min(max(self._guarantees[index], firsts[index]), want)
            wants[index], firsts[index] = want, first
            parent = self._parents[index]
            if parent >= 0:
                wants[parent] += want
                firsts[parent] += first
        found = [0.0] * count
        for index in range(count):
            if self._parents[index] < 0:
                found[index] = wants[index]
            if found[index] > 0.0:
                members = [child for child in self._children[index] if wants[child] > 0.0]
                parts = fill(
                    found[index],
                    [wants[child] for child in members],
                    [firsts[child] for child in members],
                    [self._weights[child] for child in members],
                )
                for position, child in enumerate(members):
                    found[child] = parts[position]
        return found
