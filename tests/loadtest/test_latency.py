"""The open-loop latency measurement counts from due times, and compares proxies within rounds."""

import json
import os
from dataclasses import asdict
from itertools import count
from subprocess import CompletedProcess

import numpy as np
import pytest

from loadtest.bench.absences import Absences
from loadtest.bench.latency import Level, OpenSamples, added, calibrate, first_undisturbed, in_rounds, ratio
from loadtest.bench.latency_report import grids, markdown
from loadtest.bench.open_loop import DisturbedError, LoadGenerator, OpenLoop, OpenSample, sample, schedule
from loadtest.testkit.kafka import free_port

LEVEL = Level(0.5, 20_000.0)


def job(rate: float, seconds: float, seed: int = 0) -> OpenLoop:
    port = free_port()
    return OpenLoop(f"127.0.0.1:{port}", port, "topic", 100, rate, connections=3, seconds=seconds, warmup=0.0, seed=seed)


def found(p50: float, p99: float, p999: float) -> OpenSample:
    return OpenSample(1_000, p50, p99, p999, 1.0, 2.0, 3.0, 0.5, 0.01)


def samples(**ways: list[float]) -> OpenSamples:
    return {name.replace("_", "-"): [found(p50, 2 * p50, 3 * p50) for p50 in taken] for name, taken in ways.items()}


def test_schedule_keeps_mean_rate_and_seed() -> None:
    due = schedule(job(1_000.0, 20.0))
    assert due[-1] == pytest.approx(20.0, rel=0.05)
    assert np.std(np.diff(due)) == pytest.approx(1e-3, rel=0.05)  # of an exponential distribution: its mean
    assert np.array_equal(due, schedule(job(1_000.0, 20.0)))
    assert not np.array_equal(due, schedule(job(1_000.0, 20.0, seed=1)))


def test_stall_counts_for_every_request_due_in_it() -> None:
    due = np.arange(0.0, 10.0, 0.001)
    sent = np.where((due >= 5.0) & (due < 5.2), 5.2, due)  # the load itself stands still for 0.2 s
    taken = sample(due, sent, sent + 50e-6, 1.0, 0.5)
    assert (taken.requests, taken.p50) == (9_000, pytest.approx(50.0))
    assert taken.p99 == pytest.approx(110_000.0, rel=0.02)
    assert taken.lag_p99 == pytest.approx(taken.p99 - 50.0)


def test_requests_of_the_warm_up_do_not_count() -> None:
    due = np.arange(0.0, 2.0, 0.001)
    taken = sample(due, due, due + np.where(due < 0.5, 1.0, 1e-3), 0.5, 0.0)
    assert (taken.requests, taken.p999) == (1_500, pytest.approx(1_000.0))


def test_request_due_near_an_absence_does_not_count() -> None:
    due = np.arange(0.0, 10.0, 0.001)
    absent = (due >= 5.0) & (due < 5.01)
    slow = due >= 9.0  # the proxy's own stall
    taken = sample(due, due, due + np.where(absent, 1.0, np.where(slow, 0.5, 50e-6)), 0.0, 0.5, [(5.0, 5.01)])
    assert taken.requests == 10_000 - 2 - 50
    assert taken.disturbed == pytest.approx(0.0052)
    assert (taken.p50, taken.p999) == (pytest.approx(50.0), pytest.approx(500_000.0))


def test_load_without_an_undisturbed_request_fails() -> None:
    due = np.arange(0.0, 1.0, 0.001)
    with pytest.raises(DisturbedError, match="quieter machine"):
        sample(due, due, due, 0.0, 0.5, [(0.0, 0.9)])


def test_disturbed_sample_is_taken_again() -> None:
    taken = samples(direct=[10.0])["direct"][0]
    runs = iter(
        [
            CompletedProcess([], os.EX_TEMPFAIL, "", "other processes disturbed every request"),
            CompletedProcess([], 0, json.dumps(asdict(taken)), ""),
        ]
    )
    assert first_undisturbed(lambda: next(runs)) == taken


def test_disturbed_round_ends_the_measurement() -> None:
    told: list[str] = []

    def measure(way: str, rate: float, number: int) -> OpenSample:
        if (way, number) == ("weir", 2):
            raise DisturbedError("run it on a quieter machine")
        return found(rate + number, 20.0, 30.0)

    taken = in_rounds([LEVEL], ["direct", "weir"], 5, told.append, measure)
    assert {way: [sample.p50 for sample in kept] for way, kept in taken[LEVEL].items()} == {
        "direct": [20_000.0, 20_001.0],
        "weir": [20_000.0, 20_001.0],
    }
    assert told[-1] == "round 3 of 5 and those after it are left out: run it on a quieter machine"


