"""The volume watch with a topic in memory. tests/broker/test_volumes.py has real brokers."""

import asyncio
from collections import Counter
from contextlib import suppress

import pytest

from gateway import clock
from gateway.background import BackgroundTasks
from gateway.cluster.record_batches import batches_of
from gateway.features.volume_quotas.config import VolumesConfig
from gateway.features.volume_quotas.feature import VolumeQuotas, VolumeWatch
from gateway.features.volume_quotas.limits import Limit, LimitType, Volume, VolumeUsage
from gateway.features.volume_quotas.usage_message import encode_usage
from gateway.observer import Outlet
from gateway.proxy.produce_gate import ProduceGate
from gateway.quotas.engine import QuotaEngine
from gateway.quotas.settings import QuotaSettings
from tests.gateway.cluster.kept_topic import KeptTopic

HARD, SOFT = Limit(LimitType.CONSUMED_SPACE, 900), Limit(LimitType.CONSUMED_SPACE, 500)


@pytest.fixture
def quick(monkeypatch):
    """The first verdict does not wait for usage."""
    monkeypatch.setattr("gateway.features.volume_quotas.feature.LEARN_SECONDS", 0.0)


@pytest.fixture
def patient(monkeypatch):
    """The first verdict waits for usage however long that takes."""
    monkeypatch.setattr("gateway.features.volume_quotas.feature.LEARN_SECONDS", 3_600.0)


def hung(consumed):
    """A topic, and a broker that does not describe its disk before the event is set."""
    topic = KeptTopic()
    topic.disks[1], topic.hung[1] = consumed, asyncio.Event()
    return topic, topic.hung[1]


def put(topic, at, consumed, broker=1):
    usage = VolumeUsage(broker, at, HARD, SOFT, (Volume("/data", 1000, consumed),))
    for batch, count in batches_of([encode_usage(usage)]):
        topic.append(batch, count)


def section(**config):
    return VolumesConfig(**({"source": "topic"} | config))


class House:
    """Watches over one gate. `states` are their reported states, `released` counts releases of producers."""

    def __init__(self, topic):
        self.topic = topic
        self.gate = ProduceGate()
        self.engine = QuotaEngine(QuotaSettings(), clock.monotonic())
        self.released = 0
        self.watches = []
        self.states = []
        self.events = []
        self._news = asyncio.Event()

    @property
    def watched(self):
        return self.topic, self.engine, self.gate, Outlet("", [self])

    def watch(self, before=None, after=None, **config):
        watch = VolumeWatch(section(**config), *self.watched, on_release=self.release, replaces=after)
        task = asyncio.create_task(watch.run(before))
        self.watches.append((watch, task))
        return watch, task

    def release(self):
        self.released += 1
        self._news.set()

    def notify(self, event):
        self.states.append(event.state)
        self.events.append(event)
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
    here.watch(ending, old)
    await here.until(lambda: len(here.states) > 1)
    assert [(event.previous, event.state) for event in here.events] == [("OPEN", "PAUSE"), ("PAUSE", "PAUSE")]
    assert ending.done()
    assert (here.gate.paused, here.released) == (True, 0)
    await here.close()
    assert not here.gate.paused, "the gate is open without a watch"


@pytest.mark.usefixtures("patient")
async def test_replaced_watch_keeps_pause_if_unknown_means_open():
    """The next watch must read the usage before it knows what the replaced watch knew."""
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
    _, waiting = here.watch(held, old)
    await asyncio.sleep(0)  # it waits
    waiting.cancel()
    ending.cancel()
    await asyncio.wait([waiting, ending])
    assert not here.gate.paused
    assert [(event.previous, event.state) for event in here.events] == [("OPEN", "PAUSE"), ("PAUSE", "OPEN")]
    held.cancel()


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize(("consumed", "state"), [(100, "OPEN"), (900, "THROTTLE"), (950, "PAUSE")])
async def test_gate_stays_open_until_usage_is_known(consumed, state):
    topic, answered = hung(consumed)
    here = House(topic)
    watch, _ = here.watch(source="log_dirs")
    while not watch.report().log.caught_up:
        await watch._log.looked()
    assert (here.states, here.gate.closed, watch.report().verdict.state.value) == ([], False, "PAUSE")
    answered.set()
    await here.until(lambda: here.states)
    assert (here.states, here.gate.paused, here.released) == ([state], state == "PAUSE", 0)
    await here.close()


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(("consumed", "state", "delay"), [(700, "THROTTLE", 0.05), (950, "PAUSE", 0.1)])
async def test_lowered_longest_delay_releases_producers(consumed, state, delay):
    """Otherwise they would wait for up to the longest delay before the reload."""
    topic = KeptTopic()
    put(topic, clock.wall(), consumed)
    here = House(topic)
    watch, _ = here.watch(when_unknown="OPEN", max_delay_ms=29_000)
    await here.until(lambda: here.states[-1:] == [state])
    assert here.released == 0
    assert watch.reconfigure(section(when_unknown="OPEN", max_delay_ms=100))
    await here.until(lambda: here.released)
    assert (here.gate.delay, here.gate.paused, here.states[-1]) == (pytest.approx(delay), state == "PAUSE", state)
    await here.close()


