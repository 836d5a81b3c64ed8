"""What Weir's look at the cluster says and does where it fails. That it works is shown with real brokers."""

import asyncio
import socket
from collections import Counter
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest
from aiokafka.client import AIOKafkaClient
from aiokafka.conn import collect_hosts

from gateway.cluster import discovery as module
from gateway.cluster.brokers import Brokers
from gateway.cluster.defaults import TopicDefaults
from gateway.cluster.discovery import Discovery
from gateway.cluster.upstream import Upstream
from gateway.config.model import UpstreamConfig
from protocol.api_keys import ApiKey
from tests.hostile.stub_broker import StubBroker


def free_port():
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        return server.getsockname()[1]


@pytest.mark.parametrize("host", ["::1", "10.0.0.1", "kafka-0"])
def test_addresses_read_as_in_aiokafka(host):
    assert [each[:2] for each in collect_hosts([module._server((host, 9092))])] == [(host, 9092)]


async def test_unreachable_cluster_is_reported_with_cause_and_key(caplog):
    here, there = free_port(), free_port()
    config = UpstreamConfig(bootstrap_servers=["kafka:9092"])
    upstream = Upstream(config, Path(), Brokers([("127.0.0.1", here), ("127.0.0.1", there)]), Counter())
    discovery = Discovery(upstream, TopicDefaults(lambda _: None), lambda _: None)
    await discovery._explain("Unable to bootstrap")
    assert discovery.problem.startswith(f"the cluster can't be reached: 127.0.0.1:{here}: Connect")
    assert f"; 127.0.0.1:{there}: Connect" in discovery.problem
    assert discovery.problem.endswith(" — check upstream.bootstrap_servers and upstream.tls")
    await discovery._explain("Unable to bootstrap")
    assert len(caplog.records) == 1


async def test_unreadable_credentials_mean_brokers_require_sasl(tmp_path):
    """Clients would have to wait for ever if this stayed unknown."""
    sasl = {"mechanism": "PLAIN", "username": "weir", "password_file": "missing"}
    config = UpstreamConfig(bootstrap_servers=["kafka:9092"], sasl=sasl)
    wanted = asyncio.get_running_loop().create_future()
    upstream = Upstream(config, tmp_path, Brokers([("127.0.0.1", free_port())]), Counter())

    def note(found):
        if found is not None:
            wanted.set_result(found)

    looking = asyncio.create_task(Discovery(upstream, TopicDefaults(lambda _: None), note).run())
    assert await asyncio.wait_for(wanted, 20.0)
    looking.cancel()


@pytest.mark.parametrize(("error_code", "mechanisms", "wants"), [(34, [], False), (33, ["PLAIN"], True)])
async def test_failed_lookup_still_detects_sasl_requirement(error_code, mechanisms, wants):
    with StubBroker() as broker:
        broker.answers[ApiKey.SASL_HANDSHAKE] = lambda request: request.answer(error_code=error_code, mechanisms=mechanisms)
        upstream = Upstream(
            UpstreamConfig(bootstrap_servers=["kafka:9092"]), Path(), Brokers([("127.0.0.1", broker.port)]), Counter()
        )
        found = []
        await Discovery(upstream, TopicDefaults(lambda _: None), found.append)._explain("no metadata")
    assert [each for each in found if each is not None] == [wants]


async def test_endless_lookup_times_out(monkeypatch):
    """aiokafka's task has ended: nobody would ever answer."""
    monkeypatch.setattr(module, "UPDATE_SECONDS", 0.01)
    client = AIOKafkaClient(bootstrap_servers=["127.0.0.1:1"])
    with pytest.raises(TimeoutError, match=r"not told of themselves within 0\.01 s"):
        await module._update(client)
    await client.close()


async def test_failed_aiokafka_task_ends_nothing_else(caplog):
    """Raised from a `finally`, it would take the place of the cancellation, and Weir would never stop."""

    async def fail():
        raise AssertionError("it could not go on")

    client = AIOKafkaClient(bootstrap_servers=["127.0.0.1:1"])
    client._sync_task = asyncio.create_task(fail())
    await asyncio.wait([client._sync_task])
    await module._close(client)
    assert "it could not go on" in caplog.text


async def test_brokers_are_learned_in_order_of_ids():
    """aiokafka has them in a set, whose order is another one in each process."""
    brokers = Brokers([("127.0.0.1", 9092)])
    learnt = []
    brokers.on_new(learnt.append)
    upstream = Upstream(UpstreamConfig(bootstrap_servers=["kafka:9092"]), Path(), brokers, Counter())
    discovery = Discovery(upstream, TopicDefaults(lambda _: None), lambda _: None)
    found = [SimpleNamespace(nodeId=node_id, host="kafka", port=9092) for node_id in (9, 1, 17, 5)]
    discovery._note(SimpleNamespace(cluster=SimpleNamespace(brokers=lambda: found)))
    assert learnt == [1, 5, 9, 17]


@pytest.mark.parametrize(("host", "port"), [("", 9092), (None, 9092), ("kafka", -1), ("kafka", 0), ("kafka", 65_536)])
def test_invalid_address_is_ignored(host, port):
    brokers = Brokers([("127.0.0.1", 9092)])
    brokers.learn(1, host, port)
    assert 1 not in brokers
    brokers.learn(1, "kafka", 9092)
    brokers.learn(1, host, port)
    assert brokers.address(1) == ("kafka", 9092)


async def test_lookup_ends_with_aiokafka_task():
    """It ends for an odd address of a broker, and would leave Weir waiting for `UPDATE_SECONDS`."""

    async def fail():
        raise UnicodeError("label empty or too long")

    client = AIOKafkaClient(bootstrap_servers=["127.0.0.1:1"])
    client._sync_task = asyncio.create_task(fail())
    with pytest.raises(UnicodeError, match="label empty"):
        await module._update(client)
    await module._close(client)


async def test_cancel_while_aiokafka_closes_is_kept() -> None:
    client = AIOKafkaClient(bootstrap_servers="localhost:1")
    client._sync_task = asyncio.create_task(asyncio.Event().wait())
    closing = asyncio.create_task(module._close(client))
    await asyncio.sleep(0)  # now it waits for the task that it has cancelled
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
