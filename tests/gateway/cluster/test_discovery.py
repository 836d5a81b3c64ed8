"""Discovery reports failures with their cause; tests/broker shows it with real brokers."""

import asyncio
import gc
import logging
import random
import socket
import ssl
import struct
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from threading import Event

import pytest

from gateway.cluster import discovery as module
from gateway.cluster import metadata as metadata_module
from gateway.cluster.brokers import Brokers
from gateway.cluster.discovery import Discovery, sasl_mechanisms
from gateway.cluster.metadata import ClusterMetadata
from gateway.cluster.upstream import Upstream
from gateway.config.model import UpstreamConfig
from gateway.proxy.counters import Counters
from loadtest.testkit.certificates import Authority
from loadtest.testkit.kafka import free_port
from protocol.api_keys import ApiKey
from protocol.error_codes import ErrorCode
from tests.gateway.running import running, until
from tests.hostile.stub_broker import StubBroker


def upstream_of(broker):
    config = UpstreamConfig(bootstrap_servers=["kafka:9092"])
    return Upstream(config, Path(), Brokers([("127.0.0.1", broker.port)]), Counters())


@pytest.fixture
def stub():
    """A broker; `looks` are the Metadata requests that it has answered."""
    with StubBroker() as broker:
        broker.looks = []

        def answer(request):
            broker.looks.append(request)
            return broker.metadata(request)

        broker.answers[ApiKey.METADATA] = answer
        yield broker


def discovery_of(upstream, on_sasl=lambda _: None, on_configs=lambda _: None):
    metadata = ClusterMetadata(upstream.brokers.anyone, upstream.client_options)
    return Discovery(upstream, metadata, on_sasl, ("one", "other"), on_configs)


async def test_unreachable_cluster_is_reported_with_cause_and_key(caplog):
    here, there = free_port(), free_port()
    config = UpstreamConfig(bootstrap_servers=["kafka:9092"])
    upstream = Upstream(config, Path(), Brokers([("127.0.0.1", here), ("127.0.0.1", there)]), Counters())
    discovery = discovery_of(upstream)
    await discovery._explain("Unable to bootstrap")
    assert discovery.problem.startswith(f"the cluster can't be reached: 127.0.0.1:{here}: Connect")
    assert f"; 127.0.0.1:{there}: Connect" in discovery.problem
    assert discovery.problem.endswith(" — check upstream.bootstrap_servers and upstream.tls")
    await discovery._explain("Unable to bootstrap")
    assert len(caplog.records) == 1


async def test_host_that_dns_cannot_have_is_reported() -> None:
    config = UpstreamConfig(bootstrap_servers=["kafka:9092"])
    discovery = discovery_of(Upstream(config, Path(), Brokers([("a..b", 9092)]), Counters()))
    await discovery._explain("Unable to bootstrap")
    assert "a..b:9092: the host is not a name that DNS can have" in discovery.problem


