"""A thousand gateways divide one quota evenly."""

import pytest

from loadtest.scenarios.sharing_simulation import overshoot_bound
from loadtest.scenarios.thousand_gateways import Crowd, CrowdSimulation, tenth


@pytest.mark.parametrize(("spread", "seconds"), [("all", 20.0), ("zipf", 28.0)])
def test_quota_of_a_thousand_gateways_flows_evenly(spread, seconds):
    scenario = tenth(1_000, spread=spread, seconds=seconds)
    found = CrowdSimulation(scenario).evenness()
    assert found.empty_seconds == 0.0
    assert found.lowest_second > 0.3
    assert 0.8 < found.lowest_ten_seconds <= found.highest_ten_seconds < 1.25
    assert found.overshoot_bytes < overshoot_bound(scenario, found.clients)


def test_twenty_gateways_exceed_the_quota_as_one():
    """By one request of each client."""
    scenario = Crowd(20, seconds=20.0)
    assert CrowdSimulation(scenario).run().overshoot_bytes <= 20 * scenario.request_bytes
