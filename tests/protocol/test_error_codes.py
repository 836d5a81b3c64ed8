"""The error codes, compared with those of kafka-python."""

import pytest
from kafka import errors

from protocol.error_codes import ErrorCode, name_of

RENAMED = {"UNKNOWN", "NO_ERROR", "NOT_LEADER_FOR_PARTITION", "MESSAGE_SIZE_TOO_LARGE", "INVALID_REPLICATION_ASSIGNMENT"}
"""Names of the library that differ from those in Kafka's `Errors`."""


def words(name: str) -> str:
    return name.replace("_", "").removesuffix("EXCEPTION").removesuffix("ERROR")


@pytest.mark.parametrize("code", ErrorCode)
def test_code_has_kafkas_name(code: ErrorCode) -> None:
    theirs = errors.kafka_errors[code].message
    assert theirs in RENAMED or words(theirs) == words(code.name)


@pytest.mark.parametrize(("code", "name"), [(3, "UNKNOWN_TOPIC_OR_PARTITION"), (77, "77"), (-1, "UNKNOWN_SERVER_ERROR")])
def test_unknown_code_is_named_by_its_number(code: int, name: str) -> None:
    assert name_of(code) == name
