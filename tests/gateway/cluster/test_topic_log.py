"""A reader skips unreadable batches. tests/broker/test_quota_log.py covers the rest with a real broker."""

import asyncio
import logging
from contextlib import suppress
from itertools import count, pairwise

import cramjam
import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.memory_records import MemoryRecords

from gateway import clock
from gateway.cluster import topic_log
from gateway.cluster.client import ClusterError, check_error
from gateway.cluster.record_batches import BATCH_BYTES, MAX_UNPACKED_BYTES
from gateway.cluster.topic_log import TopicLog
from gateway.cluster.topic_spec import TopicSpec
from tests.gateway.cluster.kept_topic import KeptTopic

NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)
HEADER_BYTES = 61


def batch(*keys, codec=NONE, headers=(), value=b"value" * 20):
    builder = DefaultRecordBatchBuilder(
        magic=2, compression_type=codec, is_transactional=0, producer_id=-1, producer_epoch=-1, base_sequence=-1,
        batch_size=1 << 20,
    )  # fmt: skip
    for offset, key in enumerate(keys):
        builder.append(offset, 1_000, key, value, list(headers))
    return bytes(builder.build()), len(keys)


def damaged(codec):
    whole, count = batch(b"lost", codec=codec)
    return whole[:HEADER_BYTES] + b"\xff" * (len(whole) - HEADER_BYTES), count


def not_utf_8():
    whole, count = batch(b"lost", headers=[("header", b"")])
    return whole.replace(b"header", b"\xff" * 6), count


BAD = {
    "gzip": damaged(GZIP),
    "snappy": damaged(SNAPPY),
    "lz4": damaged(LZ4),
    "zstd": damaged(ZSTD),
    "no compression": damaged(NONE),
    "an unknown codec": (batch(b"lost")[0][:22] + b"\x07" + batch(b"lost")[0][23:], 1),
    "a header that is not UTF-8": not_utf_8(),
}


class Reader:
    def __init__(self, topic):
        self.keys = []
        self.log = TopicLog(topic.connect, TopicSpec("a-topic"), lambda key, value, headers: self.keys.append(key))

    async def __aenter__(self):
        self.task = asyncio.create_task(self.log.run())
        return self

    async def __aexit__(self, *_):
        self.task.cancel()
        with suppress(asyncio.CancelledError):
            await self.task

    async def until(self, condition):
        while not condition():
            assert not self.task.done(), self.task
            await self.log.looked()


@pytest.mark.parametrize("codec", [NONE, GZIP, SNAPPY, LZ4, ZSTD])
async def test_each_codec_is_readable(codec):
    topic = KeptTopic()
    topic.append(*batch(b"a", b"b", codec=codec))
    async with Reader(topic) as reader:
        await reader.until(lambda: reader.log.status.caught_up)
    assert reader.keys == [b"a", b"b"]
    assert reader.log.status.skipped == {}


async def test_raw_snappy_is_readable():
    """As librdkafka writes it, without the stream of Java."""
    plain, size = batch(b"a", b"b")
    records = bytes(cramjam.snappy.compress_raw(plain[HEADER_BYTES:]))
    length = (HEADER_BYTES - 12 + len(records)).to_bytes(4, "big")
    topic = KeptTopic()
    topic.append(plain[:8] + length + plain[12:22] + bytes([SNAPPY]) + plain[23:HEADER_BYTES] + records, size)
    async with Reader(topic) as reader:
        await reader.until(lambda: reader.log.status.caught_up)
    assert reader.keys == [b"a", b"b"]


@pytest.mark.parametrize("codec", [GZIP, SNAPPY, LZ4, ZSTD])
@pytest.mark.parametrize(("size", "keys"), [(BATCH_BYTES, [b"large", b"b"]), (MAX_UNPACKED_BYTES, [b"b"])])
async def test_batch_beyond_unpacked_bound_is_skipped(codec, size, keys, caplog):
    """A batch of 400 kB would take 800 MB."""
    topic = KeptTopic()
    topic.append(*batch(b"large", codec=codec, value=bytes(size)))
    topic.append(*batch(b"b"))
    async with Reader(topic) as reader:
        await reader.until(lambda: reader.log.status.caught_up)
    assert reader.keys == keys
    assert reader.log.status.unreadable_batches_total == 2 - len(keys)
    assert (
        ("2097152 bytes unpacked" in caplog.text) == ("only Weir's user should write there" in caplog.text) == (len(keys) == 1)
    )


