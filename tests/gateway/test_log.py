"""Logs: each line is valid JSON for any content."""

import io
import json
import logging
import ssl
import sys
from collections.abc import Iterator
from typing import Any

import aiokafka.client
import pytest

from gateway.clock import iso
from gateway.log import LogFormat, OncePerPeer, configure_logging


@pytest.fixture
def root() -> Iterator[None]:
    """Restore the root logger after the test."""
    logger = logging.getLogger()
    handlers, level, hook = logger.handlers[:], logger.level, sys.unraisablehook
    yield
    sys.unraisablehook = hook
    for handler in logger.handlers[:]:
        logger.removeHandler(handler)
    for handler in handlers:
        logger.addHandler(handler)
    logger.setLevel(level)
    for name in ("aiokafka", "aiokafka.conn", "aiokafka.cluster"):
        logging.getLogger(name).disabled = False
    logging.captureWarnings(capture=False)


@pytest.fixture
def stream(root: None) -> io.StringIO:
    return io.StringIO()


def lines(stream: io.StringIO) -> list[dict]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def configured(stream: io.StringIO, log_format: LogFormat) -> logging.Logger:
    configure_logging(log_format, stream=stream)
    return logging.getLogger("weir.test")


def test_record_is_one_json_line_with_extra_fields(stream: io.StringIO) -> None:
    logger = configured(stream, "json")
    logger.warning("%s is slow", "alice", extra={"user": "alice", "seconds": 1.5, "path": stream})
    logger.debug("not shown")
    (line,) = lines(stream)
    assert line.pop("ts").endswith("Z")
    assert line.pop("path").startswith("<_io.StringIO")
    assert line == {"level": "warning", "logger": "weir.test", "msg": "alice is slow", "user": "alice", "seconds": 1.5}


def test_line_feed_in_a_message_stays_in_one_line(stream: io.StringIO) -> None:
    logger = configured(stream, "json")
    logger.info('%s logged in\n{"msg": "forged"}', "mallory")
    assert [line["msg"] for line in lines(stream)] == ['mallory logged in\n{"msg": "forged"}']


def fail(logger: logging.Logger) -> None:
    try:
        int("why")
    except ValueError:
        logger.exception("failed")


def test_exception_is_a_field(stream: io.StringIO) -> None:
    logger = configured(stream, "json")
    fail(logger)
    (line,) = lines(stream)
    assert line["level"] == "error"
    assert line["error"].startswith("Traceback")


class Broken:
    def __del__(self) -> None:
        raise ValueError("in a destructor")


def test_error_of_a_destructor_is_logged_with_its_traceback(stream: io.StringIO) -> None:
    configured(stream, "json")
    Broken()
    (line,) = lines(stream)
    assert (line["level"], line["reason"]) == ("warning", "ignored ValueError")
    assert line["msg"].endswith("ValueError: in a destructor")
    assert line["error"].startswith("Traceback")


def test_server_name_that_is_not_ascii_leaves_no_traceback(stream: io.StringIO) -> None:
    configured(stream, "text")
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context()
    server.sni_callback = lambda *_: None
    hello, answer = ssl.MemoryBIO(), ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        client.wrap_bio(answer, hello, server_hostname="localhost").do_handshake()
    answer.write(hello.read().replace(b"localhost", b"localhos\xff"))
    with pytest.raises(ssl.SSLError, match="CALLBACK_FAILED"):
        server.wrap_bio(answer, hello, server_side=True).do_handshake()
    (line,) = stream.getvalue().splitlines()
    assert "UnicodeDecodeError: 'ascii' codec can't decode byte 0xff" in line


def test_text_format_shows_a_traceback(stream: io.StringIO) -> None:
    logger = configured(stream, "text")
    fail(logger)
    first, *rest = stream.getvalue().splitlines()
    assert first.endswith("Z ERROR   failed")
    assert rest[-1].startswith("    ValueError: ")


def test_text_format_adds_fields_missing_in_message(stream: io.StringIO) -> None:
    logger = configured(stream, "text")
    logger.info("quota of %s changed", "etl", extra={"by": "User:admin", "entity": "etl", "value": 5, "changes": ["long"]})
    assert stream.getvalue().endswith("Z INFO    quota of etl changed (by=User:admin, value=5)\n")


def test_text_format_keeps_a_number_that_is_part_of_another(stream: io.StringIO) -> None:
    configure_logging("text", stream=stream)
    logging.getLogger("weir.test").warning("the gateway waits 10 s", extra={"attempt": 1, "seconds": 10})
    assert "(attempt=1)" in stream.getvalue()


def test_control_characters_of_an_exception_are_escaped_in_text(stream: io.StringIO) -> None:
    configure_logging("text", stream=stream)
    try:
        raise ValueError("\x1b[2J")  # noqa: TRY301 -- the test needs a traceback
    except ValueError:
        logging.getLogger("weir.test").exception("broken")
    assert "\x1b" not in stream.getvalue()
    assert "ValueError: \\x1b[2J" in stream.getvalue()


