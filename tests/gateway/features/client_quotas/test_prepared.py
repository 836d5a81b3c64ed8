"""Changes of thousands of rows: a thread prepares them, and the event loop only puts them into effect."""

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from unittest.mock import patch

import pytest

from gateway.background import BackgroundTasks
from gateway.events import QuotaChanged
from gateway.quotas.entity import ClientQuotaEntity, DynamicQuotas
from gateway.quotas.quota_table import QuotaTable, TableChange
from tests.gateway.config.texts import entities, parsed
from tests.gateway.features.client_quotas.test_temporary import END, ROWS, Gateway

AFTER = parsed(entities("{user: alice, producer_byte_rate: 2000000}", *ROWS[1:])).quotas


@pytest.fixture
def threads() -> Iterator[list[threading.Thread]]:
    """The threads that have computed a change of tables, one entry for each change."""
    found: list[threading.Thread] = []
    computed = QuotaTable.followed_by

    def noted(self: QuotaTable, *arguments: object) -> TableChange:
        found.append(threading.current_thread())
        return computed(self, *arguments)  # type: ignore[arg-type]

    with patch.object(QuotaTable, "followed_by", noted):
        yield found


def test_prepared_reload_computes_nothing(threads: list[threading.Thread]) -> None:
    gateway = Gateway(*ROWS, now=END)
    gateway.quotas.prepare(AFTER)
    threads.clear()
    assert gateway.limit() == 1e6
    gateway.quotas.apply(AFTER)
    assert threads == []
    assert gateway.limit() == 2e6
    (event,) = gateway.events
    assert isinstance(event, QuotaChanged)
    assert (event.old_limit, event.new_limit, event.source) == (1e6, 2e6, "file")


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


async def test_thread_prepares_the_end_of_a_grant(threads: list[threading.Thread]) -> None:
    gateway = Gateway(*ROWS, now=END - timedelta(seconds=1))
    gateway.quotas._now = lambda: gateway.now
    async with asyncio.timeout(30), BackgroundTasks(Counter()) as tasks:
        gateway.now = END
        gateway.quotas.start(tasks)
        await gateway.reconsidered.wait()
        await gateway.quotas.stop()
    assert gateway.limit() == 1e6
    assert [thread is threading.main_thread() for thread in threads] == [False]
