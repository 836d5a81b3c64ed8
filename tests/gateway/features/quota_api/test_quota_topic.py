"""The quotas topic while it is new, deleted or created again, which a real broker shows too seldom.

tests/broker/test_quota_log.py covers the rest with a real broker.
"""

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager, suppress

import pytest

from gateway.alter_queue import AlterQueue
from gateway.cluster import record_batches, topic_log
from gateway.cluster.record_batches import batches_of
from gateway.features.quota_api import quota_topic as quota_log
from gateway.features.quota_api.quota_admin import QuotaAdmin
from gateway.features.quota_api.quota_topic import QuotaTopic
from gateway.features.quota_api.records import QuotaRecords, claim, restored_records, settled
from gateway.features.quota_api.state_file import HistoryPosition, NotSavedError
from gateway.observer import Outlet
from gateway.quotas.engine import QuotaEngine
from gateway.quotas.entity import ClientQuotaEntity
from gateway.quotas.settings import QuotaSettings
from gateway.steps import at_once
from protocol.bodies.client_quotas import AlterEntry, AlterRequest, EntityPart, Op
from protocol.error_codes import ErrorCode
from tests.gateway.cluster.kept_topic import KeptTopic
from tests.gateway.features.quota_api.quota_table import heard, plain_changes

LONG = 3600.0
FIRST = "01"
"""The id of the first topic with the quotas."""

ALICE, BOB, CAROL = ClientQuotaEntity("alice"), ClientQuotaEntity("bob"), ClientQuotaEntity("carol")
RATE, OTHER, THIRD = {"producer_byte_rate": 1e6}, {"producer_byte_rate": 2e6}, {"producer_byte_rate": 3e6}


class Copy:
    """A state file that fails its first `failing` writes."""

    def __init__(self, quotas, failing=0, position=None):
        self.quotas = quotas
        self.position = position
        self.failing = failing
        self.saved, self.positioned = asyncio.Event(), asyncio.Event()

    async def load(self):
        return self.quotas

    async def save(self, before, after):
        if self.failing:
            self.failing -= 1
            raise NotSavedError("the disk is full", "make room")
        self.quotas = after
        self.saved.set()
        return after

    async def load_position(self, quotas):
        return self.position

    async def save_position(self, position, quotas):
        self.position = position
        self.positioned.set()


def known(quotas, position, history=FIRST, *, late=False):
    """The state file of a gateway that was at this position in the first topic."""
    return Copy(quotas, position=HistoryPosition(history, FIRST, position, late))


class Gateway:
    def __init__(self, topic, copy):
        self.log = QuotaTopic("quotas", topic.connect, copy, self.note)
        self.reported = []
        self._news = asyncio.Event()

    def note(self, quotas):
        self.reported.append(quotas)
        self._news.set()

    async def until_reported(self, quotas):
        while not self.reported or self.reported[-1] != quotas:
            self._news.clear()
            await self._news.wait()


@asynccontextmanager
async def gateway(topic, copy, *, whole=True):
    here = Gateway(topic, copy if isinstance(copy, Copy) else Copy(copy))
    await here.log.load()
    task = asyncio.create_task(here.log.run())
    try:
        if whole:
            await here.log._whole.wait()
        yield here
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def until_copied(copy, topic):
    """Wait until the copy has all records of the topic."""
    while copy.position is None or copy.position.offset < len(topic.records()):
        copy.positioned.clear()
        await copy.positioned.wait()


def put(topic, *records, wakes=True):
    for batch, count in batches_of(records):
        topic.append(batch, count, wakes=wakes)


def table(topic):
    return heard(*topic.records(), topic=topic_id(topic))


def topic_id(topic):
    return bytes([topic.generation]).hex()


def compacted(topic):
    records = topic.records()
    last = {key: place for place, (key, *_) in enumerate(records)}
    return heard(*[record for place, record in enumerate(records) if last[record[0]] == place], topic=topic_id(topic))


def second_topic(*records):
    """A topic that was created again."""
    topic = KeptTopic()
    topic.generation = 2
    put(topic, *records)
    return topic


