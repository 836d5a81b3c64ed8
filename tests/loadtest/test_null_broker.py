"""The null broker answers exactly the requests of the bench's generator, in any chunks."""

import asyncio
from itertools import pairwise
from typing import cast

from hypothesis import given
from hypothesis import strategies as st
from kafka.protocol.producer import ProduceResponse

from loadtest.bench.frames import fetch_load, produce_load
from loadtest.bench.null_broker import NullBroker

FRAMES = produce_load("topic", 0, 100, depth=3).frames


class Written(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.data = b""
        self.aborted = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.data += data

    def abort(self) -> None:
        self.aborted = True


def received(*chunks: bytes) -> Written:
    written = Written()
    broker = NullBroker("topic")
    broker.connection_made(written)
    for chunk in chunks:
        broker.get_buffer(-1)[: len(chunk)] = chunk
        broker.buffer_updated(len(chunk))
    return written


@given(st.lists(st.integers(1, sum(map(len, FRAMES)) - 1), max_size=5))
def test_requests_are_answered_in_order(cuts: list[int]) -> None:
    stream = b"".join(FRAMES)
    edges = [0, *sorted(set(cuts)), len(stream)]
    written = received(*(stream[begin:end] for begin, end in pairwise(edges)))
    length = 4 + int.from_bytes(written.data[:4], "big")
    assert len(written.data) == 3 * length
    for number in range(3):
        frame = written.data[number * length : (number + 1) * length]
        response = ProduceResponse.decode(frame[4:], version=11, header=True)
        assert cast("int", response.header.correlation_id) == number
        ((partition,),) = (topic.partition_responses for topic in response.responses)
        assert partition.error_code == 0


def test_other_request_ends_the_connection() -> None:
    written = received(*fetch_load("topic", 0, 100, depth=1).frames)
    assert (written.aborted, written.data) == (True, b"")
