"""The budget of bytes that wait for slow peers."""

from contextlib import contextmanager

import pytest

from gateway.proxy.socket_memory import MAX_BUFFER_PARTS, MAX_UNSENT_BYTES, READ_BYTES, SocketMemory

BUFFER = bytes(READ_BYTES)
WHOLE = bytes(MAX_UNSENT_BYTES + 1)


@contextmanager
def crowded(memory):
    kept = memory.keep(WHOLE)
    assert memory.crowded
    yield
    memory.release([kept])
    assert not memory.crowded


@pytest.mark.parametrize(
    ("data", "counted"),
    [
        (b"abc", 3),
        (bytearray(b"abc"), 3),
        (memoryview(BUFFER)[: READ_BYTES // MAX_BUFFER_PARTS], READ_BYTES),
        (memoryview(BUFFER)[10:20], 10),
    ],
    ids=["bytes", "bytearray", "a large part of a buffer", "a small part, which is copied"],
)
def test_bytes_that_wait_count_as_their_buffer(data, counted):
    memory = SocketMemory()
    kept = memory.keep(data)
    assert (bytes(kept), memory.unsent_bytes) == (bytes(data), counted)
    memory.release([kept])
    assert memory.unsent_bytes == 0


def test_rest_of_a_piece_counts_as_the_piece():
    """The whole piece stays in memory until its last byte is sent."""
    memory = SocketMemory()
    kept = memory.keep(bytes(1_000))
    memory.release([memoryview(kept)[999:]])
    assert memory.unsent_bytes == 0


def test_beyond_the_budget_no_part_keeps_a_buffer():
    memory = SocketMemory()
    with crowded(memory):
        before = memory.unsent_bytes
        kept = memory.keep(memoryview(BUFFER)[1:])
        assert memory.unsent_bytes - before == READ_BYTES - 1
        memory.release([kept])