def filled(quotas, position):
    """The records of a gateway that fills a new topic."""
    return [claim("peer"), *restored_records(quotas, position), settled(FIRST, position)]


@pytest.fixture(autouse=True)
def _hurry(monkeypatch):
    monkeypatch.setattr(topic_log, "MAX_AGE_SECONDS", 0.0)
    monkeypatch.setattr(topic_log, "RETRY_SECONDS", 0.0)
    monkeypatch.setattr(quota_log, "RETRY_SECONDS", 0.0)
    monkeypatch.setattr(quota_log, "CLAIM_SECONDS", 0.0)  # nobody waits for peers


async def test_foreign_change_in_recreated_topic_removes_nothing():
    topic = KeptTopic()
    put(topic, *plain_changes({}, {ALICE: RATE, BOB: RATE}), settled())
    async with gateway(topic, {}) as here:
        topic.delete()
        topic.exists = True
        put(topic, *plain_changes({}, {ALICE: OTHER}))
        await here.until_reported({ALICE: OTHER, BOB: RATE})
    assert table(topic).quotas == {ALICE: OTHER, BOB: RATE}
    assert {} not in here.reported
    assert all(BOB in quotas for quotas in here.reported)


async def test_own_change_while_topic_is_gone_removes_nothing(monkeypatch):
    monkeypatch.setattr(topic_log, "RETRY_SECONDS", 0.3)  # the reader notices late
    monkeypatch.setattr(topic_log, "MAX_AGE_SECONDS", 3600.0)
    topic = KeptTopic()
    both = {ALICE: RATE, BOB: RATE}
    put(topic, *plain_changes({}, both), settled())
    async with gateway(topic, both) as here:
        topic.delete()
        assert await here.log.save(both, {ALICE: OTHER, BOB: RATE}) == {ALICE: OTHER, BOB: RATE}
        assert table(topic).quotas == {ALICE: OTHER, BOB: RATE}
        assert all(BOB in quotas for quotas in here.reported)


async def test_change_after_foreign_recreation_is_answered(monkeypatch):
    """Produce goes by name, so it arrives in a topic that the reader does not know of yet."""
    monkeypatch.setattr(topic_log, "MAX_AGE_SECONDS", 0.3)
    topic = KeptTopic()
    both = {ALICE: RATE, BOB: RATE}
    put(topic, *plain_changes({}, both), settled())
    async with gateway(topic, {}) as here:
        assert await here.log.save(both, {ALICE: OTHER, BOB: RATE}) == {ALICE: OTHER, BOB: RATE}
        topic.delete()
        topic.exists = True
        assert await here.log.save({ALICE: OTHER, BOB: RATE}, both) == both


async def test_claim_in_a_deleted_topic_is_repeated(monkeypatch):
    monkeypatch.setattr(quota_log, "SAVE_SECONDS", 0.3)
    topic = KeptTopic()

    def vanish(number):
        if number == 1:  # between the claim and its being read
            asyncio.get_running_loop().call_soon(made_again)
        return False

    def made_again():
        topic.delete()
        topic.exists = True

    topic.fails = vanish
    async with gateway(topic, {ALICE: RATE}):
        pass
    assert table(topic).quotas == {ALICE: RATE}


async def test_quota_removed_in_new_topic_stays_removed():
    topic = KeptTopic()
    put(topic, *plain_changes({}, {ALICE: RATE, BOB: RATE}), settled())
    async with gateway(topic, {}) as here:
        topic.delete()
        topic.exists = True
        put(topic, *plain_changes({ALICE: RATE}, {}))
        await here.until_reported({BOB: RATE})
    assert table(topic).quotas == {BOB: RATE}


@asynccontextmanager
async def interrupted_gateway(topic):
    """A gateway that lost the topic before it was deleted, and has seen the new topic's end."""
    put(topic, *plain_changes({}, {ALICE: RATE, BOB: RATE}), settled())
    async with gateway(topic, {}) as here:
        topic.reachable = False
        await topic.closed.wait()
        topic.delete()
        topic.exists = topic.reachable = True
        while here.log._log.status.interrupted:
            await here.log._log.looked()
        yield here


