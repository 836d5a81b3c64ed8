"""Changes through the quota API are saved before they apply, and apply before they are answered."""

import asyncio
from collections import Counter
from dataclasses import replace
from unittest.mock import ANY

import pytest

from gateway.alter_queue import AlterQueue
from gateway.background import BackgroundTasks
from gateway.features.quota_api import quota_admin as module
from gateway.features.quota_api.feature import QuotaApi
from gateway.features.quota_api.quota_admin import QuotaAdmin
from gateway.features.quota_api.state_file import NotSavedError
from gateway.features.topic_quotas.thresholds import KEY as TOPIC_KEY
from gateway.features.topic_quotas.thresholds import Threshold, TopicLimits, TopicThresholds, thresholds
from gateway.observer import Outlet
from gateway.quotas.engine import QuotaEngine
from gateway.quotas.entity import ClientQuotaEntity, EntityQuota, Source
from gateway.quotas.groups import Group, GroupRule
from gateway.quotas.settings import QuotaSettings
from gateway.steps import at_once
from protocol.bodies.client_quotas import AlterEntry, AlterRequest, DescribedEntity, EntityPart, Op
from tests.gateway.quotas.engines import bucket_of

KEY = "producer_byte_rate"
ALICE, BOB = ClientQuotaEntity("alice"), ClientQuotaEntity("bob")


class MemoryStore:
    """A store that can fail, or wait for `gate`. `others` are quotas that other gateways set while a change is
    saved."""

    def __init__(self, quotas=None):
        self.saved = quotas or {}
        self.saves = 0
        self.error = None
        self.others = {}
        self.under_way = asyncio.Event()
        self.gate = asyncio.Event()
        self.gate.set()

    async def load(self):
        return self.saved

    async def catch_up(self):
        pass

    async def confirm(self, asked):
        pass

    async def save(self, before, after):
        self.under_way.set()
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        self.saves += 1
        self.saved = {**after, **self.others}
        return self.saved


class World:
    """A running admin, its store and its engine. `applied` counts changes of the quotas in effect."""

    def __init__(self, store, file=()):
        self.store = store
        self.engine = QuotaEngine(QuotaSettings(tuple(file)), 0.0)
        self.queue = AlterQueue(["User:root"])
        self.topics = TopicThresholds(self.queue)
        self.applied = 0
        self.events = []
        self.changed = asyncio.Event()
        self.groups = set()
        self.admin = QuotaAdmin(
            self.engine, store, self.queue, Outlet("", [self]),
            groups=lambda: self.groups, on_quotas=self._take, applied=self._applied,
        )  # fmt: skip

    def notify(self, event):
        self.events.append((event.quota, event.kind, event.old_limit, event.new_limit, event.source, event.principal))

    def _take(self, quotas):
        self.topics.dynamic = thresholds(quotas)

    def _applied(self):
        self.applied += 1
        self.changed.set()

    def begin(self, *entries, validate_only=False):
        done = asyncio.Event()
        return self.queue.alter(AlterRequest(entries, validate_only), "root", done.set), done

    async def alter(self, *entries, **options):
        task, done = self.begin(*entries, **options)
        await done.wait()
        return task, [result[:2] for result in task.alteration.results.values()]

    async def until(self, condition):
        async with asyncio.timeout(20):
            while not condition():
                self.changed.clear()
                await self.changed.wait()

    def limit(self, user):
        bucket = bucket_of(self.engine, "produce", user, "c", 0.0)
        self.engine.release(bucket, 0.0)
        return bucket.resolution.limit


def setting(user, value, key=KEY, kind="user"):
    return AlterEntry((EntityPart(kind, user),), (Op(key, value),))


@pytest.fixture
async def world():
    world = World(MemoryStore(), [EntityQuota(ALICE, {KEY: 5.0})])
    async with asyncio.TaskGroup() as group:
        task = group.create_task(world.admin.run())
        yield world
        task.cancel()


async def test_change_is_saved_and_applied_before_answer(world):
    world.store.gate.clear()
    task, done = world.begin(setting("alice", 10.0))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert (task.alteration, world.limit("alice"), world.store.saved) == (None, 5.0, {})
    world.store.gate.set()
    await done.wait()
    assert world.store.saved == {ALICE: {KEY: 10.0}}
    assert world.limit("alice") == 10.0
    assert world.applied == 1


