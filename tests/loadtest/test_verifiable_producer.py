"""A record that the tool offers to its closed producer is no failure of the cluster; every other failed record is one."""

import pytest

from loadtest.testkit.kafka.verifiable_producer import refused_at_its_end


def failed(message):
    return {
        "timestamp": 1795657866985,
        "name": "producer_send_error",
        "topic": "rolling-java",
        "key": None,
        "value": "15483",
        "exception": "class java.lang.IllegalStateException",
        "message": message,
    }


@pytest.mark.parametrize(
    "message",
    ["Cannot perform operation after producer has been closed", "Producer closed while send in progress"],
)
def test_record_offered_to_the_closed_producer_is_no_failure(message):
    assert refused_at_its_end(failed(message))


@pytest.mark.parametrize(
    "message",
    [
        "Expiring 1 record(s) for rolling-java-0:120000 ms has passed since batch creation",
        "The broker received an out of order sequence number.",
        "Producer is closed forcefully.",
        None,
    ],
)
def test_every_other_failed_record_is_a_failure(message):
    assert not refused_at_its_end(failed(message))