@pytest.mark.parametrize("starts", [True, False], ids=["gateway starts", "gateway is running"])
@pytest.mark.parametrize("left", [0, 1], ids=["all records", "the last records"])
async def test_quotas_that_the_topic_has_lost_come_back(left, starts, monkeypatch, caplog):
    """An unclean election, or a new disk. The gateway must not forget the quotas at its next start."""
    monkeypatch.setattr(quota_log, "CLAIM_SECONDS", 0.2)
    topic, copy = KeptTopic(), Copy({})
    put(topic, *plain_changes({}, {ALICE: RATE, CAROL: RATE}), claim("peer"), settled())
    put(topic, *plain_changes({}, {BOB: RATE}))
    put(topic, *plain_changes({ALICE: RATE}, {ALICE: OTHER}))
    wanted = {ALICE: RATE if left else OTHER, BOB: RATE, CAROL: RATE}
    async with gateway(topic, copy) as here:
        await until_copied(copy, topic)
        if not starts:
            topic.lose(3 - left)
            while here.log.whole:
                await here.log._log.looked()
            await here.log._whole.wait()
            assert here.log._known == wanted
    if starts:
        topic.lose(3 - left)
    async with gateway(topic, copy) as here:
        assert here.log._known == wanted
    assert table(topic).quotas == wanted
    text = "has lost changes, so earlier quotas hold for 1 of the entities: user=alice"
    assert (text in caplog.text) == bool(left)


@pytest.mark.parametrize("quotas", [{}, {ALICE: OTHER, CAROL: RATE}], ids=["no file", "an older file"])
async def test_late_quotas_prove_no_lost_records(quotas, monkeypatch, caplog):
    """An operator has deleted the file of quotas, or has put an older one there."""
    monkeypatch.setattr(quota_log, "CLAIM_SECONDS", LONG)
    topic = KeptTopic()
    put(topic, *plain_changes({}, {ALICE: RATE}), claim("peer"), settled())
    records = len(topic.records())
    async with gateway(topic, known(quotas, records, late=True)) as here:
        assert here.log._known == {ALICE: RATE}
    assert len(topic.records()) == records
    assert "has lost" not in caplog.text


async def test_gateway_adds_nothing_if_a_peer_has_put_back(monkeypatch):
    """The topic has lost a change and a removal. A peer, whose gateway knew both, was first."""
    monkeypatch.setattr(quota_log, "CLAIM_SECONDS", LONG)
    topic = KeptTopic()
    put(topic, *plain_changes({}, {ALICE: RATE}), claim("peer"), settled())
    put(topic, *plain_changes({}, {BOB: RATE, CAROL: RATE}))
    async with gateway(topic, {}) as here:
        topic.reachable = False
        await topic.closed.wait()
        topic.lose(1)
        topic.reachable = True
        while here.log.whole:
            await here.log._log.looked()
        put(topic, *restored_records({BOB: RATE}, 6), claim("peer"), settled(FIRST, 6), *plain_changes({CAROL: RATE}, {}))
        await here.until_reported({ALICE: RATE, BOB: RATE})
    assert table(topic).quotas == {ALICE: RATE, BOB: RATE}


async def test_gateway_with_older_quotas_leaves_new_topic_to_peers(monkeypatch):
    monkeypatch.setattr(quota_log, "CLAIM_SECONDS", LONG)
    topic = KeptTopic()
    async with interrupted_gateway(topic) as here:
        put(topic, *plain_changes({}, {ALICE: OTHER}), claim("peer"), settled())
        await here.until_reported({ALICE: OTHER})
        await here.log._whole.wait()
    assert table(topic).quotas == {ALICE: OTHER}


async def test_starting_gateway_leaves_new_topic_to_peers(monkeypatch):
    monkeypatch.setattr(quota_log, "CLAIM_SECONDS", LONG)
    topic = KeptTopic()
    async with gateway(topic, {ALICE: RATE, BOB: RATE}, whole=False) as here:
        while here.log._log.status.interrupted:
            await here.log._log.looked()
        put(topic, *plain_changes({}, {ALICE: OTHER}), claim("peer"), settled())
        await here.until_reported({ALICE: OTHER})
    assert table(topic).quotas == {ALICE: OTHER}