async def test_records_are_read_in_turns(monkeypatch):
    """A batch of 200 000 records would stop all clients for seconds."""
    monkeypatch.setattr(topic_log, "TURN_SECONDS", 0.0, raising=False)
    topic = KeptTopic()
    topic.append(*batch(*[b"k"] * 100))
    turns = []

    async def tick():
        while True:
            turns.append(len(reader.keys))
            await asyncio.sleep(0)

    async with Reader(topic) as reader:
        ticking = asyncio.create_task(tick())
        await reader.until(lambda: reader.log.status.caught_up)
        ticking.cancel()
    assert max(after - before for before, after in pairwise(turns)) == 1


@pytest.mark.parametrize("bad", BAD)
async def test_unreadable_batch_is_skipped(bad, caplog):
    topic = KeptTopic()
    topic.append(*batch(b"a"))
    topic.append(*BAD[bad])
    topic.append(*batch(b"b"))
    async with Reader(topic) as reader:
        await reader.until(lambda: reader.log.status.caught_up)
        assert reader.keys == [b"a", b"b"]
        assert reader.log.status.skipped == {"unreadable_batch": 1}
        topic.append(*batch(b"c"))
        await reader.until(lambda: b"c" in reader.keys)
    (said,) = [record.getMessage() for record in caplog.records if "can't be read" in record.getMessage()]
    assert "topic a-topic: the batch of records at offset 1 of partition 0" in said


async def test_record_that_fails_its_reader_is_skipped(caplog):
    """Otherwise a bug of Weir's would end all gateways, and each again at its start."""
    topic = KeptTopic()
    topic.append(*batch(b"a", b"b"))
    async with Reader(topic) as reader:
        note = reader.keys.append

        def fail(key, _value, _headers):
            note(key)
            if key == b"a":
                raise ZeroDivisionError

        reader.log._on_record = fail
        await reader.until(lambda: reader.log.status.caught_up)
    assert reader.keys == [b"a", b"b"]
    assert "topic a-topic: the record with the key b'a' can't be used" in caplog.text


@pytest.mark.parametrize(
    "rubbish",
    [b"\0" * 8 + (5).to_bytes(4, "big") + b"\xff" * 5, b"\0" * 11 + b"\xff" * 3],
    ids=["too short for a batch", "not whole"],
)
async def test_unreadable_rest_is_logged_and_retried(rubbish, monkeypatch, caplog):
    """The reader's task must not end, because its end would stop the gateway."""
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(topic_log, "RETRY_SECONDS", 0.0)
    topic = KeptTopic()
    good, count = batch(b"a")
    topic.append(good, count)
    topic.batches[0], whole = rubbish + b"\0" * (HEADER_BYTES - 4 - len(rubbish)) + b"\0\0\0\1", topic.batches[0]
    async with Reader(topic) as reader:
        await topic.closed.wait()
        assert "a-topic-0: the batch at offset 0 can't be read" in reader.log.status.reader.problem
        assert not any("is read again" in record.getMessage() for record in caplog.records), "while the rest is unreadable"
        topic.batches[0] = whole
        await reader.until(lambda: reader.keys)
    assert reader.keys == [b"a"]


@pytest.mark.parametrize("left", [0, 1])
async def test_reader_begins_again_if_the_topic_lost_records(left, monkeypatch, caplog):
    monkeypatch.setattr(topic_log, "RETRY_SECONDS", 0.0)
    topic, begun = KeptTopic(), []
    for key in (b"a", b"b", b"c"):
        topic.append(*batch(key))
    async with Reader(topic) as reader:
        reader.log._on_new_topic = lambda: begun.append(len(reader.keys))
        await reader.until(lambda: len(reader.keys) == 3)
        topic.lose(3 - left)
        await topic.closed.wait()
        assert not reader.log.status.caught_up
        await reader.until(lambda: reader.log.status.caught_up)
        topic.append(*batch(b"d"))
        await reader.until(lambda: reader.keys[-1] == b"d")
    assert begun == [3]
    assert reader.keys == [b"a", b"b", b"c", *[b"a"][:left], b"d"]
    assert f"a-topic-0: the brokers have lost the records from offset {left} to 2 — set unclean" in caplog.text


