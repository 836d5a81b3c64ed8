"""The load of the workers comparison: the sink answers as a broker does, and the loop cycles."""

import asyncio
import struct
from contextlib import suppress

from kafka.protocol.producer import ProduceRequest, ProduceResponse

from loadtest.bench.frames import PRODUCE_VERSION
from loadtest.scenarios.workers.load import Job, frames, run_load
from loadtest.scenarios.workers.sink import CYCLE, Sink, answers


def test_each_answer_is_a_produce_response_without_error() -> None:
    data, length = answers()
    assert len(data) == CYCLE * length
    for number in range(CYCLE):
        frame = data[number * length : (number + 1) * length]
        assert struct.unpack_from(">ii", frame) == (length - 4, number)
    response = ProduceResponse.decode(data[4:length], version=PRODUCE_VERSION, header=True)
    (topic,) = response.responses
    (partition,) = topic.partition_responses
    assert (topic.name, partition.index, partition.error_code, response.throttle_time_ms) == ("t", 0, 0, 0)


def test_requests_differ_only_in_correlation_ids() -> None:
    data, length = frames(100)
    assert len(data) == CYCLE * length
    last = data[-length:]
    assert struct.unpack_from(">i", last, 8)[0] == CYCLE - 1
    request = ProduceRequest.decode(last[4:], version=PRODUCE_VERSION, header=True)
    assert [topic.name for topic in request.topic_data] == ["t"]


async def test_requests_of_the_load_are_answered() -> None:
    _, length = frames(100)
    server = await asyncio.get_running_loop().create_server(lambda: Sink(length), "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    async with server:
        for seconds in (0.2, 2.0, 20.0):  # a busy machine needs longer
            result = await run_load(Job(f"{host}:{port}", 100, 3, seconds, (), (), warmup=0.1))
            if result.requests > CYCLE:
                break
    assert result.requests > CYCLE, "the loop must complete its cycle more than once"
    assert result.gateway_cpu == 0.0
    assert result.load_cpu > 0.0


async def test_other_request_closes_the_connection() -> None:
    server = await asyncio.get_running_loop().create_server(lambda: Sink(100), "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    async with server:
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(bytes.fromhex("0000000a00120000000000010000"))
        with suppress(ConnectionResetError):
            assert await reader.read() == b""
        writer.close()
