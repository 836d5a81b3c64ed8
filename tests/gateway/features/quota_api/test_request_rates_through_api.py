"""`request_rates` that an administrator sets through the quota API, on the connection of a client that floods."""

import asyncio

import pytest

from gateway import clock
from gateway.features.quota_api.handlers import handler_factories
from gateway.quotas.entity import ClientQuotaEntity, Source
from gateway.steps import at_once
from tests.gateway.features.quota_api.test_handlers import alter, altered, describe, shown
from tests.gateway.features.quota_api.test_quota_admin import MemoryStore, World
from tests.gateway.proxy import messages as m
from tests.gateway.proxy.transcript import Transcript

ETL = {"client-id": "etl"}
KEY, KIND = "request_rates.Metadata", "request_rate.Metadata"
PATIENCE_SECONDS = 20


class AdminConnection(Transcript):
    """`woken` is set with each request for the `ready` callback."""

    def __init__(self, **options):
        self.woken = asyncio.Event()
        super().__init__(**options)

    def call_ready(self):
        super().call_ready()
        self.woken.set()


class Gateway(World):
    """An admin's connection and a client's, at a running quota API and its real engine."""

    def __init__(self):
        super().__init__(MemoryStore())
        self.client = Transcript(engine=self.engine)
        self.root = AdminConnection(engine=self.engine, handlers=handler_factories(self.queue, self.admin.describe, at_once))
        self.root.core.client.identify("root", self.root.now)

    def _applied(self):
        super()._applied()
        self.client.core.reconsider(self.client.now)

    async def alter_etl(self, value, text=None):
        self.root.client_sends(alter(1, (ETL, {KEY: value})))
        async with asyncio.timeout(PATIENCE_SECONDS):
            await self.root.woken.wait()
        self.root.woken.clear()
        self.root.run_ready()
        self.root.client_got(altered(1, (ETL, 0 if text is None else 42, text)))

    def described(self):
        """The answer to a description. The broker has no quotas."""
        self.root.client_sends(describe(2))
        self.root.broker_got(describe(2))
        self.root.broker_answers(shown(2))
        self.root.woken.clear()
        self.root.run_ready()
        answer, self.root.client_inbox = bytes(self.root.client_inbox), bytearray()
        return answer


@pytest.fixture
async def gateway(monkeypatch):
    gateway = Gateway()
    monkeypatch.setattr(clock, "monotonic", lambda: gateway.client.now)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(gateway.admin.run())
        yield gateway
        task.cancel()


def answers(first, last, throttle=0):
    return [m.described(number, [], throttle_time_ms=throttle) for number in range(first, last)]


async def test_rate_holds_on_open_connection_until_removal(gateway):
    client = gateway.client
    client.client_sends(*map(m.metadata, range(30)))
    client.broker_answers(*answers(0, 30))
    client.client_got(*answers(0, 30))

    await gateway.alter_etl(1.0)
    assert gateway.store.saved == {ClientQuotaEntity(None, "etl"): {KEY: 1.0}}
    assert gateway.described() == shown(2, (ETL, {KEY: 1.0}))
    client.client_sends(*map(m.metadata, range(30, 42)))
    assert client.core.throttle.cause == f"{KEY} of client-id=etl"
    client.broker_answers(*answers(30, 41))
    client.client_got(*answers(30, 41, throttle=1_000))
    assert (client.row(KIND).amount_total, client.row(KIND).source) == (11, Source.API.value)

    await gateway.alter_etl(2.0)
    assert client.core.throttle.until == pytest.approx(client.now + 0.5)
    await gateway.alter_etl(None)
    client.passes(0.001)
    client.client_sends(*map(m.metadata, range(42, 72)))
    assert not client.paused
    assert gateway.described() == shown(2)


@pytest.mark.parametrize("value", [0.0, -1.0])
async def test_rate_that_is_not_above_zero_is_refused(gateway, value):
    await gateway.alter_etl(value, f"Quota {KEY} must be greater than 0")
    assert gateway.store.saved == {}


async def test_fraction_of_request_per_second_is_valid(gateway):
    await gateway.alter_etl(0.1)
    gateway.client.client_sends(m.metadata(0), m.metadata(1), m.metadata(2))
    assert gateway.client.paused
    assert gateway.client.core.throttle.time_left_ms(gateway.client.now) == 10_000
