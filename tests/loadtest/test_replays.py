"""The figures of replays beside tail readers."""

import pytest

from loadtest.scenarios.replays.latency import ALONE, BESIDE, Classes, Phase, latency


def phase(kind: str, begin: float, end: float) -> Phase:
    return Phase(kind, begin, end, 0, {})


def test_latency_pools_the_records_sent_in_its_phases() -> None:
    phases = [phase(ALONE, 1.0, 2.0), phase(ALONE, 5.0, 6.0)]
    inside = [(round(second * 1e9), round(number * 1e6)) for number, second in enumerate((1.0, 1.5, 1.999, 5.0, 5.5), 1)]
    outside = [(round(second * 1e9), 10**12) for second in (0.999, 2.0, 4.999, 6.0)]
    found = latency([*inside, *outside], phases)
    assert (found.samples, found.p50, found.highest) == (5, 3.0, 5.0)
    assert found.p99 == pytest.approx(4.96)


def test_phases_without_records_are_refused() -> None:
    with pytest.raises(ValueError, match="no record"):
        latency([(10**9, 1)], [phase(BESIDE, 3.0, 4.0)])


def test_wrongly_charged_bytes_lower_the_part() -> None:
    received = Classes(900, 100)
    assert received.rightly(Classes(900, 100)) == 1.0
    assert received.rightly(Classes(890, 110)) == pytest.approx(0.99)
    assert received.rightly(Classes(900, 130)) == pytest.approx(0.97)