async def test_group_of_the_file_is_set_and_restored(world):
    jobs = Group("jobs", (GroupRule(client_id="job-*"),), {KEY: 1_000.0})
    world.engine.apply(QuotaSettings((jobs.quota,), groups=(jobs,)), 0.0)
    world.groups = {"jobs"}
    _, bucket = world.engine.acquire_path("produce", "alice", "job-1", 0.0)
    assert await world.alter(setting("jobs", 50.0, kind="group")) == (ANY, [(0, None)])
    assert bucket.resolution.limit == 50.0
    assert world.events == [("group=jobs", "produce", None, 50.0, "api", "User:root")]
    _, [(code, text)] = await world.alter(setting("job", 50.0, kind="group"))
    assert (code, text) == (42, "There is no group job in quotas.groups of Weir's config file: add it there first.")
    await world.alter(setting("jobs", None, kind="group"))
    assert bucket.resolution.limit == 1_000.0


async def test_group_outside_of_its_schedule_takes_quotas(world):
    night = Group("night", (GroupRule(client_id="n-*"),), {KEY: 1_000.0})
    world.groups = {"night"}  # the engine has only the groups that count now
    assert await world.alter(setting("night", 50.0, kind="group")) == (ANY, [(0, None)])
    world.engine.apply(replace(world.engine.settings, quotas=(night.quota,), groups=(night,)), 0.0)
    _, bucket = world.engine.acquire_path("produce", "alice", "n-1", 0.0)
    assert bucket.resolution.limit == 50.0


async def set_thresholds(world, validate_only=False, **changes):
    done = asyncio.Event()
    task = world.topics.alter_thresholds(changes, "root", done.set, validate_only=validate_only)
    await done.wait()
    return [result.error_code for result in task.alteration.results.values()]


async def test_topic_threshold_is_stored_with_quotas(world):
    world.topics.of_file = TopicLimits(100.0, {"payments": 10.0})
    assert await set_thresholds(world, payments=20.0, orders=30.0) == [0, 0]
    assert world.topics.dynamic == {"payments": 20.0, "orders": 30.0}
    assert world.store.saved == {
        ClientQuotaEntity(topic=name): {TOPIC_KEY: value} for name, value in world.topics.dynamic.items()
    }
    assert world.topics.threshold("payments") == Threshold(20.0, 10.0)
    assert world.engine.settings.dynamic == {}
    assert at_once(world.admin.describe((), strict=False)) == [DescribedEntity((EntityPart("user", "alice"),), ((KEY, 5.0),))]
    assert await set_thresholds(world, payments=None) == [0]
    assert (world.topics.dynamic, world.topics.threshold("payments")) == ({"orders": 30.0}, Threshold(None, 10.0))


async def test_stored_thresholds_apply_at_start():
    world = World(MemoryStore({ClientQuotaEntity(topic="payments"): {TOPIC_KEY: 3.0}, BOB: {KEY: 3.0}}))
    world.topics.of_file = TopicLimits(100.0, {})
    await world.admin.start()
    assert (world.topics.dynamic, world.limit("bob")) == ({"payments": 3.0}, 3.0)


async def test_threshold_of_another_gateway_applies(world):
    world.topics.of_file = TopicLimits(100.0, {})
    world.queue.follow({ClientQuotaEntity(topic="payments"): {TOPIC_KEY: 3.0}})
    await world.until(lambda: world.topics.dynamic)
    assert world.topics.dynamic == {"payments": 3.0}


async def test_sum_of_thresholds_is_bounded(world):
    world.topics.of_file = TopicLimits(100.0, {"payments": 60.0})
    assert await set_thresholds(world, validate_only=True, orders=41.0) == [40]
    assert await set_thresholds(world, orders=41.0, logs=1.0) == [40, 40]
    assert await set_thresholds(world, orders=40.0) == [0]
    assert await set_thresholds(world, payments=10.0, logs=50.0) == [0, 0]
    assert await set_thresholds(world, payments=None) == [40]  # the file's 60 would come back
    world.topics.of_file = TopicLimits(50.0, {"payments": 60.0})
    assert await set_thresholds(world, logs=49.0) == [0]  # still too much, and less than before
    assert await set_thresholds(world, logs=50.0) == [40]


async def test_quota_api_rejects_topic_entities(world):
    world.topics.of_file = TopicLimits(100.0, {})
    _, results = await world.alter(setting("payments", 5.0, key=TOPIC_KEY, kind="topic"))
    assert results == [(42, "Unhandled client quota entity type: topic")]
    assert world.topics.dynamic == {}