def test_disturbed_first_round_is_an_error() -> None:
    def measure(way: str, rate: float, number: int) -> OpenSample:
        raise DisturbedError("run it on a quieter machine")

    with pytest.raises(DisturbedError, match="quieter machine"):
        in_rounds([LEVEL], ["direct", "weir"], 5, pytest.fail, measure)


def test_failed_load_is_not_repeated() -> None:
    runs = iter([CompletedProcess([], 1, "", "connection lost")])
    with pytest.raises(RuntimeError, match="connection lost"):
        first_undisturbed(lambda: next(runs))


def test_own_work_is_no_absence() -> None:
    cpu = iter([0.0, 0.004, 0.0041])
    absences = Absences(lambda: next(cpu))
    absences.begin(10.0)
    absences.look(10.00005)
    absences.look(10.00401)  # 4 ms of work
    absences.look(10.00801)  # 4 ms with 0.1 ms of work
    assert absences.spans == [(10.00401, 10.00801)]


def test_added_latency_is_that_of_the_same_round() -> None:
    taken = samples(direct=[10.0, 500.0], weir=[30.0, 520.0])
    assert added(taken, "weir", "p50").tolist() == [20.0, 20.0]


def test_equal_rounds_give_ratio_without_width() -> None:
    estimate = ratio(np.full(8, 26.0), np.full(8, 20.0))
    assert (estimate.value, estimate.low, estimate.high) == pytest.approx((1.3, 1.3, 1.3))


def test_slow_rounds_of_both_cancel_in_ratio() -> None:
    base = np.array([10.0, 20.0, 10.0, 40.0, 10.0, 30.0, 20.0, 10.0])
    estimate = ratio(1.2 * base, base)
    assert (estimate.low, estimate.high) == pytest.approx((1.2, 1.2))


def test_uneven_rounds_widen_interval() -> None:
    estimate = ratio(np.array([10.0, 11.0, 12.0, 13.0, 30.0, 31.0]), np.full(6, 10.0))
    assert estimate.value == pytest.approx(1.25)
    assert estimate.low < 1.25 < estimate.high


def test_calibration_follows_falling_cost_per_request() -> None:
    def busy(rate: float) -> float:
        return rate * (10e-6 + 0.04 / (rate + 4_000.0))  # 20 us at 0 requests/s, 10 us at many

    level = calibrate(0.8, busy)
    assert busy(level.rate) == pytest.approx(0.8, rel=0.02)


def test_tables_show_medians_and_paired_ratios() -> None:
    taken = samples(direct=[10.0, 10.0], weir=[36.0, 36.0], weir_watched=[72.0, 72.0], haproxy=[30.0, 30.0])
    absolute, ratios, watched = grids({LEVEL: taken})
    assert absolute.title == "Latency at 50% of one processor, 20,000 requests/s, us"
    assert absolute.rows[1] == ("weir", "50%", "1%", "36", "72", "108", "+26", "+52", "+78", "1", "2", "3")
    assert [row[:3] for row in ratios.rows] == [
        ("50% of one processor, 20,000 requests/s", "weir", "1.30 (1.30-1.30)"),
        ("50% of one processor, 20,000 requests/s", "weir-watched", "3.10 (3.10-3.10)"),
    ]
    assert watched.rows[0][1:] == ("weir-watched", *("2.00 (2.00-2.00)",) * 3)


def test_summary_names_method_and_absent_proxies() -> None:
    text = markdown({LEVEL: samples(direct=[10.0, 10.0])}, {"haproxy": "not installed"}, [], 2.0, "2026-11-22")
    assert "- `haproxy`: not installed\n" in text
    assert "turns of 2 s in 2 rounds" in text


def test_load_gets_every_response_from_its_own_broker() -> None:
    taken = LoadGenerator(job(2_000.0, 0.2), Absences(count().__next__)).run()  # a clock that finds no absence
    assert taken.requests == 400
    assert taken.p999 >= taken.p99 >= taken.p50 > taken.lag_p50 > 0.0


def test_load_names_a_proxy_that_is_not_there() -> None:
    with pytest.raises(ConnectionRefusedError):
        LoadGenerator(OpenLoop(f"127.0.0.1:{free_port()}", free_port(), "topic", 100, 1_000.0), Absences()).run()
