"""One loop asks a stub broker for brokers and topics, and publishes to subscribers."""

import asyncio

import pytest

from gateway.cluster import metadata as module
from gateway.cluster.client import ClusterError
from gateway.cluster.metadata import ClusterMetadata
from protocol.api_keys import APIS, ApiKey
from tests.gateway.proxy.messages import topic_id
from tests.gateway.running import running, until
from tests.hostile.stub_broker import HOST, NODE_ID, StubBroker
from tests.protocol.samples import with_length


class Cluster:
    """A stub broker. `asked` has the topics of each Metadata request: a list of names, or None for all."""

    def __init__(self, broker):
        self.broker = broker
        self.requested = []
        self.silent = False
        broker.answers[ApiKey.METADATA] = self.answer

    @staticmethod
    def asked(request):
        topics = request.decode().topics
        return None if topics is None else [topic.name for topic in topics]

    def answer(self, request):
        self.requested.append(self.asked(request))
        return False if self.silent else self.broker.metadata(request)

    def count(self, names):
        return self.requested.count(names)


@pytest.fixture
def cluster():
    with StubBroker({"payments": 2, "orders": 1}) as broker:
        yield Cluster(broker)


@pytest.fixture
def metadata(cluster, monkeypatch):
    monkeypatch.setattr(module, "REFRESH_SECONDS", 0.2)
    return ClusterMetadata(lambda: [(HOST, cluster.broker.port)])


def loop(metadata):
    async def retry(_error):
        await asyncio.sleep(0.02)

    return running(metadata.run(retry))


async def test_subscribers_share_one_connection_and_one_request(cluster, metadata):
    seen = [[], [], []]
    with metadata.subscribe(seen[0].append), metadata.subscribe(seen[1].append), metadata.subscribe(seen[2].append):
        async with loop(metadata):
            await until(lambda: len(seen[0]) == 3)
    assert seen[0] == seen[1] == seen[2] == [{NODE_ID: (HOST, cluster.broker.port)}] * 3
    assert cluster.requested == [[]] * 3
    assert cluster.broker.connections == 1


async def test_versions_are_those_of_the_broker_asked(cluster, metadata):
    assert metadata.versions == {}
    await metadata.look()
    await metadata.close()
    assert metadata.versions[ApiKey.METADATA] == (0, APIS[ApiKey.METADATA].max_version)
    assert ApiKey.CREATE_TOPICS not in metadata.versions


async def test_failing_subscriber_hurts_no_other(metadata, caplog):
    seen = []

    def fail(_brokers):
        raise ZeroDivisionError

    with metadata.subscribe(fail), metadata.subscribe(seen.append):
        async with loop(metadata):
            await until(lambda: len(seen) == 2)
    assert "a subscriber to the cluster's metadata failed" in caplog.text


async def test_topics_are_listed_only_for_a_subscriber(cluster, metadata):
    seen = []
    async with loop(metadata):
        await until(lambda: cluster.count([]) == 2)
        assert cluster.count(None) == 0
        with metadata.subscribe(on_topics=seen.append) as subscription:
            await until(lambda: seen)
            subscription.hurry()
            await until(lambda: len(seen) == 2)
        requests = cluster.count(None)
        await until(lambda: cluster.count([]) > 4)
        assert cluster.count(None) == requests
    assert {topic.name: topic.topic_id for topic in seen[0]} == {name: topic_id(name) for name in ("payments", "orders")}


async def test_unreadable_topics_do_not_hide_the_brokers(cluster, metadata):
    seen, failures = [], []

    def answer(request):
        is_list = request.decode().topics is None
        whole = cluster.broker.metadata(request)
        return with_length(whole[4:-2]) if is_list else whole

    cluster.broker.answers[ApiKey.METADATA] = answer
    with metadata.subscribe(seen.append), metadata.subscribe(on_topics=len, on_failure=failures.append):
        async with loop(metadata):
            await until(lambda: len(seen) == 3)
    assert "unreadable" in str(failures[0])