async def test_removed_quota_restores_file_value(world):
    await world.alter(setting("alice", 10.0))
    _, results = await world.alter(setting("alice", None))
    assert results == [(0, None)]
    assert world.limit("alice") == 5.0
    assert world.store.saved == {}


async def test_change_without_effect_is_not_saved(world):
    await world.alter(setting("alice", None))
    await world.alter(setting("bob", 1.0), validate_only=True)
    await world.alter(setting("bob", -1.0))
    await world.alter(setting("bob", 12.5, key="request_percentage"))
    assert (world.store.saves, world.applied, world.limit("bob")) == (0, 0, None)


async def test_unsaved_change_is_not_applied(world):
    world.store.error = NotSavedError("No space left on device", "make room")
    _, results = await world.alter(setting("alice", 10.0), setting("bob", 0.0), setting("carol", 1.0, key="request_percentage"))
    assert results[0] == (-1, "Weir can not save the change (No space left on device), so nothing is changed.")
    assert [code for code, _ in results] == [-1, 42, 0]
    assert (world.limit("alice"), world.applied) == (5.0, 0)
    world.store.error = None
    _, results = await world.alter(setting("alice", 10.0))
    assert results == [(0, None)]


async def test_uncertain_save_is_not_reported_unchanged(world):
    world.store.error = NotSavedError("the topic says nothing", "look after it", "so it may take effect later, or not at all")
    _, results = await world.alter(setting("alice", 10.0))
    text = "Weir can not save the change (the topic says nothing), so it may take effect later, or not at all."
    assert results == [(-1, text)]
    assert world.limit("alice") == 5.0


async def test_quota_of_another_gateway_applies(world, caplog):
    caplog.set_level("INFO")
    await world.alter(setting("bob", 7.0))
    world.queue.follow(
        {ALICE: {KEY: 1.0}, BOB: {KEY: 7.0}, ClientQuotaEntity(ip="localhost"): {"connection_creation_rate": 2.0}}
    )
    await world.alter(setting("carol", 3.0), validate_only=True)  # queued after the change of the other gateway
    assert (world.limit("alice"), world.limit("bob"), world.applied) == (1.0, 7.0, 2)
    assert "127.0.0.1" in {entity.ip for entity in world.engine.settings.dynamic}
    assert "quotas of 2 entities were changed through another gateway" in caplog.messages
    world.queue.follow({BOB: {KEY: 7.0}})
    _, results = await world.alter(setting("bob", 8.0))
    assert results == [(0, None)]
    assert (world.limit("alice"), world.limit("bob")) == (5.0, 8.0)


async def test_quota_of_another_gateway_outlives_a_bug(monkeypatch):
    """`BackgroundTasks` starts `run` again after an unexpected error."""
    world = World(MemoryStore())
    look_up = world.admin._look_up

    async def fail(names):
        monkeypatch.setattr(world.admin, "_look_up", look_up)
        raise TypeError("odd")

    monkeypatch.setattr(world.admin, "_look_up", fail)
    world.queue.follow({BOB: {KEY: 7.0}})
    with pytest.raises(TypeError, match="odd"):
        await world.admin.run()
    async with asyncio.TaskGroup() as group:
        again = group.create_task(world.admin.run())
        await world.until(lambda: world.limit("bob") == 7.0)
        again.cancel()
    assert world.queue.followed is None


def odd_description():
    yield
    raise TypeError("odd")


async def test_failed_sibling_leaves_no_request_unanswered(monkeypatch):
    """The failure cancels the change under way. It may have been saved, so a second try could not undo it."""
    monkeypatch.setattr("gateway.background.FIRST_SECONDS", 0.0)
    store, queue = MemoryStore(), AlterQueue(["User:root"])
    engine = QuotaEngine(QuotaSettings(()), 0.0)
    feature = QuotaApi(
        store, None, None, engine, queue, Outlet("", []),
        writes_copy=lambda: True, groups=lambda: (), on_quotas=lambda _: None, applied=lambda: None,
    )  # fmt: skip
    store.gate.clear()

    def begin(value):
        done = asyncio.Event()
        return queue.alter(AlterRequest((setting("alice", value),), False), "root", done.set), done

    async with asyncio.timeout(20), BackgroundTasks(Counter()) as tasks:
        feature.start(tasks)
        interrupted, answered = begin(10.0)
        await store.under_way.wait()
        waiting, later = begin(20.0)
        feature._descriptions.add(odd_description())
        await answered.wait()
        store.gate.set()
        await later.wait()
    text = "Weir was interrupted, so the change may take effect later, or not at all."
    assert [result[:2] for result in interrupted.alteration.results.values()] == [(-1, text)]
    assert [result[:2] for result in waiting.alteration.results.values()] == [(0, None)]
    assert store.saved == {ALICE: {KEY: 20.0}}


