"""The part of `/api/groups` that the live page asks for, and the live page's marks for it."""

import re
from collections.abc import Mapping
from dataclasses import replace
from importlib.resources import files
from typing import Any

import pytest

from gateway.admin.group_list import GroupQuery
from gateway.admin.query import QueryError
from gateway.admin.view import AdminView
from gateway.features.groups.feature import Groups
from gateway.quotas.engine import QuotaEngine
from tests.gateway.admin.serving import visiting
from tests.gateway.quotas.greedy_clients import START
from tests.gateway.quotas.test_group_shares import ALL, group, settings

PAGE = files("gateway.admin").joinpath("dashboard.html").read_text()


def row(name: str, parent: str, kind: str = "produce", use: float = 0.0, *, waits: bool = False) -> dict[str, Any]:
    ceiling = None if parent else 100.0
    return {
        "kind": kind,
        "group": name,
        "parent": parent,
        "use": use,
        "allocation": 0.0,
        "ceiling": ceiling,
        "wants_more": waits,
    }


ROWS = [
    row("all", ""),
    row("pay", "all", use=60.0),
    row("jobs", "all", use=40.0),
    row("cards", "pay", use=10.0),
    row("sepa", "pay", use=50.0),
    row("night", "jobs", use=5.0, waits=True),
    row("all", "", "fetch"),
    row("pay", "all", "fetch", use=1.0),
]


def part(**query: str) -> list[str]:
    return [f"{each['group']}/{each['kind']}" for each in GroupQuery.parse(query).part(ROWS)["groups"]]


def test_all_groups_keep_their_order() -> None:
    assert GroupQuery().part(ROWS) == {"kinds": ["produce", "fetch"], "total": 8, "matching": 8, "groups": ROWS}


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({"kind": "fetch"}, ["all/fetch", "pay/fetch"]),
        ({"text": "night"}, ["all/produce", "jobs/produce", "night/produce"]),
        ({"text": "PAY sep"}, ["all/produce", "pay/produce", "sepa/produce"]),
        ({"text": "pay", "kind": "produce"}, ["all/produce", "pay/produce", "cards/produce", "sepa/produce"]),
        ({"limit": "1"}, ["all/produce", "jobs/produce", "night/produce"]),
        ({"limit": "2"}, ["all/produce", "pay/produce", "jobs/produce", "night/produce"]),
        ({"text": "nobody"}, []),
    ],
    ids=str,
)
def test_part_has_the_groups_above(query: Mapping[str, str], expected: list[str]) -> None:
    assert part(**query) == expected


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ({"kind": "bytes"}, "kind: there is no quota kind 'bytes': use one of produce, fetch, "),
        ({"limit": "0"}, "limit: '0' is out of range: write a number from 1 to 10000"),
        ({"group": "pay"}, "group: there is no such parameter: use some of kind, text, limit"),
    ],
    ids=str,
)
def test_wrong_parameter_names_the_remedy(query: Mapping[str, str], message: str) -> None:
    with pytest.raises(QueryError, match=f"^{re.escape(message)}"):
        GroupQuery.parse(query)


async def test_page_answers_a_part_of_a_thousand_groups(view: AdminView) -> None:
    groups = [group(f"team-{number}", guarantee=number + 1) for number in range(1_000)]
    engine = QuotaEngine(settings(ALL, *groups), START)
    async with visiting(replace(view, engine=engine, features=[Groups(engine, list, shared=False)])) as session:
        async with session.get("/api/groups", params={"limit": "60", "kind": "produce"}) as response:
            answer = await response.json()
        assert (answer["configured"], answer["total"], answer["matching"]) == (True, 1_001, 1_001)
        assert 60 <= len(answer["groups"]) <= 61
        async with session.get("/api/groups", params={"limit": "many"}) as response:
            assert (response.status, await response.text()) == (
                400, "limit: 'many' is out of range: write a number from 1 to 10000\n",
            )  # fmt: skip


def test_page_draws_each_number_of_a_group() -> None:
    drawn = set(re.findall(r"row\.(\w+)", PAGE[PAGE.index("const MOST_GROUPS") : PAGE.index("async function showGroups")]))
    engine = QuotaEngine(settings(ALL, group("a")), START)
    groups = Groups(engine, list, shared=False)
    (first, *_) = groups.as_json(groups.report())["groups"]
    assert drawn <= set(first)
    assert set(first) - drawn == {"unit"}