@pytest.mark.parametrize("topics", [[], None], ids=["brokers", "topics"])
async def test_end_of_a_session_is_no_failure(topics, cluster, metadata):
    """A broker closes the connection at the first request after the end of Weir's session (KIP-368)."""
    failures, ended = [], []

    def answer(request):
        if not ended and cluster.asked(request) == topics:
            ended.append(request.connection)
            return False
        return cluster.answer(request)

    with metadata.subscribe(on_topics=len, on_failure=failures.append):
        async with loop(metadata):
            await until(lambda: cluster.count(None) == 1)
            cluster.broker.answers[ApiKey.METADATA] = answer
            await until(lambda: ended and cluster.count(topics) > 1)
    assert not failures
    assert cluster.broker.connections == 2


async def test_failure_reaches_subscribers_and_brokers_come_back(cluster, metadata):
    seen, failures = [], []
    cluster.silent = True
    with metadata.subscribe(seen.append, on_failure=failures.append):
        async with loop(metadata):
            await until(lambda: len(failures) == 2)
            assert not seen
            cluster.silent = False
            await until(lambda: seen)
    assert all(isinstance(failure, ClusterError) for failure in failures)


async def test_loop_keeps_looked_at_topic_fresh(cluster, metadata):
    client = metadata.connect()
    async with loop(metadata):
        look = await client.look("payments")
        assert (look.topic.topic_id, look.topic.leaders) == (topic_id("payments"), (NODE_ID, NODE_ID))
        await until(lambda: cluster.count(["payments"]) == 3)
        for _ in range(10):
            assert (await client.look("payments", max_age=10.0)).topic == look.topic
    assert cluster.count(["payments"]) == 3
    await client.close()


async def test_stale_answer_is_asked_for_again(cluster, metadata):
    client = metadata.connect()
    for _ in range(3):
        await client.look("payments", max_age=0.0)
    assert cluster.count(["payments"]) == 3
    cluster.silent = True
    assert (await client.look("payments", max_age=10.0)).topic is not None
    with pytest.raises(ClusterError):
        await client.look("payments")
    await metadata.close()


@pytest.mark.parametrize(("error", "said"), [(3, None), (29, "topic payments: TopicAuthorizationFailedError")])
async def test_topic_error_reaches_only_its_caller(error, said, cluster, metadata):
    cluster.broker.answers[ApiKey.METADATA] = lambda request: request.answer(
        brokers=[{"node_id": NODE_ID, "host": HOST, "port": cluster.broker.port}],
        topics=[{"error_code": error, "name": topic.name, "partitions": []} for topic in request.decode().topics],
    )
    seen = []
    with metadata.subscribe(seen.append):
        async with loop(metadata):
            if said is None:
                assert (await metadata.look("payments")).topic is None
            else:
                with pytest.raises(ClusterError, match=said):
                    await metadata.look("payments")
            await until(lambda: seen)


async def test_answer_without_brokers_keeps_addresses(cluster, metadata):
    """It says nothing about the cluster, and is asked for again soon; subscribers learn of it."""
    seen = []
    with metadata.subscribe(seen.append):
        async with loop(metadata):
            await until(lambda: seen)
            known = metadata.brokers
            cluster.broker.answers[ApiKey.METADATA] = lambda request: request.answer(brokers=[], topics=[])
            await until(lambda: seen[-1] == {})
            assert metadata.brokers == known


async def test_slow_answer_does_not_replace_later_one(cluster, metadata):
    gate = asyncio.Event()
    loop_, ids = asyncio.get_running_loop(), iter(["0" * 31 + "1", "0" * 31 + "2"])

    async def answer(request):
        mine = next(ids)
        if mine.endswith("1"):
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(gate.wait(), loop_))
        topic = {"error_code": 0, "name": "payments", "topic_id": mine, "partitions": []}
        return request.answer(brokers=[{"node_id": NODE_ID, "host": HOST, "port": cluster.broker.port}], topics=[topic])

    cluster.broker.answers[ApiKey.METADATA] = answer
    slow = asyncio.create_task(metadata.look("payments"))
    await until(lambda: cluster.broker.connections == 1)
    metadata._connections, first = module.Connections(), metadata._connections  # the stub answers in order
    await asyncio.sleep(0.05)
    assert (await metadata.look("payments")).topic.topic_id == bytes(15) + b"\2"
    gate.set()
    assert (await slow).topic.topic_id == bytes(15) + b"\2"
    await first.close()
    await metadata.close()


async def test_concurrent_requests_open_one_connection(cluster, metadata):
    await asyncio.gather(*(metadata.look(name) for name in ("payments", "orders", None)))
    assert cluster.broker.connections == 1
    await metadata.close()