async def test_saved_change_outlives_an_interruption(monkeypatch):
    world = World(MemoryStore())
    prepares = asyncio.Event()

    async def endless(*_):
        prepares.set()
        await asyncio.Event().wait()

    async with asyncio.timeout(20), asyncio.TaskGroup() as group:
        with monkeypatch.context() as patched:
            patched.setattr("asyncio.to_thread", endless)
            running = group.create_task(world.admin.run())
            _, done = world.begin(setting("bob", 7.0))
            await prepares.wait()
            running.cancel()
            await done.wait()
        assert (world.store.saved, world.limit("bob")) == ({BOB: {KEY: 7.0}}, None)
        again = group.create_task(world.admin.run())
        await world.until(lambda: world.limit("bob") == 7.0)
        again.cancel()
    assert world.queue.followed is None


async def test_request_outlives_an_interrupted_retry(monkeypatch):
    """A retry of host names comes first, and no request is taken out of the queue before its end."""
    world = World(MemoryStore())
    look_up, looks = world.admin._look_up, asyncio.Event()

    async def endless(_):
        looks.set()
        await asyncio.Event().wait()

    async with asyncio.timeout(20), asyncio.TaskGroup() as group:
        monkeypatch.setattr(world.admin, "_look_up", endless)
        world.admin._retry()
        running = group.create_task(world.admin.run())
        _, done = world.begin(setting("bob", 7.0))
        await looks.wait()
        running.cancel()
        await asyncio.wait([running])
        monkeypatch.setattr(world.admin, "_look_up", look_up)
        again = group.create_task(world.admin.run())
        await done.wait()
        again.cancel()
    assert world.limit("bob") == 7.0


async def test_concurrent_change_of_another_gateway_applies(world):
    world.store.others = {BOB: {KEY: 3.0}}
    world.store.gate.clear()
    _, done = world.begin(setting("alice", 10.0))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    world.queue.follow({BOB: {KEY: 2.0}})  # older than what the store will return
    world.store.gate.set()
    await done.wait()
    await world.alter(setting("carol", 3.0), validate_only=True)
    assert (world.limit("alice"), world.limit("bob")) == (10.0, 3.0)


async def test_changes_during_a_save_are_saved_together_in_order(world):
    world.store.gate.clear()
    _, first = world.begin(setting("alice", 1.0))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    rest = [world.begin(setting("alice", float(n))) for n in range(2, 10)]
    world.store.gate.set()
    await asyncio.gather(first.wait(), *(done.wait() for _, done in rest))
    assert world.limit("alice") == 9.0
    assert world.store.saves == 2


async def test_clients_are_served_between_waiting_changes(world, monkeypatch):
    turn, turns = 0, []

    async def count():
        nonlocal turn
        while True:
            turn += 1
            await asyncio.sleep(0)

    monkeypatch.setattr(module, "check_room", lambda *_: turns.append(turn))
    counting = asyncio.create_task(count())
    waiting = [world.begin(setting("alice", float(n))) for n in range(1, 9)]
    await asyncio.gather(*(done.wait() for _, done in waiting))
    counting.cancel()
    assert turns == sorted(set(turns))
    assert (len(turns), world.limit("alice"), world.store.saves) == (8, 8.0, 1)


async def test_waiting_changes_keep_only_what_they_replace(world):
    await world.alter(setting("alice", 1.0), setting("bob", 2.0))
    waiting = [world.begin(setting("bob", 3.0)), world.begin(setting("bob", 4.0), setting("carol", 5.0))]
    await asyncio.gather(*(done.wait() for _, done in waiting))
    replaced = [{entity: made.before for (entity, _), made in task.made.items()} for task, _ in waiting]
    assert replaced == [{BOB: 2.0}, {BOB: 3.0, ClientQuotaEntity("carol"): None}]


async def test_change_that_broker_refuses_is_undone(world):
    await world.alter(setting("bob", 7.0))
    task, _ = await world.alter(setting("alice", 10.0), setting("bob", 20.0))
    world.queue.undo(task, (EntityPart("user", "bob"),))
    await world.alter(setting("carol", 1.0))  # later changes find it done
    assert (world.limit("alice"), world.limit("bob")) == (10.0, 7.0)
    assert world.store.saved[BOB] == {KEY: 7.0}


