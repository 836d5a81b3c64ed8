"""The bench computes ratios within rounds."""

from loadtest.bench.generator import Saturated
from loadtest.bench.report import cpu_per_request, grids, paired, size_name
from loadtest.bench.rounds import Cell, Measured

SLOW_ROUND, QUICK_ROUND = 4.0, 1.0


def sample(cpu: float) -> Saturated:
    return Saturated(requests=100_000, seconds=1.0, cpu=cpu)


SAMPLES = {
    "haproxy": [sample(0.1 * SLOW_ROUND), sample(0.1 * QUICK_ROUND), sample(0.1)],
    "weir": [sample(0.15 * SLOW_ROUND), sample(0.15 * QUICK_ROUND), sample(0.3)],
}


def test_slow_round_is_slow_for_both() -> None:
    assert [round(ratio, 6) for ratio in paired(SAMPLES, "weir", "haproxy", cpu_per_request)] == [1.5, 1.5, 3.0]


def test_table_shows_median_of_ratios() -> None:
    cell = Cell("produce", 100, 8, 1)
    by_size, by_load, *_ = grids(Measured(["weir", "haproxy"], {}, {cell: SAMPLES}))
    assert by_size.rows == [("100 B", "1.50", "1")]
    assert by_load.rows == [("100 B, 8 connections, depth 1", "1.50", "1")]
    assert by_size.markdown().splitlines()[-1] == "| 100 B | 1.50 | 1 |"


def test_sizes_have_names() -> None:
    assert [size_name(size) for size in (100, 1024, 16384, 1048576)] == ["100 B", "1 KiB", "16 KiB", "1 MiB"]


def test_costs_of_settings_have_their_own_table() -> None:
    cell = Cell("produce", 100, 8, 1)
    samples = {**SAMPLES, "weir-observed": [sample(0.18 * SLOW_ROUND), sample(0.15 * QUICK_ROUND), sample(0.33)]}
    *_, cost, _absolute, _throughput = grids(Measured(["weir", "weir-observed", "haproxy"], {}, {cell: samples}))
    assert (cost.rows, "Other settings" in cost.title) == ([("100 B", "1.10")], True)


def test_reads_have_their_own_tables() -> None:
    absolute, ratios = grids(Measured(["weir", "haproxy"], {}, {Cell("mixed", 16384, 8, 5): SAMPLES}))
    assert absolute.rows == [("mixed, 16 KiB, 8 connections, depth 5", "3.0", "1.0")]
    assert ratios.rows == [("mixed, 16 KiB, 8 connections, depth 5", "1.50", "1")]
