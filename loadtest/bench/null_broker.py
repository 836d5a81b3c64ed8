"""`python -m loadtest.bench.null_broker PORT TOPIC`: a broker without work, to measure the proxies alone.

It answers Produce v11 requests for one partition at once, and reads only their heads. It closes a connection that sends any
other request, such as Weir's own Metadata.
"""

import asyncio
import struct
import sys
from typing import cast

import uvloop
from kafka.protocol.producer import ProduceResponse

from loadtest.bench.frames import PRODUCE_VERSION

_BUFFER_BYTES = 256 * 1024
_HEAD = struct.Struct(">ihhi")
_PRODUCE = 0


def answer(topic: str) -> bytearray:
    """The response to a Produce for partition 0 of a topic. The correlation id 0 is at offset 4."""
    version = PRODUCE_VERSION
    partition = ProduceResponse.TopicProduceResponse.PartitionProduceResponse(
        version=version, index=0, error_code=0, base_offset=0, log_append_time_ms=-1, log_start_offset=0
    )
    topics = [ProduceResponse.TopicProduceResponse(version=version, name=topic, partition_responses=[partition])]
    response = ProduceResponse(version=version, responses=topics, throttle_time_ms=0)
    response.with_header(correlation_id=0)
    return bytearray(response.encode(header=True, framed=True))


class NullBroker(asyncio.BufferedProtocol):
    def __init__(self, topic: str) -> None:
        self._answer = answer(topic)
        self._buffer = memoryview(bytearray(_BUFFER_BYTES))
        self._head = b""
        self._rest = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        at = 0
        answers = bytearray()
        while at < nbytes:
            if self._rest:
                step = min(self._rest, nbytes - at)
                self._rest -= step
            else:
                step = min(_HEAD.size - len(self._head), nbytes - at)
                self._head += self._buffer[at : at + step]
                if len(self._head) < _HEAD.size:
                    break
                length, api_key, version, correlation_id = _HEAD.unpack(self._head)
                if (api_key, version) != (_PRODUCE, PRODUCE_VERSION):
                    self._transport.abort()
                    return
                self._head = b""
                self._rest = 4 + length - _HEAD.size
                struct.pack_into(">i", self._answer, 4, correlation_id)
            at += step
            if not self._rest:
                answers += self._answer
        if answers:
            self._transport.write(answers)


async def _serve(port: int, topic: str) -> None:
    server = await asyncio.get_running_loop().create_server(lambda: NullBroker(topic), "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(_serve(int(sys.argv[1]), sys.argv[2]))