@pytest.mark.parametrize("foreign", [{}, {ALICE: OTHER}], ids=["an empty topic", "a foreign change"])
async def test_older_quotas_fill_new_topic_if_no_peer_does(monkeypatch, foreign):
    monkeypatch.setattr(quota_log, "CLAIM_SECONDS", 0.2)
    topic = KeptTopic()
    async with interrupted_gateway(topic) as here:
        put(topic, *plain_changes({}, foreign))
        await here.log._whole.wait()
    assert table(topic).quotas == {ALICE: RATE, BOB: RATE} | foreign


async def test_gateway_marks_recreated_topic_as_filled():
    topic = KeptTopic()
    put(topic, *plain_changes({}, {ALICE: RATE, BOB: RATE}), settled())
    async with gateway(topic, {}) as here:
        topic.delete()
        topic.exists = True
        put(topic, *plain_changes({}, {ALICE: OTHER, BOB: OTHER}))
        await here.until_reported({ALICE: OTHER, BOB: OTHER})
        await here.log._whole.wait()
    assert table(topic).filled


async def test_change_before_topic_is_read_ignores_copy():
    topic = KeptTopic()
    put(topic, *plain_changes({}, {ALICE: {"a": 9.0}}), settled())
    copy = {ALICE: {"a": 1.0, "b": 2.0}, BOB: {"a": 1.0}}
    async with gateway(topic, copy, whole=False) as here:
        after = await here.log.save(copy, {ALICE: {"a": 1.0, "b": 3.0}, BOB: {"a": 1.0}})
    assert after == table(topic).quotas == {ALICE: {"a": 9.0, "b": 3.0}}


async def asked(topic, meanwhile, wanted=RATE):
    """Set quotas of alice through a gateway whose copy has `RATE` for her. `meanwhile` is called just before.

    Returns the error code, and the quotas of the gateway after the answer.
    """
    queue, done = AlterQueue(("User:root",)), asyncio.Event()
    store = QuotaTopic("quotas", topic.connect, Copy({ALICE: RATE}), queue.follow)
    admin = QuotaAdmin(QuotaEngine(QuotaSettings(()), 0.0), store, queue, Outlet("", []))
    await admin.start()
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        tasks = [group.create_task(each.run()) for each in (admin, store)]
        await meanwhile(store)
        entry = AlterEntry((EntityPart("user", "alice"),), tuple(Op(*each) for each in wanted.items()))
        task = queue.alter(AlterRequest((entry,), validate_only=False), "root", done.set)
        await done.wait()
        for each in tasks:
            each.cancel()
    (result,) = task.alteration.results.values()
    return result.error_code, [dict(row.values) for row in at_once(admin.describe((), strict=False))]


@pytest.mark.parametrize("starts", [True, False], ids=["gateway starts", "reader is late"])
async def test_quota_that_another_gateway_removed_is_set_again(starts):
    topic = KeptTopic()
    put(topic, *plain_changes({}, {ALICE: RATE}), settled())

    async def remove(store):
        if not starts:
            await store._whole.wait()
        put(topic, *plain_changes({ALICE: RATE}, {}), wakes=False)

    assert await asked(topic, remove) == (0, [RATE])
    assert table(topic).quotas == {ALICE: RATE}


async def test_change_keeps_other_limit_that_a_peer_has_just_set():
    topic = KeptTopic()
    put(topic, *plain_changes({}, {ALICE: RATE}), settled())
    fetches = {"consumer_byte_rate": 5e6}

    async def set_other_limit(store):
        await store._whole.wait()
        put(topic, *plain_changes({ALICE: RATE}, {ALICE: RATE | fetches}), wakes=False)

    code, (shown,) = await asked(topic, set_other_limit, OTHER)
    assert (code, shown) == (0, OTHER | fetches)
    assert table(topic).quotas == {ALICE: OTHER | fetches}