@pytest.mark.parametrize("at_once", [False, True])
async def test_undo_keeps_an_equal_value_of_a_later_request(world, at_once):
    refused, first = world.begin(setting("bob", 20.0))
    if not at_once:
        await first.wait()
    await world.alter(setting("bob", 20.0))
    world.queue.undo(refused, (EntityPart("user", "bob"),))
    await world.alter(setting("carol", 1.0))
    assert world.limit("bob") == 20.0


async def test_undo_of_two_requests_restores_the_first_value(world):
    await world.alter(setting("bob", 7.0))
    tasks = [(await world.alter(setting("bob", value)))[0] for value in (20.0, 30.0)]
    for task in tasks:
        world.queue.undo(task, (EntityPart("user", "bob"),))
        await world.alter(setting("carol", 1.0))
    assert world.limit("bob") == 7.0


async def test_refusal_of_an_entity_without_changes_reads_nothing(world):
    task, _ = await world.alter(setting("alice", 10.0))
    world.queue.undo(task, (EntityPart("user", "bob"),))
    assert world.queue.undos == []


async def test_undo_is_reported_as_a_change(world, caplog):
    caplog.set_level("INFO")
    await world.alter(setting("bob", 7000.0))
    task, _ = await world.alter(setting("bob", 20000.0))
    world.queue.undo(task, (EntityPart("user", "bob"),))
    await world.alter(setting("bob", 30000.0))  # in one go with it
    assert world.events == [
        ("user=bob", "produce", *limits, "api", "User:root")
        for limits in ((None, 7000.0), (7000.0, 20000.0), (20000.0, 7000.0), (7000.0, 30000.0))
    ]
    (back,) = [record for record in caplog.records if "is undone" in record.getMessage()]
    assert (back.by, back.entity, back.key, back.value) == ("User:root", "user=bob", KEY, 7000.0)


@pytest.mark.parametrize("again", ["by another request", "by itself"])
@pytest.mark.parametrize("error", [NotSavedError("No space left on device", "make room"), RuntimeError("a bug")])
async def test_failed_undo_is_retried(again, error, monkeypatch):
    monkeypatch.setattr("gateway.background.FIRST_SECONDS", 0.0)
    if again == "by itself":
        monkeypatch.setattr("gateway.features.quota_api.quota_admin.RETRY_SECONDS", 0.01)
    world = World(MemoryStore())
    async with BackgroundTasks(Counter()) as tasks:
        tasks.start("carry out changes", world.admin.run)
        task, _ = await world.alter(setting("bob", 20.0))
        world.store.error = error
        world.queue.undo(task, (EntityPart("user", "bob"),))
        _, results = await world.alter(setting("alice", 1.0))
        assert results[0][0] == -1
        assert world.limit("bob") == 20.0
        world.store.error = None
        if again == "by another request":
            await world.alter(setting("alice", 1.0))
        await world.until(lambda: world.limit("bob") is None)
    assert BOB not in world.store.saved


async def test_unresolved_host_is_logged_and_retried(monkeypatch, caplog):
    caplog.set_level("WARNING")
    dns = {}

    async def address(name):
        return dns.get(name)

    monkeypatch.setattr("gateway.features.quota_api.host_names._lookup", address)
    monkeypatch.setattr("gateway.features.quota_api.quota_admin.RETRY_SECONDS", 0.01)
    host = ClientQuotaEntity(ip="gate.example.com")
    world = World(MemoryStore({host: {"connection_creation_rate": 2.0}}))
    await world.admin.start()
    (warning,) = caplog.messages
    assert "gate.example.com" in warning
    async with asyncio.TaskGroup() as group:
        running = group.create_task(world.admin.run())
        await world.alter(setting("alice", 1e6))
        dns["gate.example.com"] = "10.0.0.7"
        await world.until(lambda: "10.0.0.7" in {entity.ip for entity in world.engine.settings.dynamic})
        running.cancel()
    assert caplog.messages == [warning]
    assert host in world.store.saved


async def test_saved_quotas_apply_at_start():
    world = World(MemoryStore({BOB: {KEY: 3.0}}))
    await world.admin.start()
    assert world.limit("bob") == 3.0


