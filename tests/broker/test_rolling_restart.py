"""Three gateways restart one after the other, and clients notice only a pause.

`python -m loadtest.scenarios.rolling_restart` does the same and measures the pauses.
"""

import pytest

from loadtest.scenarios.rolling_restart import Report, run
from loadtest.testkit.kafka import KafkaCluster
from tests.weir_process import Weir

pytestmark = pytest.mark.broker


@pytest.fixture(scope="module")
def report(kafka: KafkaCluster, tmp_path_factory: pytest.TempPathFactory) -> Report:
    # The balancer runs in the process of the clients, so it may notice an end seconds later.
    return run(kafka, tmp_path_factory.mktemp("rolling"), Weir, {"connections": {"drain_delay_seconds": 6.0}})


def test_rolling_restart_loses_and_doubles_nothing(report: Report) -> None:
    """Clients: Kafka's VerifiableProducer and VerifiableConsumer, librdkafka and aiokafka. All producers are idempotent."""
    assert report.acknowledged > 0
    assert (report.lost, report.doubled, report.missed) == (0, 0, 0), report


def test_requests_without_acks_arrive(report: Report) -> None:
    """acks=0 guarantees nothing, but a draining gateway reads until its client has left, so no record is lost."""
    assert report.unanswered > 0
    assert report.unanswered_lost == 0, report


def test_applications_see_no_error(report: Report) -> None:
    assert report.errors == ()


def test_connections_close_between_two_requests(report: Report) -> None:
    assert report.drained >= len(report.pauses)
    assert report.cut == 0, report


def test_clients_are_not_sent_to_a_draining_gateway(report: Report) -> None:
    assert report.refused == 0
