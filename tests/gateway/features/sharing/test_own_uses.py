"""The use of thousands of accounts is counted and chosen in small steps."""

import random

from gateway.features.sharing.own_uses import OwnUses
from gateway.features.sharing.shared_usage import PIECE, most_rows
from gateway.features.topic_quotas.topic_meters import RATES, AppendedBytes
from gateway.quotas.meter import Window
from gateway.steps import at_once

MEMBERS = 200


def account(appended=0):
    made = AppendedBytes(RATES["window"](Window(), 0.0), 1_000.0)
    made.appended_bytes = appended
    return made


def counted(amounts):
    uses = OwnUses()
    changed = [(("topic", f"t{number}"), account(amount)) for number, amount in enumerate(amounts)]
    at_once(uses.count(changed, 5.0, lambda: 0.0))
    return uses


def test_accounts_are_visited_a_piece_in_each_step():
    visited = []

    def changed():
        for number in range(3 * PIECE):
            visited.append(number)
            yield ("topic", f"t{number}"), account()

    steps = OwnUses().count(changed(), 5.0, lambda: 0.0)
    next(steps)
    assert len(visited) == PIECE


def test_message_has_the_most_urgent_uses_first():
    amounts = list(range(100, 600))
    random.Random(1).shuffle(amounts)
    chosen, left_out = at_once(counted(amounts).chosen(MEMBERS, 1, 0.0))
    assert [use.total for use in chosen] == sorted(amounts, reverse=True)[: most_rows(MEMBERS)]
    assert left_out == 500 - most_rows(MEMBERS)


def test_uses_without_a_meter_to_settle_are_not_listed():
    assert at_once(counted([100]).since(0.0)) == []