PRODUCE, FETCH = {"producer_byte_rate": 1e6}, {"consumer_byte_rate": 5e6}
AT_ONCE = {
    "both set": ({}, [PRODUCE, FETCH], PRODUCE | FETCH),
    "set, then the other limit is removed": (PRODUCE, [PRODUCE | FETCH, {}], FETCH),
    "removed, then the other limit is set": (PRODUCE, [{}, PRODUCE | FETCH], FETCH),
    "both removed": (PRODUCE | FETCH, [PRODUCE, FETCH], {}),
    "the same limit": (PRODUCE, [OTHER, THIRD], THIRD),
    "four gateways": ({}, [{key: 1.0} for key in "abcd"], dict.fromkeys("abcd", 1.0)),
}


@pytest.mark.parametrize(("before", "wanted", "after"), AT_ONCE.values(), ids=AT_ONCE)
async def test_gateways_change_one_entity_at_the_same_moment(before, wanted, after):
    """The next gateway may read the topic after compaction."""
    topic = KeptTopic()
    put(topic, *plain_changes({}, {ALICE: before} if before else {}), settled())
    async with AsyncExitStack() as stack, asyncio.timeout(30):
        there = [await stack.enter_async_context(gateway(topic, {})) for _ in wanted]
        known = dict(there[0].log._known)
        changes = [each.log.save(known, {ALICE: limits}) for each, limits in zip(there, wanted, strict=True)]
        await asyncio.gather(*changes)
        for each in there:
            await each.log.catch_up()
    quotas = {ALICE: after} if after else {}
    assert [each.log._known for each in there] == [quotas] * len(there)
    assert table(topic).quotas == compacted(topic).quotas == quotas


async def test_change_is_answered_if_its_completion_fails():
    """All gateways that run have both changes. Only a gateway that reads the topic after compaction lacks one."""
    topic = KeptTopic()
    put(topic, settled())
    topic.fails = lambda number: number > 2
    async with gateway(topic, {}) as first, gateway(topic, {}) as second:
        await asyncio.gather(first.log.save({}, {ALICE: PRODUCE}), second.log.save({}, {ALICE: FETCH}))
        await first.log.catch_up()
        assert first.log._known == second.log._known == {ALICE: PRODUCE | FETCH}


async def test_change_fails_while_the_end_of_the_topic_is_unknown():
    topic = KeptTopic()
    put(topic, *plain_changes({}, {ALICE: RATE}), settled())

    async def lose_end(store):
        await store._whole.wait()
        topic.has_end = False

    assert await asked(topic, lose_end) == (ErrorCode.UNKNOWN_SERVER_ERROR, [RATE])
    assert table(topic).quotas == {ALICE: RATE}


async def test_change_that_nobody_reads_back_takes_too_long(monkeypatch):
    topic = KeptTopic()
    put(topic, settled())
    async with gateway(topic, {}) as here:
        pass  # the reader ends
    monkeypatch.setattr(quota_log, "SAVE_SECONDS", 0.3)
    with pytest.raises(NotSavedError, match="topic quotas does not confirm it: it takes too long"):
        await here.log.save({}, {ALICE: RATE})


async def test_change_before_anybody_reads_takes_too_long(monkeypatch):
    here = Gateway(KeptTopic(), Copy({}))
    monkeypatch.setattr(quota_log, "SAVE_SECONDS", 0.0)
    with pytest.raises(NotSavedError, match="topic quotas has not been read yet: it takes too long"):
        await here.log.save({}, {ALICE: RATE})


async def test_topic_being_filled_is_not_settled_before_its_end(monkeypatch):
    """The first gateway's second batch and its retry fail. The other gateway must not use the first batch alone."""
    monkeypatch.setattr(record_batches, "BATCH_BYTES", 2_000)
    known = {ClientQuotaEntity(f"user-{number}"): RATE for number in range(50)}
    topic = KeptTopic()
    topic.fails = lambda number: number in (3, 5)  # the claim is 1; the client retries one failure at once
    async with gateway(topic, known, whole=False) as first, gateway(topic, {}, whole=False) as second:
        await second.until_reported(known)
        await first.log._whole.wait()
    assert second.reported == [known]
    assert first.reported == []
    assert table(topic).quotas == known


