"""Changes of thousands of rows: a thread prepares them, and the event loop only puts them into effect."""

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from gateway.background import BackgroundTasks
from gateway.events import GrantExpired, QuotaChanged
from gateway.features.client_quotas import feature
from gateway.features.client_quotas.feature import _without
from gateway.quotas.entity import ClientQuotaEntity, DynamicQuotas, EntityQuota
from tests.gateway.config.texts import entities, parsed
from tests.gateway.features.client_quotas.test_temporary import END, ROWS, Gateway

AFTER = parsed(entities("{user: alice, producer_byte_rate: 2000000}", *ROWS[1:])).quotas


def test_prepared_reload_computes_nothing() -> None:
    gateway = Gateway(*ROWS, now=END)
    assert gateway.limit() == 1e6
    gateway.quotas.prepare(AFTER)
    prepared = gateway.quotas._prepared
    assert prepared is not None
    gateway.quotas.apply(AFTER)
    assert gateway.engine.table is prepared.tables[0].after
    assert gateway.limit() == 2e6
    (event,) = gateway.events
    assert isinstance(event, QuotaChanged)
    assert event is prepared.events[0]
    assert (event.old_limit, event.new_limit, event.source) == (1e6, 2e6, "file")


def test_prepared_reload_compares_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [f"{{name: g{number}, match: [{{user: u{number}}}], producer_byte_rate: 1000}}" for number in range(3)]
    text = entities(*ROWS[:1]) + "  groups:\n" + "".join(f"    - {row}\n" for row in rows)
    other = parsed(text.replace("1000000", "2000000")).quotas
    gateway = Gateway(*ROWS[:1], now=END)
    gateway.quotas.apply(parsed(text).quotas)
    before = gateway.engine.settings.groups
    gateway.quotas.prepare(other)
    gateway.quotas.apply(other)
    assert gateway.limit() == 2e6
    assert gateway.engine.settings.groups is before
    again = parsed(text.replace("1000000", "2000000")).quotas
    gateway.quotas.prepare(again)
    with monkeypatch.context() as patched:
        patched.setattr(type(again), "__eq__", lambda *_: pytest.fail("the event loop compares thousands of rows"))
        assert gateway.quotas.apply(again) == []
    assert gateway.quotas._section is again


def test_api_change_after_the_preparation_stays() -> None:
    gateway = Gateway(*ROWS, now=END)
    gateway.quotas.prepare(AFTER)
    api: DynamicQuotas = {ClientQuotaEntity("alice"): {"producer_byte_rate": 5.0}}
    gateway.engine.apply(replace(gateway.engine.settings, dynamic=api), 0.0)
    (note,) = gateway.quotas.apply(AFTER)
    assert "stays 5, because this value was set through the API" in note
    assert gateway.limit() == 5.0
    gateway.engine.apply(replace(gateway.engine.settings, dynamic={}), 0.0)
    assert gateway.limit() == 2e6


def test_grant_that_ends_after_the_preparation_ends() -> None:
    gateway = Gateway(*ROWS, now=END - timedelta(seconds=1))
    gateway.quotas.prepare(AFTER)
    gateway.now = END
    gateway.quotas.apply(AFTER)
    changes = [(each.source, each.new_limit) for each in gateway.events if isinstance(each, QuotaChanged)]
    assert changes == [("schedule", 1e6), ("file", 2e6)]
    assert gateway.limit() == 2e6


def test_refused_reload_leaves_nothing_for_the_next() -> None:
    gateway = Gateway(*ROWS, now=END)
    gateway.quotas.prepare(AFTER)
    other = parsed(entities("{user: alice, producer_byte_rate: 3000000}", *ROWS[1:])).quotas
    gateway.quotas.apply(other)
    assert gateway.limit() == 3e6


async def at_end_of_grant(beside: Callable[[], None] = lambda: None) -> Gateway:
    """A gateway whose background task has looked at the quotas after the end of a grant."""
    gateway = Gateway(*ROWS, now=END - timedelta(seconds=1))
    gateway.quotas._now = lambda: gateway.now
    gateway.quotas._beside = beside
    async with asyncio.timeout(30), BackgroundTasks(Counter()) as tasks:
        gateway.now = END
        gateway.quotas.start(tasks)
        await gateway.reconsidered.wait()
        await gateway.quotas.stop()
    return gateway


async def test_grant_ends_without_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    async def no_thread(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("asyncio.to_thread", no_thread)
    gateway = await at_end_of_grant()
    assert gateway.limit() == 1e6


async def test_thread_prepares_the_end_of_a_grant(monkeypatch: pytest.MonkeyPatch) -> None:
    to_thread = asyncio.to_thread
    prepared = []

    async def noted(work: Callable[..., Any], *arguments: object) -> Any:
        prepared.append(await to_thread(work, *arguments))
        return prepared[-1]

    monkeypatch.setattr("asyncio.to_thread", noted)
    beside: list[threading.Thread] = []
    compared: list[threading.Thread] = []

    def without(*rows: Sequence[EntityQuota]) -> list[EntityQuota]:
        compared.append(threading.current_thread())
        return _without(*rows)

    monkeypatch.setattr(feature, "_without", without)
    gateway = await at_end_of_grant(lambda: beside.append(threading.current_thread()))
    assert gateway.limit() == 1e6
    assert len(beside) == 1
    assert len(compared) == 2
    assert threading.main_thread() not in [*beside, *compared]
    assert [(type(event), event.quota) for event in gateway.events if isinstance(event, QuotaChanged | GrantExpired)] == [
        (QuotaChanged, "user=alice"),
        (GrantExpired, "user=alice"),
        (GrantExpired, "user=carol"),
    ]
    assert [step.tables[0].after for step in prepared] == [gateway.engine.table]
