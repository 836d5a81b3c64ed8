"""The page of an entity: its own quotas, no other entity's names, and no script."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import pytest
from aiohttp import ClientSession
from yarl import URL

from gateway.admin.entity_page import (
    EXPLAIN,
    EntityNames,
    EntityPages,
    EntityUsage,
    entity_page,
    explain_page,
)
from gateway.admin.explanation import ClientNames
from gateway.admin.http import Page, PageServer
from gateway.admin.query import NoWorkerAnswersError
from gateway.admin.rows import described
from gateway.admin.view import AdminView
from gateway.config.places import Places
from gateway.quotas.engine import QuotaEngine
from gateway.steps import at_once
from tests.gateway.admin.serving import served, visiting
from tests.gateway.features.notify.rows import used
from tests.gateway.quotas.engines import bucket_of


@asynccontextmanager
async def serving(pages: Mapping[str, Page]) -> AsyncIterator[ClientSession]:
    async with (
        served(PageServer(pages, None, ("127.0.0.1", 0), tuple)) as server,
        ClientSession(f"http://127.0.0.1:{server.port}") as session,
    ):
        yield session


async def page(client: ClientSession, **names: str) -> str:
    async with client.get("/entities", params={name.replace("_", "-"): value for name, value in names.items()}) as answer:
        assert answer.status == 200
        assert "script-src" not in answer.headers["Content-Security-Policy"]
        return await answer.text()


async def test_page_names_the_quota_that_binds(client: ClientSession) -> None:
    text = await page(client, user="alice", client_id="etl")
    assert "Throttled now by producer_byte_rate." in text
    for fact in ("97.7 KiB/s (producer_byte_rate)", "130% of the limit", "weir.yaml:6", "2026-01-01T00:00:00.250Z", "3.0 s"):
        assert fact in text, fact
    assert "user=&lt;default&gt;, client-id=&lt;default&gt;" in text
    assert "2 requests, by up to 1.5 s" in text


def test_page_counts_unenforced_throttles_apart(view: AdminView) -> None:
    row = at_once(
        described([used(1.2, throttled_total=12, unenforced_total=9)], Places(view.effective.config, "weir.yaml"), 0.0)
    )[0]
    text = entity_page(EntityNames("alice", None, None), [row], EntityUsage([row], True, "now"))
    assert "12 requests, 0.0 s in sum; 9 of them not enforced" in text


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"throttle_left": 1.0}, "Throttled since"),
        ({"unthrottled_seconds": 4.0}, "Throttled since"),
        ({"unthrottled_seconds": 40.0}, "Last throttling began"),
        ({"shadow": True}, "Would throttle since"),
    ],
)
def test_begin_of_an_episode_has_its_name(view: AdminView, values: dict[str, Any], words: str) -> None:
    """An episode lasts a minute longer than its last throttle, and a shadow limit delays nobody."""
    given = used(1.2, **{"throttled_seconds": 50.0, "throttle_left": 0.0, **values})
    (row,) = at_once(described([given], Places(view.effective.config, "weir.yaml"), 100.0))
    text = entity_page(EntityNames("alice", None, None), [row], EntityUsage([row], True, "now"))
    names = ("Throttled since", "Last throttling began", "Would throttle since")
    assert [name for name in names if name in text] == [words]
    assert ("Throttled now" in text) == (words == "Throttled since")
    assert ("throttling begins at 100%" in text) == (not given.shadow)


def test_page_shows_each_broker_apart(view: AdminView) -> None:
    places = Places(view.effective.config, "weir.yaml")
    rows = at_once(described([used(0.2, broker="1"), used(0.3, broker="2")], places, 0.0))
    entity = EntityNames("alice", None, None)
    text = entity_page(entity, [row for row in rows if entity.owns(row)], EntityUsage(rows, True, "now"))
    assert text.count("user alice, broker 1") == text.count("user alice, broker 2") == 1


async def test_page_shows_nothing_of_other_entities(client: ClientSession) -> None:
    for names in ({"user": "alice"}, {"client_id": "etl"}, {"user": "alice", "client_id": "etl"}):
        text = await page(client, **names)
        assert "bob" not in text
        assert "app" not in text


async def test_json_has_the_rows_of_the_entity_only(client: ClientSession) -> None:
    async with client.get("/api/entities", params={"user": "bob"}) as response:
        answer = await response.json()
    assert answer["entity"] == {"user": "bob", "client_id": None, "ip": None, "group": None}
    assert [(row["kind"], row["user"], row["client_id"], row["unit"]) for row in answer["rows"]] == [
        ("produce", "bob", "app", "bytes/s"),
    ]
    assert "throttle_time_ms" in answer["early"]


async def test_entity_without_use_is_explained(client: ClientSession) -> None:
    assert "No recent use." in await page(client, user="nobody")


async def test_explanation_gets_names_with_percent_still_encoded() -> None:
    queries: list[str] = []

    async def explain(client: ClientNames, query: str) -> dict[str, str]:
        queries.append(query)
        return {"user": client.user}

    async with serving({EXPLAIN: explain_page(explain)}) as session, session.get(EXPLAIN, params={"user": "a%26b=c"}) as answer:
        assert await answer.json() == {"user": "a%26b=c"}
    assert URL(f"/?{queries[0]}", encoded=True).query == {"user": "a%26b=c"}


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("client_id", "etl", "client_id: there is no such parameter: use some of user, client-id, ip, claim, catch-up"),
        ("ip", "10.0.0.0/8", "ip: '10.0.0.0/8' is not an IP address"),
        ("claim", "payments", "claim: 'payments' is not a claim: write one such as groups=payments"),
    ],
)
async def test_explanation_of_invalid_query_is_refused(name: str, value: str, message: str) -> None:
    async def explain(client: ClientNames, query: str) -> dict[str, str]:
        return {"user": client.user}

    async with serving({EXPLAIN: explain_page(explain)}) as session:
        async with session.get(EXPLAIN, params={name: value}) as answer:
            assert (answer.status, message in await answer.text()) == (400, True)
        async with session.get(EXPLAIN, params={"ip": "", "claim": "a=b", "catch-up": ""}) as answer:
            assert answer.status == 200


async def test_explanation_finds_address_in_any_spelling() -> None:
    async def explain(client: ClientNames, query: str) -> dict[str, str]:
        return {"ip": client.ip}

    async with serving({EXPLAIN: explain_page(explain)}) as session:
        for given, found in (("2001:DB8:0::7", "2001:db8::7"), ("::ffff:10.0.0.7", "10.0.0.7")):
            async with session.get(EXPLAIN, params={"ip": given}) as answer:
                assert await answer.json() == {"ip": found}


async def test_entity_is_found_by_its_address_in_any_spelling(client: ClientSession) -> None:
    async with client.get("/api/entities", params={"ip": "::ffff:10.0.0.7"}) as answer:
        assert (await answer.json())["entity"]["ip"] == "10.0.0.7"
    async with client.get("/entities", params={"ip": "banana"}) as answer:
        assert (answer.status, "ip: 'banana' is not an IP address" in await answer.text()) == (400, True)


@pytest.mark.parametrize("path", ["/entities", "/api/entities"])
async def test_wrong_name_of_a_part_is_named(client: ClientSession, path: str) -> None:
    async with client.get(f"{path}?client_id=etl") as answer:
        assert answer.status == 400
        assert await answer.text() == "client_id: there is no such parameter: use some of user, client-id, ip, group\n"


async def test_request_without_a_name_is_refused(client: ClientSession) -> None:
    async with client.get("/entities") as answer:
        assert answer.status == 400
        assert "?user=NAME" in await answer.text()


async def test_page_checks_the_host(client: ClientSession) -> None:
    async with client.get("/entities?user=alice", headers={"Host": "evil.example"}) as answer:
        assert answer.status == 421


class Tags(HTMLParser):
    """The names of all elements of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.add(tag)