async def test_unwritten_copy_is_written_later():
    topic, copy = KeptTopic(), Copy({}, failing=2)
    put(topic, *plain_changes({}, {ALICE: RATE}), settled())
    async with gateway(topic, copy):
        await copy.saved.wait()
    assert copy.quotas == {ALICE: RATE}


@pytest.mark.parametrize("starts", [True, False], ids=["gateway starts", "gateway is running"])
async def test_newer_quotas_replace_those_that_a_peer_restored(monkeypatch, starts):
    """Two gateways were away when the topic was deleted. The one with the older quotas was first to fill the new topic."""
    monkeypatch.setattr(quota_log, "CLAIM_SECONDS", LONG)
    records = [*filled({ALICE: OTHER, BOB: OTHER, CAROL: RATE}, 1), *plain_changes({}, {BOB: THIRD})]
    wanted = {ALICE: RATE, BOB: THIRD}
    if starts:
        topic = second_topic(*records)
        async with gateway(topic, known({ALICE: RATE, BOB: RATE}, 2)) as here:
            await here.until_reported(wanted)
    else:
        topic = KeptTopic()
        async with interrupted_gateway(topic) as here:
            put(topic, *records)
            await here.until_reported(wanted)
    assert table(topic).quotas == compacted(topic).quotas == wanted


@pytest.mark.parametrize(
    ("history", "position"),
    [(FIRST, 0), (FIRST, 1), ("ff", 9)],
    ids=["fewer records known", "as many records known", "quotas of another cluster"],
)
async def test_other_quotas_do_not_replace_restored_ones(history, position):
    topic = second_topic(*filled({ALICE: OTHER}, 1))
    async with gateway(topic, known({ALICE: RATE, BOB: RATE}, position, history)) as here:
        await here.until_reported({ALICE: OTHER})
    assert table(topic).quotas == {ALICE: OTHER}


async def test_restored_quotas_of_the_same_topic_are_not_replaced():
    topic = second_topic(*filled({ALICE: OTHER}, 1))
    copy = Copy({}, position=None)
    async with gateway(topic, copy):
        await copy.positioned.wait()
    copy.quotas = {ALICE: RATE}
    async with gateway(topic, copy) as here:
        await here.until_reported({ALICE: OTHER})
    assert copy.position.offset > 1
    assert table(topic).quotas == {ALICE: OTHER}


async def test_running_gateway_adds_nothing_to_newer_quotas():
    """The peer had read one change more when the topic was deleted: the removal of a quota."""
    topic = KeptTopic()
    put(topic, *plain_changes({}, {ALICE: RATE, BOB: RATE}), settled())
    async with gateway(topic, {}) as here:
        topic.delete()
        topic.exists = True
        put(topic, *filled({ALICE: RATE}, 4))
        while here.log._position.topic_id == FIRST:
            await here.log._log.looked()
    assert here.reported[-1] == {ALICE: RATE}
    assert table(topic).quotas == {ALICE: RATE}


async def restored_while(topic, meanwhile, copy):
    """The quotas after a gateway has put back those of `copy`. `meanwhile` arrives between its last fetch and its records."""

    def arrive(number):
        if number == 1:
            put(topic, *meanwhile, wakes=False)
        return False

    topic.fails = arrive
    async with gateway(topic, copy) as here:
        await here.log.catch_up()
    assert here.log._known == table(topic).quotas == compacted(topic).quotas
    return here.log._known


@pytest.mark.parametrize("wakes", [True, False], ids=["earlier", "at the same moment"])
async def test_change_of_another_limit_leaves_the_old_ones(wakes):
    """A gateway without old quotas changes one limit in the new topic. Then a peer puts all old limits back."""
    change = heard(topic="02").changes({ALICE: FETCH})
    old = known({ALICE: PRODUCE}, 2)
    topic = second_topic(*filled({}, 1), *(change if wakes else []))
    assert await restored_while(topic, [] if wakes else change, old) == {ALICE: PRODUCE | FETCH}