class Started:
    """The feature as the gateway starts it, in a `House`."""

    def __init__(self, topic, config):
        self.house = House(topic)
        self.feature = VolumeQuotas(config, *self.house.watched, self.house.release)
        self._tasks = BackgroundTasks(Counter())

    async def __aenter__(self):
        await self.feature.restore()
        await self._tasks.__aenter__()
        self.feature.start(self._tasks)
        await asyncio.sleep(0)  # the watch begins
        return self

    async def __aexit__(self, *error):
        await self._tasks.__aexit__(*error)

    @property
    def held(self):
        """True if producers wait, and if the gateway is ready."""
        gate = self.house.gate
        return gate.paused and gate.learning, self.feature.not_ready() is None


@pytest.mark.usefixtures("patient")
async def test_producers_wait_at_the_start_until_usage_is_known():
    topic, answered = hung(100)
    async with Started(topic, section(source="log_dirs")) as started:
        assert started.held == (True, False)
        answered.set()
        await started.house.until(lambda: started.house.states)
        assert started.held == (False, True)
        assert (started.house.states, started.house.gate.closed, started.house.released) == (["OPEN"], False, 1)


@pytest.mark.usefixtures("quick")
async def test_unknown_usage_pauses_after_the_time_to_learn():
    topic, _ = hung(100)
    async with Started(topic, section(source="log_dirs")) as started:
        await started.house.until(lambda: started.house.states)
        assert started.held == (False, True)
        assert started.house.gate.paused


async def test_watch_that_fails_ends_the_wait_of_producers(monkeypatch):
    async def fail(*_):
        raise RuntimeError("a bug")

    monkeypatch.setattr("gateway.features.volume_quotas.feature.LEARN_SECONDS", 0.1)  # the watch fails earlier
    monkeypatch.setattr("gateway.features.volume_quotas.feature.publish_usage", fail)
    async with Started(KeptTopic(), section(source="log_dirs")) as started:
        await started.house.until(lambda: started.house.states)
        assert started.held == (False, True)
        assert started.house.gate.paused


@pytest.mark.usefixtures("patient")
async def test_missing_usage_of_an_agent_is_not_waited_for():
    async with Started(KeptTopic(), section()) as started:
        await started.house.until(lambda: started.house.states)
        assert started.held == (False, True)
        assert started.house.gate.paused


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize(("config", "ready"), [({"when_unknown": "OPEN"}, False), ({"enforce": False}, True)])
async def test_producers_do_not_wait_where_unknown_usage_pauses_nobody(config, ready):
    topic, answered = hung(100)
    async with Started(topic, section(source="log_dirs", **config)) as started:
        assert (started.held, started.house.gate.closed) == ((False, ready), False)
        answered.set()
        await started.house.until(lambda: started.house.states)
        assert (started.held, started.house.gate.closed) == ((False, True), False)


@pytest.mark.usefixtures("patient")
async def test_reload_ends_the_wait_of_producers():
    topic, _ = hung(100)
    async with Started(topic, section(source="log_dirs")) as started:
        started.feature.apply(section(source="log_dirs", when_unknown="OPEN"))
        await started.house.until(lambda: started.house.states)
        assert (started.held, started.house.gate.closed, started.house.released) == ((False, True), False, 1)


@pytest.mark.usefixtures("patient")
async def test_reload_without_volumes_ends_the_wait_of_producers():
    topic, _ = hung(100)
    async with Started(topic, section(source="log_dirs")) as started:
        started.feature.apply(None)
        assert (started.held, started.house.gate.closed, started.house.released) == ((False, True), False, 1)


@pytest.mark.usefixtures("patient")
async def test_reload_that_adds_volumes_lets_producers_pass():
    topic, answered = hung(950)
    async with Started(topic, None) as started:
        started.feature.apply(section(source="log_dirs"))
        await asyncio.sleep(0)
        assert (started.held, started.house.gate.closed) == ((False, True), False)
        answered.set()
        await started.house.until(lambda: started.house.states)
        assert started.house.gate.paused