async def test_ip_entity_keeps_its_host_name(world):
    key = "connection_creation_rate"
    for name, code in (("localhost", 0), ("127.1", 0), ("[::1]", 0), ("not a host", 42), ("a\0b", 42)):
        _, results = await world.alter(setting(name, 9.0, key=key, kind="ip"))
        assert [found for found, _ in results] == [code], name
    in_effect = {entity.ip for entity in world.engine.settings.dynamic}
    assert in_effect == {"127.0.0.1", "::1"}
    bucket = world.engine.acquire_ip("connection", "127.0.0.1", 0.0)
    assert (bucket.resolution.limit, bucket.resolution.source) == (9.0, Source.API)
    assert {entity.ip for entity in world.store.saved} == {"localhost", "127.1", "[::1]"}
    again = World(world.store)
    await again.admin.start()
    assert {entity.ip for entity in again.engine.settings.dynamic} == in_effect


async def test_change_is_logged_and_too_small_one_warns(world, caplog):
    caplog.set_level("INFO")
    await world.alter(setting("bob", 10.0), setting("alice", 1e6))
    changes = [record for record in caplog.records if record.levelname == "INFO"]
    assert [(record.by, record.entity, record.key, record.value) for record in changes] == [
        ("User:root", "user=bob", KEY, 10.0),
        ("User:root", "user=alice", KEY, 1e6),
    ]
    (warning,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert "10 bytes/s for user=bob" in warning
    assert "3600 s" in warning  # the longest debt


async def test_removed_quota_is_logged_as_removed(world, caplog):
    caplog.set_level("INFO")
    await world.alter(setting("bob", 7000.0))
    await world.alter(setting("bob", None))
    texts = [record.getMessage() for record in caplog.records if hasattr(record, "by")]
    assert texts == ["quota changed through the API", "quota removed through the API"]


async def test_thread_prepares_a_change(world, monkeypatch):
    to_thread, prepared = asyncio.to_thread, []

    async def noted(work, *arguments):
        prepared.append(await to_thread(work, *arguments))
        return prepared[-1]

    monkeypatch.setattr("asyncio.to_thread", noted)
    await world.alter(setting("alice", 10.0))
    assert world.limit("alice") == 10.0
    assert [changes[0].after for changes in prepared] == [world.engine.table]


async def test_change_needs_no_thread(world, monkeypatch):
    async def no_thread(*_):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("asyncio.to_thread", no_thread)
    await world.alter(setting("alice", 10.0))
    assert world.limit("alice") == 10.0


async def test_reload_during_a_change_stays(world, monkeypatch):
    to_thread = asyncio.to_thread

    async def reloaded(work, *arguments):
        prepared = await to_thread(work, *arguments)
        quotas = (EntityQuota(ClientQuotaEntity("bob"), {KEY: 7.0}),)
        world.engine.apply(replace(world.engine.settings, quotas=quotas), 0.0)
        return prepared

    monkeypatch.setattr("asyncio.to_thread", reloaded)
    await world.alter(setting("alice", 10.0))
    assert (world.limit("alice"), world.limit("bob")) == (10.0, 7.0)


async def test_description_joins_file_and_api_quotas(world):
    await world.alter(setting("bob", 10.0), setting("alice", 7.0, key="consumer_byte_rate"))
    assert at_once(world.admin.describe((), strict=False)) == [
        DescribedEntity((EntityPart("user", "alice"),), ((KEY, 5.0), ("consumer_byte_rate", 7.0))),
        DescribedEntity((EntityPart("user", "bob"),), ((KEY, 10.0),)),
    ]


async def test_description_is_of_one_moment(world):
    await world.alter(setting("bob", 10.0))
    steps = world.admin.describe((), strict=False)
    await world.alter(setting("bob", 11.0), setting("alice", 6.0))
    assert [entity.values for entity in at_once(steps)] == [((KEY, 5.0),), ((KEY, 10.0),)]


def test_only_named_admins_are_allowed():
    queue = World(None).queue
    assert queue.allows("root")
    assert not queue.allows("ANONYMOUS")
    queue.admins = frozenset()
    assert not queue.allows("root")


async def test_bug_answers_its_requests_with_an_error(world, monkeypatch):
    """Without an answer, Weir would never read from their clients again."""

    def fail(*_):
        raise TypeError("odd")

    monkeypatch.setattr(module, "check_room", fail)
    task, done = world.begin(setting("alice", 10.0))
    with pytest.raises(TypeError, match="odd"):
        await world.admin._carry_out()
    assert done.is_set()
    assert [(result.error_code, result.message) for result in task.alteration.results.values()] == [
        (-1, "Weir failed to carry out the change.")
    ]
    assert world.limit("alice") == 5.0
