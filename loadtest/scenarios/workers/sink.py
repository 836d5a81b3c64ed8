"""`python -m loadtest.scenarios.workers.sink PORT LENGTH`: a broker that needs almost no CPU.

Every connection sends requests of LENGTH bytes, including the length prefix. Their correlation ids count up to `CYCLE` and
then restart at 0. So the sink knows its responses from the number of bytes alone: it parses nothing, and sends slices of one
buffer. It closes a connection that starts with any other request than Produce, such as Weir's own Metadata.
"""

import asyncio
import struct
import sys
from typing import cast

import uvloop

CYCLE = 512
"""A cycle of requests of 210 bytes is 105 KiB."""

_BUFFER_BYTES = 1 << 20
_PRODUCE = 0


def answers() -> tuple[bytes, int]:
    """The responses to a cycle of Produce v11 requests for one partition of the topic `t`, and the length of each."""
    body = (
        b"\x00"  # no tags in the header
        b"\x02\x02t\x02"  # one topic, "t", with one partition
        + struct.pack(">ihqqq", 0, 0, 0, -1, 0)  # partition, error, base offset, append time, log start
        + b"\x01\x00\x00"  # no record errors, no message, no tags
        b"\x00"  # no tags of the topic
        + struct.pack(">i", 0)  # throttle time
        + b"\x00"
    )
    length = 4 + len(body)
    return b"".join(struct.pack(">ii", length, number) + body for number in range(CYCLE)), 4 + length


class Sink(asyncio.BufferedProtocol):
    """Counts bytes, and sends as many responses as complete requests."""

    def __init__(self, length: int) -> None:
        self._length = length
        self._answers, self._answer_length = answers()
        self._answers += self._answers  # so that any slice of up to a cycle is contiguous
        self._buffer = memoryview(bytearray(_BUFFER_BYTES))
        self._received = 0
        self._answered = 0
        self._begun = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        if not self._begun:
            self._begun = True
            if struct.unpack_from(">h", self._buffer, 4)[0] != _PRODUCE:
                self._transport.abort()
                return
        self._received += nbytes
        due = self._received // self._length - self._answered
        while due > 0:
            some = min(due, CYCLE)
            begin = self._answered % CYCLE * self._answer_length
            self._transport.write(self._answers[begin : begin + some * self._answer_length])
            self._answered += some
            due -= some


async def _serve(port: int, length: int) -> None:
    server = await asyncio.get_running_loop().create_server(lambda: Sink(length), "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(_serve(int(sys.argv[1]), int(sys.argv[2])))