async def test_brokers_with_one_problem_share_its_text() -> None:
    """Both servers close the connection after the request."""

    async def close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.close()

    async with await asyncio.start_server(close, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        servers = [("127.0.0.1", port), ("localhost", port)]
        upstream = Upstream(UpstreamConfig(bootstrap_servers=["kafka:9092"]), Path(), Brokers(servers), Counters())
        discovery = discovery_of(upstream)
        await discovery._explain("Unable to bootstrap")
    assert f"127.0.0.1:{port}, localhost:{port}: " in discovery.problem
    assert discovery.problem.count(": ") == 2


async def test_unreadable_credentials_mean_brokers_require_sasl(tmp_path):
    """Clients would have to wait for ever if this stayed unknown."""
    sasl = {"mechanism": "PLAIN", "username": "weir", "password_file": "missing"}
    config = UpstreamConfig(bootstrap_servers=["kafka:9092"], sasl=sasl)
    wanted = asyncio.get_running_loop().create_future()
    upstream = Upstream(config, tmp_path, Brokers([("127.0.0.1", free_port())]), Counters())

    def note(found):
        if found is not None:
            wanted.set_result(found)

    looking = asyncio.create_task(discovery_of(upstream, note).run())
    assert await asyncio.wait_for(wanted, 20.0)
    looking.cancel()


@pytest.mark.parametrize(("error_code", "mechanisms", "wants"), [(34, [], False), (33, ["PLAIN"], True)])
async def test_failed_lookup_still_detects_sasl_requirement(error_code, mechanisms, wants):
    with StubBroker() as broker:
        broker.answers[ApiKey.SASL_HANDSHAKE] = lambda request: request.answer(error_code=error_code, mechanisms=mechanisms)
        upstream = Upstream(
            UpstreamConfig(bootstrap_servers=["kafka:9092"]), Path(), Brokers([("127.0.0.1", broker.port)]), Counters()
        )
        found = []
        await discovery_of(upstream, found.append)._explain("no metadata")
    assert [each for each in found if each is not None] == [wants]


async def test_port_of_a_controller_is_named(stub):
    """It answers ApiVersions, without Metadata, and requires no login."""
    del stub.answers[ApiKey.METADATA]
    stub.answers[ApiKey.SASL_HANDSHAKE] = lambda request: request.answer(error_code=ErrorCode.ILLEGAL_SASL_STATE, mechanisms=[])
    discovery = discovery_of(upstream_of(stub))
    async with running(discovery.run()):
        await until(lambda: "reached:" in discovery.problem)
    assert discovery.problem == (
        f"the cluster can't be reached: 127.0.0.1:{stub.port}: IncompatibleBrokerVersion: the port of a controller, which"
        " serves no Metadata: name the address of a broker"
    )


async def test_brokers_are_learned_in_order_of_ids(stub):
    """The order decides if ids share a port."""
    ids = (9, 1, 17, 5)
    stub.answers[ApiKey.METADATA] = lambda request: request.answer(
        brokers=[{"node_id": node_id, "host": "kafka", "port": 9092} for node_id in ids], topics=[]
    )
    upstream = upstream_of(stub)
    learnt = []
    upstream.brokers.on_new(learnt.append)
    async with running(discovery_of(upstream).run()):
        await until(lambda: len(learnt) == len(ids))
    assert learnt == [1, 5, 9, 17]


@pytest.mark.parametrize(
    ("error_code", "entries", "learnt"), [(0, [("one", "6"), ("other", None)], [{"one": "6"}]), (0, [], [{}]), (31, [], [])]
)
async def test_configs_are_learned_from_a_broker(error_code, entries, learnt, monkeypatch, caplog):
    refusal = "give Weir's user DescribeConfigs on Cluster"
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(module, "RETRY_SECONDS", 0.01)
    requests, got = [], []

    def answer(request):
        requests.append(request)
        configs = [{"name": name, "value": value} for name, value in entries]
        result = {"error_code": error_code, "resource_type": 4, "resource_name": "1", "configs": configs}
        return request.answer(results=[result])

    with StubBroker() as broker:
        broker.answers[ApiKey.DESCRIBE_CONFIGS] = answer
        async with running(discovery_of(upstream_of(broker), on_configs=got.append).run()):
            await until(lambda: requests and len(got) >= len(learnt) and (error_code == 0 or refusal in caplog.text))
            await asyncio.sleep(0.05)  # wait, because nothing else must be learnt
    assert got == learnt
    assert caplog.text.count(refusal) == (error_code != 0)


async def test_single_lost_connection_is_not_reported(stub, monkeypatch):
    """A broker ends sessions from time to time (KIP-368)."""
    monkeypatch.setattr(metadata_module, "REFRESH_SECONDS", 0.3)
    discovery = discovery_of(upstream_of(stub))
    problems = []
    async with running(discovery.run()):
        await until(lambda: discovery.reached_once)
        discovery._lost = problems.append
        looks = len(stub.looks)
        stub.cut()
        await until(lambda: len(stub.looks) > looks + 1)
    assert not problems


def test_probe_of_mechanisms_ends_before_its_event_loop(tmp_path: Path) -> None:
    """Commands end their event loop right after it. This server does not answer the end of TLS."""
    authority = Authority(tmp_path)
    files = authority.issue("broker", ["127.0.0.1"])
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(files.cert, files.key)
    ended = Event()

    def serve(bound: socket.socket) -> None:
        raw, _ = bound.accept()
        with context.wrap_socket(raw, server_side=True) as connection:
            request = connection.recv(4096)
            answer = request[8:12] + struct.pack(">hih5s", 33, 1, 5, b"PLAIN")
            connection.sendall(struct.pack(">i", len(answer)) + answer)
            ended.wait(30.0)

    with socket.create_server(("127.0.0.1", 0)) as bound, ThreadPoolExecutor(1) as threads:
        serving = threads.submit(serve, bound)
        trust = ssl.create_default_context(cafile=authority.cert)
        assert asyncio.run(sasl_mechanisms(bound.getsockname(), trust)) == ("PLAIN",)
        gc.collect()  # warns of a connection that is open
        ended.set()
        serving.result(30.0)


@pytest.mark.parametrize(("host", "port"), [("", 9092), (None, 9092), ("kafka", -1), ("kafka", 0), ("kafka", 65_536)])
def test_invalid_address_is_ignored(host, port):
    brokers = Brokers([("127.0.0.1", 9092)])
    brokers.learn(1, host, port)
    assert 1 not in brokers
    brokers.learn(1, "kafka", 9092)
    brokers.learn(1, host, port)
    assert brokers.address(1) == ("kafka", 9092)


async def test_broker_with_odd_metadata_hides_no_broker(stub, monkeypatch):
    """It names itself alone, so the loop would ask no other broker. Both answer, so neither has gone."""
    monkeypatch.setattr(metadata_module, "REFRESH_SECONDS", 0.05)
    monkeypatch.setattr(module, "RETRY_SECONDS", 0.1)
    with StubBroker() as odd:
        rows = [{"node_id": number, "host": "127.0.0.1", "port": port} for number, port in enumerate((odd.port, stub.port))]
        odd.answers[ApiKey.METADATA] = lambda request: request.answer(brokers=rows[:1], topics=[])
        stub.answers[ApiKey.METADATA] = lambda request: request.answer(brokers=rows, topics=[])
        upstream = upstream_of(odd)
        seen = []
        upstream.brokers.learn(1, "127.0.0.1", stub.port)
        discovery = discovery_of(upstream)
        async with running(discovery.run()):
            await until(lambda: upstream.brokers.missing())
            for _ in range(3):
                await until(lambda: not upstream.brokers.missing())
                seen.append(upstream.brokers.address(1))
                await until(lambda: upstream.brokers.missing())
    assert len(seen) == 3


async def test_odd_first_server_hides_no_broker(stub):
    """It names itself alone, and Weir knows no other broker. The next one of `bootstrap_servers` does."""
    with StubBroker() as odd:
        rows = [{"node_id": number, "host": "127.0.0.1", "port": port} for number, port in enumerate((odd.port, stub.port))]
        odd.answers[ApiKey.METADATA] = lambda request: request.answer(brokers=rows[:1], topics=[])
        stub.answers[ApiKey.METADATA] = lambda request: request.answer(brokers=rows, topics=[])
        upstream = upstream_of(odd)
        upstream.brokers.bootstrap.append(("127.0.0.1", stub.port))
        async with running(discovery_of(upstream).run()):
            await until(lambda: 1 in upstream.brokers)


async def test_replaced_cluster_is_reported_once(stub, monkeypatch, caplog):
    """Its brokers are asked in an order that differs at each attempt."""
    turns = count()

    def rotate(known):
        turn = next(turns) % 3
        known[:] = known[turn:] + known[:turn]

    monkeypatch.setattr(random, "shuffle", rotate)
    monkeypatch.setattr(module, "RETRY_SECONDS", 0.01)
    with StubBroker() as second, StubBroker() as third:
        cluster = [stub, second, third]
        attempts = []
        rows = [{"node_id": number, "host": "127.0.0.1", "port": each.port} for number, each in enumerate(cluster)]
        cluster_id = "mine"

        def answer(request):
            attempts.append(cluster_id)
            return request.answer(cluster_id=cluster_id, brokers=rows, topics=[])

        for each in cluster:
            each.answers[ApiKey.METADATA] = answer
        upstream = upstream_of(stub)
        metadata = ClusterMetadata(upstream.brokers.anyone, upstream.client_options, why_foreign=upstream.brokers.why_foreign)
        discovery = Discovery(upstream, metadata, lambda _: None, (), lambda _: None)
        await metadata.look()
        cluster_id = "rebuilt"
        async with running(discovery.run()):
            await until(lambda: attempts.count("rebuilt") > 20)
        await metadata.close()
    lost = [message for message in caplog.messages if "can't be reached" in message]
    assert len(lost) == 1
    assert lost[0].count("restart Weir") == 3


async def test_broker_of_other_cluster_is_passed_over(stub):
    stub.answers[ApiKey.METADATA] = lambda request: request.answer(cluster_id="other", brokers=[], topics=[])
    with StubBroker() as own:
        rows = [{"node_id": 1, "host": "127.0.0.1", "port": own.port}]
        own.answers[ApiKey.METADATA] = lambda request: request.answer(cluster_id="mine", brokers=rows, topics=[])
        brokers = Brokers([("127.0.0.1", stub.port), ("127.0.0.1", own.port)])
        assert brokers.why_foreign("mine") is None
        upstream = Upstream(UpstreamConfig(bootstrap_servers=["kafka:9092"]), Path(), brokers, Counters())
        metadata = ClusterMetadata(brokers.anyone, upstream.client_options, why_foreign=brokers.why_foreign)
        look = await metadata.look()
        await metadata.close()
    assert look.brokers == {1: ("127.0.0.1", own.port)}
