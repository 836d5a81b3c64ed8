from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.quotas.fair_share import ROOT, Share, ShareTree

ORACLES = {
    "wants_below_their_part": (120, [Share(0), Share(0), Share(0)], [1000, 50, 10], [60, 50, 10]),
    "weights": (100, [Share(0, 3), Share(0)], [inf, inf], [75, 25]),
    "guarantee": (100, [Share(0), Share(0, guarantee=80)], [inf, inf], [10, 90]),
    "ceiling": (100, [Share(0, ceiling=30), Share(0)], [inf, inf], [30, 70]),
    "idle_group": (100, [Share(0, 3), Share(0), Share(0)], [inf, 0, inf], [75, 0, 25]),
    "two_levels": (100, [Share(0, 2), Share(1), Share(1), Share(0)], [0, inf, 0, inf], [200 / 3, 200 / 3, 0, 100 / 3]),
    "idle_guarantee_is_lent": (100, [Share(0), Share(0, guarantee=80)], [inf, 0], [100, 0]),
    "guarantee_below_a_parent": (
        100, [Share(0), Share(1, guarantee=80), Share(1), Share(0)], [0, inf, 0, inf], [90, 90, 0, 10],
    ),
    "idle_guarantee_below_a_parent_is_lent": (
        100, [Share(0), Share(1, guarantee=80), Share(1), Share(0)], [0, 0, inf, inf], [50, 0, 50, 50],
    ),
    "guarantees_above_the_capacity": (60, [Share(0, guarantee=80), Share(0, guarantee=40)], [inf, inf], [40, 20]),
}  # fmt: skip


@pytest.mark.parametrize(("capacity", "shares", "demands", "expected"), ORACLES.values(), ids=ORACLES)
def test_oracle(capacity, shares, demands, expected):
    tree = ShareTree([Share(ceiling=capacity), *shares])
    assert tree.divide([0.0, *demands])[1:] == pytest.approx(expected)


def test_entitlement_is_the_part_while_all_want_everything():
    tree = ShareTree([Share(ceiling=100), Share(0, 3), Share(0, guarantee=20, ceiling=30)])
    assert tree.entitlements == pytest.approx([100, 70, 30])


def test_trees_of_one_kind_are_divided_apart():
    tree = ShareTree([Share(ceiling=100), Share(ceiling=10), Share(0), Share(1), Share(1)])
    assert tree.divide([0, 0, inf, 7, inf]) == pytest.approx([100, 10, 100, 5, 5])


def test_child_before_its_parent_is_refused():
    with pytest.raises(ValueError, match="share 0 stands before its parent 1"):
        ShareTree([Share(1), Share(ceiling=100)])


def test_root_without_ceiling_is_refused():
    with pytest.raises(ValueError, match="neither a parent nor a ceiling"):
        ShareTree([Share()])


NUMBERS = st.integers(0, 200).map(float)


@st.composite
def trees(draw):
    """Shares whose ceilings have room for all guarantees below them, and the demands of the leaves."""
    parents = draw(st.lists(st.integers(0, 7), min_size=1, max_size=7))
    parents = [ROOT, *(min(parent, index) for index, parent in enumerate(parents))]
    weights, guarantees = (draw(st.lists(NUMBERS, min_size=len(parents), max_size=len(parents))) for _ in range(2))
    demands, ceilings = (draw(st.lists(NUMBERS | st.just(inf), min_size=len(parents), max_size=len(parents))) for _ in range(2))
    below = list(guarantees)
    for index in range(len(parents) - 1, 0, -1):
        below[index] = max(guarantees[index], below[index] if index in parents else 0.0)
        below[parents[index]] += below[index]
    ceilings = [max(ceiling, least, 1.0) for ceiling, least in zip(ceilings, below, strict=True)]
    ceilings[0] = max(below[0], 100.0)
    demands = [0.0 if index in parents else demand for index, demand in enumerate(demands)]
    weights = [weight + 1.0 for weight in weights]
    return [Share(*share) for share in zip(parents, weights, guarantees, ceilings, strict=True)], demands


def wanted(shares, demands):
    """The demand of each share, capped by ceilings from the leaves up."""
    wants = list(demands)
    for index in range(len(shares) - 1, -1, -1):
        wants[index] = min(wants[index], shares[index].ceiling)
        if shares[index].parent >= 0:
            wants[shares[index].parent] += wants[index]
    return wants


def children(shares, index):
    return [child for child, share in enumerate(shares) if share.parent == index]


@given(trees())
def test_no_allocation_exceeds_demand_or_ceiling_or_parent(tree):
    shares, demands = tree
    wants, found = wanted(shares, demands), ShareTree(shares).divide(demands)
    for index in range(len(shares)):
        assert 0 <= found[index] <= min(wants[index], shares[index].ceiling) * (1 + 1e-9)
        assert sum(found[child] for child in children(shares, index)) <= found[index] * (1 + 1e-9) + 1e-9


@given(trees())
def test_nothing_is_left_while_somebody_wants_more(tree):
    shares, demands = tree
    wants, found = wanted(shares, demands), ShareTree(shares).divide(demands)
    for index in range(len(shares)):
        below = children(shares, index)
        if below and any(found[child] < wants[child] * (1 - 1e-9) - 1e-9 for child in below):
            assert sum(found[child] for child in below) == pytest.approx(found[index])


@given(trees())
def test_division_is_max_min_above_the_guarantees(tree):
    """A sibling that wants more has the largest rest for its weight: nobody above its own guarantee has more."""
    shares, demands = tree
    wants, found = wanted(shares, demands), ShareTree(shares).divide(demands)
    firsts = [0.0] * len(shares)
    for index in range(len(shares) - 1, -1, -1):
        firsts[index] = min(max(shares[index].guarantee, firsts[index]), wants[index])
        if shares[index].parent >= 0:
            firsts[shares[index].parent] += firsts[index]
    for index in range(len(shares)):
        below = children(shares, index)
        levels = {child: (found[child] - firsts[child]) / shares[child].weight for child in below}
        hungry = [levels[child] for child in below if found[child] < wants[child] * (1 - 1e-9) - 1e-9]
        if hungry:
            assert max(levels.values()) <= min(hungry) + 1e-6 * (1 + min(hungry))


@given(trees())
def test_wanted_guarantee_is_given(tree):
    shares, demands = tree
    wants, found = wanted(shares, demands), ShareTree(shares).divide(demands)
    for index, share in enumerate(shares):
        assert found[index] >= min(share.guarantee, wants[index]) * (1 - 1e-9)
