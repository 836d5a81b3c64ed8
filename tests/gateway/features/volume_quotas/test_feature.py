"""The volume watch with a topic in memory. tests/broker/test_volumes.py has real brokers."""

import asyncio
from contextlib import suppress

from gateway import clock
from gateway.cluster.record_batches import batches_of
from gateway.features.volume_quotas.config import VolumesConfig
from gateway.features.volume_quotas.feature import VolumeWatch
from gateway.features.volume_quotas.limits import Limit, LimitType, Volume, VolumeUsage
from gateway.features.volume_quotas.usage_message import encode_usage
from gateway.observer import Outlet
from gateway.proxy.produce_gate import ProduceGate
from gateway.quotas.engine import QuotaEngine, QuotaSettings
from tests.gateway.cluster.kept_topic import KeptTopic

HARD, SOFT = Limit(LimitType.CONSUMED_SPACE, 900), Limit(LimitType.CONSUMED_SPACE, 500)


def put(topic, at, consumed, broker=1):
    usage = VolumeUsage(broker, at, HARD, SOFT, (Volume("/data", 1000, consumed),))
    for batch, count in batches_of([encode_usage(usage)]):
        topic.append(batch, count)


class House:
    """Watches over one gate. `states` are their reported states, `released` counts releases of producers."""

    def __init__(self, topic):
        self.topic = topic
        self.gate = ProduceGate()
        self.engine = QuotaEngine(QuotaSettings(), clock.monotonic())
        self.released = 0
        self.watches = []
        self.states = []
        self._news = asyncio.Event()

    def watch(self, before=None, **config):
        config = VolumesConfig(**({"source": "topic"} | config))
        watch = VolumeWatch(config, self.topic, self.engine, self.gate, Outlet("", [self]), on_release=self.release)
        task = asyncio.create_task(watch.run(before))
        self.watches.append((watch, task))
        return watch, task

    def release(self):
        self.released += 1

    def notify(self, event):
        self.states.append(event.state)
        self._news.set()

    async def until(self, condition):
        while not condition():
            self._news.clear()
            await self._news.wait()

    async def close(self):
        for _, task in self.watches:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


async def test_replaced_watch_keeps_pause():
    here = House(KeptTopic())
    old, ending = here.watch()
    await here.until(lambda: here.states == ["PAUSE"])  # nothing is known
    old.hand_over()
    ending.cancel()
    here.watch(ending)
    await here.until(lambda: len(here.states) > 1)
    assert here.states == ["PAUSE", "PAUSE"]
    assert ending.done()
    assert (here.gate.paused, here.released) == (True, 0)
    await here.close()
    assert not here.gate.paused, "the gate is open without a watch"


async def test_replaced_watch_keeps_pause_if_unknown_means_open(monkeypatch):
    """The next watch must read the usage before it knows what the replaced watch knew."""
    monkeypatch.setattr("gateway.features.volume_quotas.feature.LEARN_SECONDS", 3_600.0)
    topic = KeptTopic()
    put(topic, clock.wall(), 950)
    here = House(topic)
    old, ending = here.watch(when_unknown="OPEN")
    await here.until(lambda: here.states[-1:] == ["PAUSE"])
    here.states.clear()
    here.released = 0
    old.hand_over()
    ending.cancel()
    here.watch(ending, when_unknown="OPEN")
    await here.until(lambda: here.states)
    assert here.states == ["PAUSE"]
    assert (here.gate.paused, here.released) == (True, 0)
    await here.close()


async def test_watch_canceled_before_its_start_opens_gate():
    here = House(KeptTopic())
    old, ending = here.watch()
    await here.until(lambda: here.gate.paused)
    old.hand_over()
    held = asyncio.create_task(asyncio.Event().wait())
    _, waiting = here.watch(held)
    await asyncio.sleep(0)  # it waits
    waiting.cancel()
    ending.cancel()
    await asyncio.wait([waiting, ending])
    assert not here.gate.paused
    held.cancel()


async def test_outdated_message_is_logged_once_with_both_times(caplog):
    topic = KeptTopic()
    now = clock.wall()
    put(topic, now + 3600.0, 100)
    for _ in range(3):
        put(topic, now - 60.0, 950)
    put(topic, now, 950, broker=2)
    here = House(topic)
    watch, _ = here.watch()
    while not watch.report().log.records_total >= 5:
        await watch._log.looked()
    assert watch.report().skipped == {"outdated": 3}
    (said,) = [record.getMessage() for record in caplog.records if "is skipped" in record.getMessage()]
    assert "broker 1" in said
    assert said.count("+00:00") == 2
    await here.close()


async def test_watch_closes_all_its_connections():
    here = House(KeptTopic())
    watch, _ = here.watch(source="log_dirs")
    while not watch.report().source_problem:
        await watch._log.looked()
    assert here.topic.open
    await here.close()
    assert not here.topic.open
