"""Kafka's error codes as Weir's exceptions."""

import pytest

from gateway.cluster.client import ClusterError, MissingTopicError, NotAuthorizedError, TooLargeError, check_error


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (3, MissingTopicError),
        (10, TooLargeError),
        (18, TooLargeError),
        (29, NotAuthorizedError),
        (31, NotAuthorizedError),
        (56, ClusterError),
    ],
)
def test_code_of_a_broker_is_an_exception(code: int, error: type[ClusterError]) -> None:
    with pytest.raises(ClusterError, match=rf"orders: \w+ \({code}\)") as raised:
        check_error(code, "orders")
    assert raised.type is error


def test_code_0_is_no_error() -> None:
    check_error(0, "orders")
