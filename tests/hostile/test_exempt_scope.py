"""`exempt` and `quotas.enforce` apply to rates. Topic and volume quotas have their own exemptions and switches."""

import pytest

from protocol.api_keys import ApiKey
from tests.gateway.proxy import messages as m
from tests.hostile.raw_client import RawClient
from tests.hostile.stub_broker import StubBroker, produce_outcome
from tests.weir_process import Weir

NOT_ENOUGH_REPLICAS = 19
RATE_ONLY, RATES, ALL = "rate-only", "listed-rates", "listed-all"
ROWS = [
    {"client-id": RATE_ONLY, "exempt": True},
    {"client-id": RATES, "exempt": ["rates"]},
    {"client-id": ALL, "exempt": ["rates", "topics", "volumes"]},
]
PAUSED = {"max_delay_ms": 20}
"""The stub broker has no usage topic, so the volumes are unknown and producers are paused."""


def error_of(client: RawClient, client_id: str) -> int:
    """Send a Produce and return the error code of its only partition."""
    return produce_outcome(client.ask(m.produce(1, client_id=client_id))[0])[0]


def paused(weir: Weir) -> Weir:
    weir.wait_for_volumes("PAUSE")
    return weir


@pytest.mark.parametrize(
    ("quotas", "volumes", "error"),
    [
        ({"enforce": False}, {}, NOT_ENOUGH_REPLICAS),
        ({"enforce": True}, {"enforce": False}, 0),
    ],
)
def test_volumes_have_their_own_enforce(broker: StubBroker, start_weir, connect, quotas, volumes, error):
    weir = paused(start_weir(broker.bootstrap_servers, quotas={**quotas, "volumes": {**PAUSED, **volumes}}))
    assert error_of(connect(weir), "app") == error
    assert broker.count(ApiKey.PRODUCE) == (error == 0)
    assert weir.api("volumes")["enforced"] is (error != 0)


def test_exempt_true_does_not_pass_a_pause(broker: StubBroker, start_weir, connect):
    weir = paused(start_weir(broker.bootstrap_servers, quotas={"entities": ROWS, "volumes": PAUSED}))
    assert [error_of(connect(weir), name) for name in (RATE_ONLY, RATES, ALL)] == [19, 19, 0]
    assert broker.count(ApiKey.PRODUCE) == 1


def test_exempt_true_does_not_pass_topic_quotas(broker: StubBroker, start_weir, connect):
    topics = {"total.bytes.in.per.sec.threshold": 1_000, "meter": "window"}
    weir = start_weir(broker.bootstrap_servers, quotas={"entities": ROWS, "topics": topics})
    assert connect(weir).ask(m.produce(1, size=100_000))
    assert [error_of(connect(weir), name) for name in (RATE_ONLY, RATES, ALL)] == [19, 19, 0]
    assert broker.count(ApiKey.PRODUCE) == 2