def test_control_characters_are_escaped_in_text(stream: io.StringIO) -> None:
    logger = configured(stream, "text")
    logger.info("%s logged in", "mallory\x1b[2J\n2026-11-21T00:00:00.000Z ERROR   forged", extra={"peer": "a\x00"})
    _, second = stream.getvalue().splitlines()
    assert r"mallory\x1b[2J" in stream.getvalue()
    assert second == r"    2026-11-21T00:00:00.000Z ERROR   forged logged in (peer=a\x00)"


def test_configuring_twice_logs_once(stream: io.StringIO) -> None:
    configured(stream, "json")
    configured(stream, "json").info("once")
    assert len(lines(stream)) == 1


def test_aiokafka_connection_errors_are_not_repeated(stream: io.StringIO) -> None:
    configured(stream, "json")
    aiokafka.client.log.error("Unable connect to %s", "127.0.0.1:1")
    logging.getLogger("aiokafka.producer.sender").warning("but this is news")
    assert [line["msg"] for line in lines(stream)] == ["but this is news"]


class Folded:
    """A filter, with the time of each record."""

    def __init__(self, seconds: float = 60.0, size: int = 1_000) -> None:
        self._at = 0.0
        self._once = OncePerPeer(seconds, size, lambda: self._at)

    def passes(self, made: logging.LogRecord, at: float) -> bool:
        self._at = at
        return self._once.filter(made)


def record(*, reason: str | None = "frame_too_large", peer: str = "10.0.0.1:1234", level: int = logging.WARNING, **more: Any):
    made = logging.makeLogRecord({"levelno": level, **({"peer": peer} if peer else {}), **more})
    if reason is not None:
        made.reason = reason
    return made


def test_repeated_errors_of_a_peer_are_folded_and_counted():
    once = Folded(60.0)
    assert once.passes(record(), 0.0)
    assert not once.passes(record(peer="10.0.0.1:1235"), 1.0)
    assert not once.passes(record(), 59.9)
    assert once.passes(record(peer="10.0.0.2:1"), 1.0), "another peer is news"
    assert once.passes(record(reason="negative_length"), 1.0), "another reason is news"
    again = record()
    assert once.passes(again, 60.0)
    assert again.repeated == 2


@pytest.mark.parametrize("always", [{}, {"level": logging.ERROR, "peer": ""}])
def test_records_without_reason_always_pass(always):
    once = Folded(60.0)
    assert all(once.passes(record(reason=None, **always), 0.0) for _ in range(3))


def test_errors_without_peer_are_folded_by_exception() -> None:
    """A task that fails each second would fill the disk with its traceback."""

    def failure(error: Exception) -> logging.LogRecord:
        return record(reason="live_page", peer="", level=logging.ERROR, exc_info=(type(error), error, None))

    once = Folded(60.0)
    assert once.passes(failure(KeyError("a")), 0.0)
    assert not once.passes(failure(KeyError("b")), 1.0)
    assert once.passes(failure(TypeError("c")), 1.0), "another bug is news"
    assert not once.passes(failure(TypeError("d")), 2.0)
    again = failure(KeyError("e"))
    assert once.passes(again, 60.0)
    assert again.repeated == 1


def test_internal_errors_of_a_peer_are_folded():
    """A client may have found a bug of Weir. Then a traceback for each connection would fill the disk."""
    once = Folded(60.0)
    assert once.passes(record(reason="internal", level=logging.ERROR), 0.0)
    assert not once.passes(record(reason="internal", level=logging.ERROR), 1.0)


@pytest.mark.parametrize("reason", ["broker_closed", "broker_unreachable", "broker_tls"])
def test_broker_is_one_peer_for_all_its_clients(reason):
    once = Folded(60.0)
    assert once.passes(record(reason=reason, broker="broker 1"), 0.0)
    assert not any(once.passes(record(reason=reason, broker="broker 1", peer=f"10.0.1.{n}:1"), 1.0) for n in range(9))
    assert once.passes(record(reason=reason, broker="broker 2"), 1.0)


def test_events_of_a_quota_are_folded_by_entity() -> None:
    once = Folded(60.0)
    alice = {"reason": "quota_throttled", "peer": "", "kind": "produce", "user": "alice"}
    assert once.passes(record(**alice), 0.0)
    assert once.passes(record(**alice | {"kind": "fetch"}), 1.0)
    assert once.passes(record(**alice, client_id="etl"), 1.0)
    assert not once.passes(record(**alice), 2.0)


def test_peers_over_the_limit_count_as_one():
    once = Folded(60.0, size=2)
    assert [once.passes(record(peer=f"10.0.1.{n}:1"), 0.0) for n in range(100)] == [True] * 3 + [False] * 97
    assert not once.passes(record(peer="10.0.1.0:1"), 1.0), "it is remembered"
    assert once.passes(record(peer="10.0.2.1:1"), 60.0), "the oldest are forgotten, once their time is over"


def test_times_are_iso_8601_in_utc() -> None:
    assert iso(1_767_225_600) == "2026-01-01T00:00:00.000Z"