@pytest.mark.usefixtures("patient")
async def test_watch_removed_before_its_verdict_reports_end_of_pause():
    async with Started(KeptTopic(), section()) as started:
        await started.house.until(lambda: started.house.states == ["PAUSE"])
        started.feature.apply(section(source="log_dirs"))
        started.feature.apply(None)
        assert started.house.states == ["PAUSE", "OPEN"]
        assert not started.house.gate.closed


@pytest.mark.usefixtures("patient")
async def test_hung_broker_holds_up_no_other_usage():
    topic = KeptTopic()
    topic.brokers = {broker: ("127.0.0.1", 9092 + broker) for broker in (1, 2, 3)}
    topic.disks = dict.fromkeys(topic.brokers, 100)
    topic.hung[3] = asyncio.Event()
    here = House(topic)
    watch, _ = here.watch(source="log_dirs", publish_interval_ms=100, freshness_seconds=5)
    while (published := [key for key, _ in topic.records()]).count(b"1") < 4 or published.count(b"2") < 4:
        await watch._log.looked()
    assert b"3" not in published
    assert sorted(watch.report().ages) == [1, 2]
    topic.hung[3].set()
    await here.until(lambda: here.states)
    assert here.states == ["OPEN"], "the late answer is published as well"
    await here.close()
    assert not topic.open


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
    assert clock.iso(now - 60.0) in said
    assert said.count("Z") == 2
    await here.close()


async def test_outdated_messages_of_invented_brokers_fill_no_log(caplog):
    topic = KeptTopic()
    now = clock.wall()
    for broker in range(100, 1_120):
        put(topic, now, 100, broker)
        put(topic, now - 60.0, 100, broker)
    here = House(topic)
    watch, _ = here.watch()
    while not watch.report().log.records_total >= 2_040:
        await watch._log.looked()
    assert watch.report().skipped == {"outdated": 1_020}
    assert sum("is skipped" in record.getMessage() for record in caplog.records) == 1_000
    await here.close()


@pytest.mark.usefixtures("patient")
async def test_usage_is_published_as_answers_arrive():
    topic = KeptTopic()
    topic.brokers = {broker: ("127.0.0.1", 9092 + broker) for broker in (1, 2)}
    topic.disks = dict.fromkeys(topic.brokers, 950)
    topic.hung[2] = asyncio.Event()
    here = House(topic)
    here.watch(source="log_dirs", publish_interval_ms=3_600_000, freshness_seconds=86_400)
    await here.until(lambda: here.states)
    assert here.gate.paused, "one disk is full, and the next question comes in 10 minutes"
    await here.close()


async def opened(topic, **config):
    """A watch that has published usage and asks again after an hour."""
    here = House(topic)
    watch, _ = here.watch(source="log_dirs", publish_interval_ms=3_600_000, freshness_seconds=86_400, **config)
    await here.until(lambda: here.states == ["OPEN"])
    return here, watch


@pytest.mark.usefixtures("patient")
async def test_new_broker_is_asked_at_once():
    topic = KeptTopic()
    topic.disks = {1: 100, 2: 100}
    here, watch = await opened(topic, when_unknown="OPEN")
    topic.brokers[2] = ("127.0.0.1", 9093)
    watch._note_brokers(topic.brokers)
    while sorted(watch.report().ages) != [1, 2]:
        await watch._log.looked()
    await here.close()


@pytest.mark.usefixtures("quick")
async def test_hung_disk_delays_no_question_to_a_new_broker():
    """Otherwise the new broker's missing usage would pause producers until the question to the other broker ends."""
    topic, _ = hung(100)
    topic.brokers = {broker: ("127.0.0.1", 9092 + broker) for broker in (1, 2)}
    topic.disks[2] = topic.disks[3] = 100
    here, watch = await opened(topic, when_unknown="OPEN")
    while sorted(watch.report().ages) != [2]:
        await watch._log.looked()
    topic.brokers[3] = ("127.0.0.1", 9095)
    watch._note_brokers(topic.brokers)
    while sorted(watch.report().ages) != [2, 3]:
        await watch._log.looked()
    await here.close()


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("consumed", [700, 950])
async def test_brokers_are_asked_again_when_the_gate_closes(consumed):
    topic = KeptTopic()
    topic.disks[1] = 100
    here, _ = await opened(topic)
    put(topic, clock.wall(), consumed)  # by another gateway
    await here.until(lambda: here.gate.closed)
    await here.until(lambda: not here.gate.closed)
    assert here.states[-1] == "OPEN"
    await here.close()


async def test_watch_closes_all_its_connections():
    here = House(KeptTopic())
    watch, _ = here.watch(source="log_dirs")
    while not watch.report().source_problem:
        await watch._log.looked()
    assert here.topic.open
    await here.close()
    assert not here.topic.open
