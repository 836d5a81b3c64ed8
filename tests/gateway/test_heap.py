"""Large buffers stay out of the heap, and free pages of the heap go back to the kernel."""

import asyncio
import ctypes
import platform
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest

from gateway import heap

KIB = 1024
LIMIT = 60.0
pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has these functions")


class Use(ctypes.Structure):
    names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    _fields_ = [(name, ctypes.c_size_t) for name in names.split()]


def glibc():
    found = ctypes.CDLL(None)
    found.mallinfo2.restype = Use
    found.malloc.restype = ctypes.c_void_p
    found.free.argtypes = [ctypes.c_void_p]
    return found


@pytest.fixture
def libc():
    return glibc()


def mapped_buffers(*, tuned):
    """Of 100 buffers of 256 KiB, those with mappings of their own."""
    libc = glibc()
    if tuned:
        heap.tune()
    libc.free(libc.malloc(256 * KIB))
    before = libc.mallinfo2().hblks
    for _ in range(100):
        libc.malloc(256 * KIB)
    return libc.mallinfo2().hblks - before


@pytest.mark.parametrize(("tuned", "mapped"), [(False, 0), (True, 100)])
def test_buffers_of_tls_connections_get_mappings_of_their_own(tuned, mapped):
    with ProcessPoolExecutor(1, get_context("spawn")) as fresh:  # the heap of this process may have room for all of them
        assert fresh.submit(mapped_buffers, tuned=tuned).result(LIMIT) == pytest.approx(mapped, abs=20)


async def test_free_pages_are_given_back(libc, monkeypatch):
    def anonymous():
        lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("Anonymous:"))  # KiB

    buffers = [libc.malloc(100 * KIB) for _ in range(1000)]
    for buffer in buffers:
        ctypes.memset(buffer, 1, 100 * KIB)
    end = libc.malloc(100 * KIB)  # keeps the free room below it from being the heap's end
    for buffer in buffers:
        libc.free(buffer)
    before = anonymous()
    monkeypatch.setattr(heap, "GIVE_BACK_SECONDS", 0.0)
    task = asyncio.create_task(heap.give_back())
    for _ in range(3):  # turns of the loop
        await asyncio.sleep(0)
    after = anonymous()
    task.cancel()
    libc.free(end)
    assert before - after > 50_000
