"""Logs: each line can be read by a machine, whatever is in it."""

import io
import json
import logging
from collections.abc import Iterator

import pytest

from gateway.observe.log import LogFormat, OncePer, configure_logging, iso


@pytest.fixture
def root() -> Iterator[None]:
    """The root logger is as it was, afterwards."""
    logger = logging.getLogger()
    handlers, level = logger.handlers[:], logger.level
    yield
    for handler in logger.handlers[:]:
        logger.removeHandler(handler)
    for handler in handlers:
        logger.addHandler(handler)
    logger.setLevel(level)
    logging.captureWarnings(capture=False)


@pytest.fixture
def stream(root: None) -> io.StringIO:
    return io.StringIO()


def lines(stream: io.StringIO) -> list[dict]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def configured(stream: io.StringIO, log_format: LogFormat) -> logging.Logger:
    configure_logging(log_format, stream=stream)
    return logging.getLogger("weir.test")


def test_a_record_is_a_line_of_json_with_its_extra_fields(stream: io.StringIO) -> None:
    logger = configured(stream, "json")
    logger.warning("%s is slow", "alice", extra={"user": "alice", "seconds": 1.5, "path": stream})
    logger.debug("not shown")
    (line,) = lines(stream)
    assert line.pop("ts").endswith("Z")
    assert line.pop("path").startswith("<_io.StringIO")
    assert line == {"level": "warning", "logger": "weir.test", "msg": "alice is slow", "user": "alice", "seconds": 1.5}


def test_a_line_feed_in_a_message_does_not_make_two_lines(stream: io.StringIO) -> None:
    logger = configured(stream, "json")
    logger.info('%s logged in\n{"msg": "forged"}', "mallory")
    assert [line["msg"] for line in lines(stream)] == ['mallory logged in\n{"msg": "forged"}']


def fail(logger: logging.Logger) -> None:
    try:
        int("why")
    except ValueError:
        logger.exception("failed")


def test_an_exception_is_a_field(stream: io.StringIO) -> None:
    logger = configured(stream, "json")
    fail(logger)
    (line,) = lines(stream)
    assert line["level"] == "error"
    assert line["error"].startswith("Traceback")


def test_text_is_for_people(stream: io.StringIO) -> None:
    logger = configured(stream, "text")
    fail(logger)
    first, *rest = stream.getvalue().splitlines()
    assert first.endswith("Z ERROR   failed")
    assert rest[-1].startswith("ValueError: ")


def test_configuring_twice_does_not_log_twice(stream: io.StringIO) -> None:
    configured(stream, "json")
    configured(stream, "json").info("once")
    assert len(lines(stream)) == 1


def test_once_per_key_and_time() -> None:
    once = OncePer(60.0)
    assert once.news(0.0, "bad frame", "10.0.0.1") == 0
    assert once.news(1.0, "bad frame", "10.0.0.1") is None
    assert once.news(2.0, "bad frame", "10.0.0.2") == 0
    assert once.news(59.0, "bad frame", "10.0.0.1") is None
    assert once.news(60.0, "bad frame", "10.0.0.1") == 2
    assert once.news(120.0, "bad frame", "10.0.0.1") == 0


def test_once_per_forgets_the_oldest() -> None:
    once = OncePer(60.0, size=2)
    for peer in "abc":
        assert once.news(0.0, peer) == 0
    assert once.news(1.0, "b") is None
    assert once.news(1.0, "c") is None
    assert once.news(1.0, "a") == 0


def test_times_are_iso_8601_in_utc() -> None:
    assert iso(1_767_225_600) == "2026-01-01T00:00:00.000Z"