async def test_record_before_the_readers_position_is_refused():
    """The reader has not noticed yet that the topic has lost records, so it would not wait for this one."""
    topic = KeptTopic()
    for key in (b"a", b"b"):
        topic.append(*batch(key))
    async with Reader(topic) as reader:
        await reader.until(lambda: reader.log.offset == 2)
        topic.lose(2)
        with pytest.raises(ClusterError, match="the brokers have lost the records from offset 1 to 1"):
            await reader.log.publish([(b"c", b"1")])


async def test_topic_is_created_with_producer_compression():
    topic = KeptTopic()
    topic.delete()
    async with Reader(topic) as reader:
        await topic.created.wait()
        await reader.until(lambda: reader.log.topic_id)
    assert topic.configs == {"cleanup.policy": "compact", "compression.type": "producer"}


@pytest.mark.parametrize(
    ("usual", "seconds", "replicas"),
    [(3, 3600.0, 3), (5, 3600.0, 3), (3, 0.0, 1), (1, 3600.0, 1), (None, 3600.0, 1)],
    ids=["the cluster starts", "many replicas are usual", "brokers stay away", "one replica is usual", "not shown"],
)
async def test_topic_awaits_the_brokers_of_its_replicas(usual, seconds, replicas, monkeypatch, caplog):
    """Weir starts together with the cluster. Its topic would have one replica for ever, and fail with this broker."""
    monkeypatch.setattr(topic_log, "RETRY_SECONDS", 0.0)
    monkeypatch.setattr(topic_log, "BROKERS_SECONDS", seconds)
    topic = KeptTopic()
    topic.delete()
    topic.usual_replicas = usual
    waits = replicas == 3
    async with Reader(topic) as reader:
        if waits:
            await topic.closed.wait()
            assert not topic.exists
            topic.brokers = dict.fromkeys(range(3), topic.brokers[1])
        await topic.created.wait()
        await reader.until(lambda: reader.log.topic_id)
    assert topic.replicas == replicas
    assert ("it is created once 3 brokers are alive, and 1 are" in caplog.text) is waits


@pytest.mark.parametrize(("timed", "timestamp"), [(False, -1), (True, 1_700_000_000_000)])
async def test_only_timed_records_have_the_wall_clock(timed, timestamp, monkeypatch):
    """Brokers refuse a time that is more than an hour ahead of their own."""
    monkeypatch.setattr(clock, "wall", lambda: 1_700_000_000.0)
    topic = KeptTopic()
    log = TopicLog(topic.connect, TopicSpec("a-topic", timed=timed), lambda key, value, headers: None)
    await log.publish([(b"a", b"1"), (b"b", b"2")])
    (batch,) = topic.batches
    assert [record.timestamp for record in MemoryRecords(batch).next_batch()] == [timestamp, timestamp]


async def test_refused_time_is_explained(caplog):
    topic = KeptTopic()
    topic.refusal = 32
    log = TopicLog(topic.connect, TopicSpec("a-topic", timed=True), lambda key, value, headers: None)
    with pytest.raises(ClusterError, match="refuse this machine's time: set its clock"):
        await log.publish([(b"a", b"1")])
    assert "topic a-topic can't be written: the brokers refuse this machine's time" in caplog.text


async def fail_to_publish(log):
    with pytest.raises(ClusterError):
        await log.publish([(b"a", b"1")])


