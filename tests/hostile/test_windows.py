"""Each kind uses its configured quota window, and a changed window forgives no debt."""

from typing import Any

import pytest

from protocol.api_keys import ApiKey
from tests.gateway.features.controller_mutations import mutation_session as mutations
from tests.gateway.proxy import messages as m
from tests.hostile.stub_broker import Request
from tests.weir_process import Weir


def created(request: Request) -> bytes:
    return mutations.answered(
        request.api_key, request.correlation_id, [{"name": topic.name} for topic in request.decode().topics]
    )


def used(weir: Weir, kind: str) -> dict[str, Any]:
    """Return the only usage row of `kind`."""
    (row,) = [row for row in weir.usage() if row["kind"] == kind]
    return row


def quotas(samples: int, **entity: Any) -> dict[str, Any]:
    """A quota for "etl" with windows of `samples` seconds."""
    window = {"samples": samples, "seconds": 1}
    return {"window": window, "mutations": {"window": window}, "entities": [{"client-id": "etl", **entity}]}


@pytest.mark.parametrize("samples", [100, 200])
def test_mutations_window_counts_in_used_ratio(broker, start_weir, connect, samples):
    """The byte window stays at its default of 11 s and must not be used for partitions."""
    broker.answers[ApiKey.CREATE_TOPICS] = created
    windows = quotas(samples, controller_mutation_rate=5)
    weir = start_weir(broker.bootstrap_servers, quotas=windows | {"window": {}})
    connect(weir).ask(mutations.create(1, {"orders": 3 * samples}))
    assert used(weir, "controller_mutation")["used_ratio"] == pytest.approx(0.6, abs=0.05)


def test_longer_window_forgives_no_mutation_debt(broker, start_weir, connect):
    broker.answers[ApiKey.CREATE_TOPICS] = created
    weir = start_weir(broker.bootstrap_servers, quotas=quotas(100, controller_mutation_rate=5))
    connect(weir).ask(mutations.create(1, {"orders": 912}))
    assert used(weir, "controller_mutation")["tokens"] == pytest.approx(-412, abs=50)
    weir.apply(quotas=quotas(101, controller_mutation_rate=5))
    row = used(weir, "controller_mutation")
    assert row["tokens"] == pytest.approx(-412, abs=100)
    assert row["throttle_left"] > 50


def test_changed_window_keeps_byte_debt_and_use(broker, start_weir, connect):
    weir = start_weir(broker.bootstrap_servers, quotas=quotas(11, producer_byte_rate=1_000))
    connect(weir).ask(m.produce(1, size=110_000))
    for samples in (300, 60):
        weir.apply(quotas=quotas(samples, producer_byte_rate=1_000))
        row = used(weir, "produce")
        assert row["tokens"] == pytest.approx(-100_000, abs=20_000)
        assert row["rate"] > 300