async def test_names_are_escaped(view: AdminView, engine: QuotaEngine) -> None:
    evil = "<script>alert(1)</script>$entity&\"'"
    bucket = bucket_of(engine, "produce", evil, "<img src=x>", view.monotonic())
    bucket.charge(2_000_000, view.monotonic())
    bucket.episode.note_address("<b>10.0.0.1")
    async with visiting(replace(view, engine=engine)) as client:
        text = await page(client, user=evil)
    found = Tags()
    found.feed(text)
    assert found.names.isdisjoint({"script", "img"})
    assert "&lt;script&gt;alert(1)&lt;/script&gt;$entity&amp;" in text
    assert "&lt;img src=x&gt;" in text


@pytest.mark.parametrize(
    ("names", "row", "owned"),
    [
        (("alice", None, None), ("alice", "", ""), True),
        (("alice", None, None), ("alice", "etl", ""), True),
        (("alice", None, None), ("", "etl", ""), False),
        (("alice", "etl", None), ("", "etl", ""), True),
        (("alice", "etl", None), ("bob", "etl", ""), False),
        (("alice", "etl", None), ("alice", "app", ""), False),
        ((None, "etl", None), ("", "etl", ""), True),
        ((None, "etl", None), ("bob", "etl", ""), False),
        ((None, None, "10.0.0.1"), ("", "", "10.0.0.1"), True),
        ((None, None, "10.0.0.1"), ("", "", "10.0.0.2"), False),
        (("alice", None, None), ("", "", "10.0.0.2"), False),
        (("<other>", None, None), ("<other>", "<other>", ""), False),
        ((None, None, None, "jobs"), ("", "", "", "jobs"), True),
        ((None, None, None, "jobs"), ("", "", "", "others"), False),
        ((None, None, None, "jobs"), ("", "jobs", ""), False),
        (("alice", None, None), ("", "", "", "alice"), False),
    ],
)
def test_buckets_of_an_entity(names: tuple[str, ...], row: tuple[str, ...], owned: bool) -> None:
    user, client_id, ip, group = (*row, "")[:4]
    assert EntityNames(*names).owns({"user": user, "client_id": client_id, "ip": ip, "group": group}) is owned


async def test_without_a_worker_the_page_answers_503() -> None:
    async def silent() -> EntityUsage:
        raise NoWorkerAnswersError

    async with serving(EntityPages(silent).pages()) as session, session.get("/entities?user=a") as answer:
        assert (answer.status, await answer.text()) == (503, "no worker answers\n")