async def test_each_cause_of_failed_writes_is_logged_once(caplog, monkeypatch):
    """An outage may begin with lost brokers and go on with a missing ACL, which an operator has to add."""
    monkeypatch.setattr(clock, "monotonic", lambda: 0.0)
    caplog.set_level(logging.INFO)
    topic = KeptTopic()
    log = TopicLog(topic.connect, TopicSpec("a-topic"), lambda key, value, headers: None)
    brokers = ["a:1", "b:2", "c:3"]

    def fail(number):
        raise ClusterError("; ".join(f"{broker}: {number}" for broker in brokers[number % 3 :] + brokers[: number % 3]))

    topic.fails = fail
    for _ in range(5):
        await fail_to_publish(log)
    topic.fails, topic.refusal = lambda number: False, 29
    for _ in range(5):
        await fail_to_publish(log)
    topic.fails = fail
    await fail_to_publish(log)
    topic.fails, topic.refusal = lambda number: False, 0
    await log.publish([(b"a", b"1")])
    topic.refusal = 29
    await fail_to_publish(log)
    lost, refused, again, refused_again = caplog.messages
    assert lost.startswith("topic a-topic can't be written: ")
    assert (
        refused
        == refused_again
        == (
            "topic a-topic can't be written: a-topic-0: TopicAuthorizationFailedError (29) — give Weir's user Create, Write,"
            " Describe and DescribeConfigs on this topic: docs/reference/acls.md"
        )
    )
    assert again == "topic a-topic is written again"


async def test_other_cause_of_failed_reads_is_logged(caplog, monkeypatch):
    monkeypatch.setattr(topic_log, "RETRY_SECONDS", 0.0)
    topic = KeptTopic()
    topic.reachable = False
    looks, refused = count(1), asyncio.Event()
    look = topic._look

    async def refuse(*_, **__):
        number = next(looks)
        if number == 6:
            refused.set()
        if number > 3:
            check_error(29, "topic a-topic")
        return await look()

    topic._look = refuse
    async with Reader(topic):
        await refused.wait()
    lost, denied = caplog.messages
    assert lost == "topic a-topic can't be read: the network is lost"
    assert "TopicAuthorizationFailedError (29) — give Weir's user Create, Read, Describe and DescribeConfigs" in denied


@pytest.mark.parametrize(
    ("wanted", "found", "keeps"),
    [
        ("compact", "compact", True),
        ("compact", "delete", False),
        ("compact", "compact,delete", False),
        ("delete", "delete", True),
        ("delete", "", True),
        ("delete", "compact", False),
        ("delete", "compact,delete", False),
        ("compact,delete", "delete,compact", True),
        ("compact,delete", "compact", True),
        ("compact,delete", "delete", False),
    ],
)
def test_policy_that_may_lose_records(wanted, found, keeps):
    assert TopicSpec("a-topic", configs={"cleanup.policy": wanted}).keeps(found) == keeps


@pytest.mark.parametrize(("policy", "problems"), [("compact", 1), ("delete", 0)])
async def test_writer_checks_the_policy_of_the_topic_once(policy, problems, caplog):
    """The ledger has only a writer, and all its lines have one key."""
    topic = KeptTopic()
    topic.configs = {"cleanup.policy": policy}
    log = TopicLog(topic.connect, TopicSpec("lines", configs={"cleanup.policy": "delete"}), lambda key, value, headers: None)
    for _ in range(2):
        await log.publish([(b"weir-1", b"{}")], look=True)
    assert len(topic.records()) == 2
    error = "topic lines has cleanup.policy=compact, so records that Weir needs may be lost — set it to delete"
    assert sum(error in message for message in caplog.messages) == len(caplog.messages) == problems


async def test_failed_check_of_the_policy_is_repeated(caplog, monkeypatch):
    monkeypatch.setattr(topic_log, "POLICY_RETRY_SECONDS", 0.0)
    topic = KeptTopic()
    topic.configs = {"cleanup.policy": "delete"}
    topic.describes = False
    log = TopicLog(topic.connect, TopicSpec("a-topic"), lambda key, value, headers: None)
    await log.publish([(b"weir-1", b"{}")], look=True)
    assert caplog.messages == []
    topic.describes = True
    for _ in range(2):
        await log.publish([(b"weir-1", b"{}")], look=True)
    (message,) = caplog.messages
    assert "topic a-topic has cleanup.policy=delete" in message


async def test_reader_checks_the_policy_of_the_topic(caplog):
    topic = KeptTopic()
    topic.configs = {"cleanup.policy": "delete"}
    async with Reader(topic) as reader:
        await reader.until(lambda: reader.log.status.caught_up)
    assert "topic a-topic has cleanup.policy=delete, so records that Weir needs may be lost — set it to compact" in caplog.text
