"""What Weir's look at the cluster says and does where it fails. That it works is shown with real brokers."""

import asyncio
import socket
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest
from aiokafka.client import AIOKafkaClient
from aiokafka.conn import collect_hosts

from gateway.cluster import discovery as module
from gateway.cluster.brokers import Brokers
from gateway.cluster.defaults import TopicDefaults
from gateway.cluster.discovery import Discovery
from gateway.cluster.upstream import Upstream
from gateway.config import UpstreamConfig


def free_port():
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        return server.getsockname()[1]


@pytest.mark.parametrize("host", ["::1", "10.0.0.1", "kafka-0"])
def test_an_address_reads_the_same_for_aiokafka(host):
    assert [each[:2] for each in collect_hosts([module._server((host, 9092))])] == [(host, 9092)]


async def test_a_cluster_that_is_not_there_is_told_of_with_cause_and_key(caplog):
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


async def test_a_look_that_never_ends_is_given_up(monkeypatch):
    """aiokafka's task has ended: nobody would ever answer."""
    monkeypatch.setattr(module, "UPDATE_SECONDS", 0.01)
    client = AIOKafkaClient(bootstrap_servers=["127.0.0.1:1"])
    with pytest.raises(TimeoutError, match=r"not told of themselves within 0\.01 s"):
        await module._update(client)
    await client.close()


async def test_what_aiokafkas_task_has_ended_with_ends_nothing_else(caplog):
    """Raised from a `finally`, it would take the place of the cancellation, and Weir would never stop."""

    async def fail():
        raise AssertionError("it could not go on")

    client = AIOKafkaClient(bootstrap_servers=["127.0.0.1:1"])
    client._sync_task = asyncio.create_task(fail())
    await asyncio.wait([client._sync_task])
    await module._close(client)
    assert "it could not go on" in caplog.text