@pytest.mark.parametrize("later", [{BOB: THIRD}, {}], ids=["changed", "removed"])
async def test_restored_quota_does_not_replace_concurrent_change(later):
    topic = second_topic(*filled({ALICE: OTHER, BOB: OTHER}, 1))
    meanwhile = plain_changes({BOB: OTHER}, later)
    assert await restored_while(topic, meanwhile, known({ALICE: RATE, BOB: RATE}, 2)) == {ALICE: RATE} | later


def delete_second_topic(topic, monkeypatch):
    """The topic is deleted once more, just before the known quotas are put back."""
    missing = QuotaRecords.missing

    def late(*args, **kwargs):
        found = missing(*args, **kwargs)
        if topic.generation == 2:
            topic.delete()
            topic.exists = True
        return found

    monkeypatch.setattr(QuotaRecords, "missing", late)


async def test_change_in_a_topic_that_is_deleted_again_is_kept(monkeypatch):
    topic = KeptTopic()
    both = {ALICE: RATE, BOB: RATE}
    put(topic, *plain_changes({}, both), settled())
    delete_second_topic(topic, monkeypatch)
    async with gateway(topic, {}) as here:
        topic.delete()
        topic.exists = True
        assert await here.log.save(both, {ALICE: OTHER, BOB: RATE}) == {ALICE: OTHER, BOB: RATE}
    assert topic.generation == 3
    assert table(topic).quotas == {ALICE: OTHER, BOB: RATE}


async def test_restored_quotas_enter_no_newer_topic(monkeypatch):
    """The quotas to restore lack those that the topic has."""
    topic = KeptTopic()
    delete_second_topic(topic, monkeypatch)
    put(topic, *plain_changes({}, {ALICE: RATE, BOB: RATE}), settled())
    async with gateway(topic, {}) as here:
        topic.delete()
        topic.exists = True
        put(topic, *plain_changes({}, {BOB: OTHER}))
        while topic.generation == 2 or not here.log.whole:
            await here.log._log.looked()
    assert table(topic).quotas == {ALICE: RATE, BOB: RATE}


@pytest.mark.parametrize("wanted", [RATE, {"producer_byte_rate": None}], ids=["set", "removed"])
async def test_confirmed_quota_without_difference_is_kept(wanted):
    """The gateway that filled the new topic confirms a change that it needs not make. A peer with newer quotas comes later."""
    quotas = {ALICE: RATE} if wanted is RATE else {}
    topic = second_topic(*filled(quotas, 1))

    async def read(store):
        await store._whole.wait()

    code, _ = await asked(topic, read, wanted)
    assert code == 0
    async with gateway(topic, known({ALICE: OTHER}, 2)) as here:
        await here.log.catch_up()
    assert here.log._known == table(topic).quotas == quotas


async def test_repeated_change_does_not_replace_later_change():
    topic = second_topic(*filled({BOB: OTHER}, 1))

    def arrive(number):
        if number in (1, 2):  # the restored quota, and the peer's first change again
            put(topic, *plain_changes({}, {BOB: RATE if number == 1 else THIRD}), wakes=False)
        return False

    topic.fails = arrive
    async with gateway(topic, known({BOB: {"producer_byte_rate": 4e6}}, 2)) as here:
        await here.log.catch_up()
    assert topic.produced == 2
    assert here.log._known == table(topic).quotas == {BOB: THIRD}


@pytest.mark.parametrize("at", [{"position": 3}, {"position": 2, "late": True}], ids=["known", "late"])
async def test_newest_of_several_restored_quotas_wins(at):
    topic = second_topic(*filled({ALICE: OTHER, BOB: OTHER}, 1))
    meanwhile = filled({ALICE: OTHER, BOB: RATE, CAROL: RATE}, 2)
    assert await restored_while(topic, meanwhile, known({ALICE: RATE, BOB: OTHER}, **at)) == {ALICE: RATE, BOB: OTHER}


