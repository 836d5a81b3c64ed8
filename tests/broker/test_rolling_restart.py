"""Three gateways are restarted one after the other, and clients notice a pause and nothing else.

`python -m loadtest.scenarios.rolling_restart` is the same, and tells how long the pauses are.
"""

import pytest

from loadtest.scenarios.rolling_restart import Report, run
from loadtest.testkit.kafka import KafkaCluster
from tests.weir_process import Weir

pytestmark = pytest.mark.broker


@pytest.fixture(scope="module")
def report(kafka: KafkaCluster, tmp_path_factory: pytest.TempPathFactory) -> Report:
    return run(kafka, tmp_path_factory.mktemp("rolling"), Weir)


def test_nothing_is_lost_and_nothing_doubled(report: Report) -> None:
    """Kafka's VerifiableProducer and VerifiableConsumer, librdkafka's and aiokafka's clients; all producers are idempotent."""
    assert report.acknowledged > 0
    assert (report.lost, report.doubled, report.missed) == (0, 0, 0), report


def test_requests_that_want_no_answer_arrive_too(report: Report) -> None:
    """acks=0 promises nothing, but what was sent to a gateway that goes on reading until its client has left is not lost."""
    assert report.unanswered > 0
    assert report.unanswered_lost == 0, report


def test_no_application_sees_an_error(report: Report) -> None:
    assert report.errors == ()


def test_every_connection_was_closed_between_two_requests(report: Report) -> None:
    assert report.drained >= len(report.pauses)
    assert report.cut == 0, report


def test_nobody_was_sent_to_a_gateway_that_takes_no_more(report: Report) -> None:
    assert report.refused == 0
