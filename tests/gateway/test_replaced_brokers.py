"""Two workers before a stub broker, whose cluster replaces its brokers by others."""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import pytest

from gateway.app import Gateway
from gateway.cluster import brokers as brokers_module
from gateway.cluster import metadata as metadata_module
from gateway.config.load import parse_config
from gateway.drain import Stopping
from gateway.workers.worker import Worker
from loadtest.testkit.kafka import free_port_range
from protocol.api_keys import ApiKey
from tests.gateway.proxy import messages as m
from tests.gateway.running import until
from tests.hostile.stub_broker import HOST, StubBroker
from tests.protocol import codec

PORTS = 8
GENERATIONS = ([0, 1, 2], [3, 4, 5], [8, 9, 10], [100, 101, 102], [200, 201, 202])


@pytest.fixture
def first() -> int:
    """The bootstrap port, before the brokers' ports."""
    return free_port_range(1 + PORTS)


@pytest.fixture
def cluster() -> Iterator[StubBroker]:
    with StubBroker() as broker:
        yield broker


@pytest.fixture
async def workers(
    cluster: StubBroker, first: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[list[Gateway]]:
    """Workers that forget a broker within a second."""
    monkeypatch.setattr(brokers_module, "FORGET_SECONDS", 0.6)
    monkeypatch.setattr(metadata_module, "REFRESH_SECONDS", 0.3)
    path = tmp_path / "weir.yaml"
    text = f"""
upstream: {{bootstrap_servers: ["{cluster.bootstrap_servers}"]}}
listeners: [{{name: clients, host: {HOST}, bootstrap_port: {first}, broker_ports: {first + 1}-{first + PORTS}}}]
sharing:
workers: 2
"""
    path.write_text(text)
    async with AsyncExitStack() as stack:
        claims = stack.enter_context(tempfile.TemporaryFile())  # noqa: SIM115 -- the stack closes it
        found = []
        for number in range(2):
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            gateway = Gateway(path, parse_config(text, source=str(path)), Worker(number, Path(folder), claims.fileno()))
            await gateway.start()
            task = asyncio.create_task(gateway.run(Stopping()))
            found.append(gateway)
            stack.push_async_callback(_end, gateway, task)
        yield found


async def _end(gateway: Gateway, task: "asyncio.Task[None]") -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    await gateway.stop()


def has(cluster: StubBroker, ids: list[int]) -> None:
    """Let the cluster have these brokers."""
    rows = [{"node_id": node_id, "host": HOST, "port": cluster.port} for node_id in ids]
    cluster.answers[ApiKey.METADATA] = lambda request: request.answer(cluster_id="mine", brokers=rows, topics=[])


async def ports_seen(port: int) -> dict[int, int]:
    """The ports in the Metadata answer of any worker, by node id."""
    reader, writer = await asyncio.open_connection(HOST, port)
    writer.write(m.metadata(1))
    head = await reader.readexactly(4)
    frame = head + await reader.readexactly(int.from_bytes(head, "big"))
    writer.close()
    return {each["node_id"]: each["port"] for each in codec.decode_response(ApiKey.METADATA, 12, frame)["brokers"]}


def know(workers: list[Gateway], ids: list[int]) -> bool:
    """True if these are the brokers of all workers."""
    return all(gateway._parts.brokers._addresses.keys() == set(ids) for gateway in workers)


async def test_all_generations_of_brokers_get_ports(workers: list[Gateway], cluster: StubBroker, first: int) -> None:
    for ids in GENERATIONS:
        has(cluster, ids)
        await until(lambda ids=ids: know(workers, ids))  # type: ignore[misc]
        await until(lambda: not any(gateway._parts.counters.brokers_without_port.total() for gateway in workers))
        seen = [await ports_seen(first) for _ in range(8)]
        assert seen == seen[:1] * 8, "all workers agree"
        assert seen[0].keys() == set(ids)
        assert not any(gateway._not_ready() for gateway in workers)


async def test_client_keeps_port_of_removed_broker(workers: list[Gateway], cluster: StubBroker, first: int) -> None:
    """It may still have something to fetch. The port is free once the client has gone."""
    has(cluster, [0])
    await until(lambda: know(workers, [0]))
    reader, writer = await asyncio.open_connection(HOST, first + 1)
    writer.write(m.metadata(1))
    await reader.readexactly(4)
    has(cluster, [1])
    await until(lambda: sum(0 in gateway._parts.brokers for gateway in workers) == 1)
    await asyncio.sleep(1.5)  # wait, because nothing must happen
    assert sum(0 in gateway._parts.brokers for gateway in workers) == 1
    _, second = await asyncio.open_connection(HOST, first + 1)
    second.close()
    writer.close()
    await until(lambda: know(workers, [1]))
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection(HOST, first + 1)