async def test_older_of_several_restored_quotas_loses():
    topic = second_topic(*filled({ALICE: OTHER, BOB: OTHER}, 1))
    meanwhile = filled({ALICE: RATE, BOB: RATE}, 3)
    copy = known({ALICE: OTHER, BOB: THIRD, CAROL: RATE}, 2)
    assert await restored_while(topic, meanwhile, copy) == {ALICE: RATE, BOB: RATE}
    assert compacted(topic).origin == 3


async def test_first_change_of_a_new_topic_has_the_position():
    """The gateway knows that the last quota was removed. A peer that was away at that time has not removed it yet."""
    topic = second_topic()
    async with gateway(topic, known({}, 5)) as here:
        await here.log.save({}, {ALICE: RATE})
        put(topic, *filled({BOB: RATE}, 4))
        await here.log.catch_up()
    assert here.log._known == table(topic).quotas == {ALICE: RATE}


async def test_position_goes_on_in_a_new_topic():
    topic, copy = KeptTopic(), Copy({})
    put(topic, *plain_changes({}, {ALICE: RATE, BOB: RATE}), settled())
    async with gateway(topic, copy) as here:
        await copy.positioned.wait()
        before, _ = copy.position, copy.positioned.clear()
        topic.delete()
        topic.exists = True
        await copy.positioned.wait()
        assert here.log.whole
    assert copy.position.topic_id != before.topic_id == copy.position.history
    assert copy.position.offset > before.offset == 3


async def test_empty_topic_has_a_position():
    topic, copy = KeptTopic(), Copy({})
    async with gateway(topic, copy):
        await copy.positioned.wait()
    assert (copy.position.offset, copy.position.history) == (0, copy.position.topic_id)


@pytest.mark.parametrize("concluded", [False, True], ids=["a change only", "a settled record"])
async def test_starting_gateway_completes_topic_with_a_change_only(concluded):
    """The gateway that was to put back the other quotas was killed after the first change in the new topic."""
    topic = second_topic(*plain_changes({}, {ALICE: OTHER}), *([settled()] if concluded else []))
    wanted = {ALICE: OTHER} if concluded else {ALICE: OTHER, BOB: RATE}
    async with gateway(topic, known({ALICE: RATE, BOB: RATE}, 3)) as here:
        await here.until_reported(wanted)
    assert table(topic).quotas == wanted


async def test_last_change_is_in_the_copy_of_a_gateway_that_ends():
    topic, copy = KeptTopic(), Copy({})
    put(topic, *plain_changes({}, {ALICE: RATE}), settled())
    async with gateway(topic, copy) as here:
        await copy.positioned.wait()
        copy.failing = 1_000
        await here.log.save({ALICE: RATE}, {ALICE: OTHER})
    assert copy.quotas == {ALICE: RATE}
    copy.failing = 0
    await here.log.stop()
    assert copy.quotas == {ALICE: OTHER}
    assert copy.position.offset == 3


async def test_copy_of_another_process_is_left_alone():
    """The workers of the next supervisor have the same file."""
    topic, copy = KeptTopic(), Copy({})
    put(topic, *plain_changes({}, {ALICE: RATE}), settled())
    async with gateway(topic, copy) as here:
        await copy.positioned.wait()
        here.log._writes_copy = lambda: False
        await here.log.save({ALICE: RATE}, {ALICE: OTHER})
    await here.log.stop()
    assert copy.quotas == {ALICE: RATE}


async def test_gateway_that_ends_waits_for_a_copy_under_way():
    """A thread goes on to write after its task was cancelled, so a second one would write the same file."""
    topic, copy, under_way, may_end = KeptTopic(), Copy({}), asyncio.Event(), asyncio.Event()
    save, active = copy.save, []

    async def slow_save(before, after):
        active.append(after)
        assert len(active) == 1
        under_way.set()
        await may_end.wait()
        active.pop()
        return await save(before, after)

    copy.save = slow_save
    put(topic, *plain_changes({}, {ALICE: RATE}), settled())
    async with gateway(topic, copy) as here:
        await under_way.wait()
    ended = asyncio.create_task(here.log.stop())
    await asyncio.sleep(0)
    may_end.set()
    await ended
    assert copy.quotas == {ALICE: RATE}
    assert copy.position is not None
