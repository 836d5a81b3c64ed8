"""If the wall clock jumps, the ledger loses no file and leaves none unfinished."""

import itertools
import os
import time

import pytest

from tests.weir_process import wait_until

DAY = 86_400


@pytest.fixture
def ledger(tmp_path):
    return tmp_path / "ledger"


def finished(ledger):
    """The finished files of the ledger."""
    return sorted(ledger.rglob("weir-*.jsonl.gz"))


def unfinished(ledger):
    """The files that the gateway is writing."""
    return sorted(ledger.rglob("_*.part"))


def some_event(weir, seconds):
    """Change the config, which the ledger records."""
    weir.write_config(weir.config | {"connections": {"drain_seconds": seconds}})


def test_clock_ahead_at_the_start_deletes_nothing(broker, start_weir, ledger, faults):
    """With a correct clock the files are young. With a clock 40 days ahead they exceed the retention of 30 days."""
    old = ledger / "date=2026-01-01" / "hour=00" / "weir-old-0-0.jsonl.gz"
    old.parent.mkdir(parents=True)
    old.write_bytes(b"what happened")
    os.utime(old, (time.time() - DAY,) * 2)
    faults("wall", 40 * DAY)
    weir = start_weir(broker.bootstrap_servers, ledger={"path": str(ledger), "flush_seconds": 1, "rotate_seconds": 1})
    for seconds in (1, 2):  # old files are checked right after the first flush
        some_event(weir, seconds)
        wait_until(lambda count=1 + seconds: len(finished(ledger)) >= count or not old.exists(), "a file is finished", 20)
    assert old.exists()


def test_clock_set_back_a_day_leaves_no_file_unfinished(broker, start_weir, ledger, faults):
    weir = start_weir(broker.bootstrap_servers, ledger={"path": str(ledger), "flush_seconds": 1, "rotate_seconds": 2})
    seconds = itertools.count(1)

    def being_written():
        some_event(weir, next(seconds))  # the file before may be finished already
        return unfinished(ledger)

    (part, *_) = wait_until(being_written, "the gateway writes a file")
    faults("wall", -DAY)
    wait_until(part.with_name(part.name.removeprefix("_").removesuffix(".part")).exists, "the file is finished")
