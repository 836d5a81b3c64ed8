"""Logs on stderr: one JSON object per line, or text for people."""

import json
import logging
import re
import sys
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Final, Literal, TextIO

from gateway import clock
from gateway.log_writer import LogWriter
from gateway.terminal_text import printable

_STDERR = 2

LogFormat = Literal["json", "text"]

_log = logging.getLogger("weir.log")

_OWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
"""Attributes of every log record. All others are from `extra`."""


_MOST_LINES: Final = 100


def first_lines(lines: Sequence[str]) -> list[str]:
    """The changes or warnings that the log has of a config. The last one is the number of all, if there are more."""
    if len(lines) <= _MOST_LINES:
        return list(lines)
    return [*lines[:_MOST_LINES], f"{len(lines) - _MOST_LINES} more, {len(lines)} in all"]


class JsonFormatter(logging.Formatter):
    """A line of JSON: ts (ISO 8601, UTC), level, logger, msg, the fields of `extra`, error with a traceback."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "ts": clock.iso(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "msg": record.getMessage(),
        }
        line.update((key, value) for key, value in vars(record).items() if key not in _OWN and key not in line)
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class TextFormatter(logging.Formatter):
    """A line for people: time (UTC), level, message, and the texts and numbers of `extra` that the message does not contain."""

    def format(self, record: logging.LogRecord) -> str:
        worker = f"[worker {record.worker}] " if hasattr(record, "worker") else ""
        message = record.getMessage()
        fields = [
            f"{name}={value}"
            for name, value in vars(record).items()
            if name not in _OWN
            and name != "worker"
            and isinstance(value, str | int | float)
            and not _contains(message, str(value))
        ]
        text = _harmless(f"{message} ({', '.join(fields)})" if fields else message)
        line = f"{clock.iso(record.created)} {record.levelname:7} {worker}{text}"
        return f"{line}\n    {_harmless(self.formatException(record.exc_info))}" if record.exc_info else line


def _contains(message: str, value: str) -> bool:
    """True if `value` stands in the message by itself: a 1 is no part of 10."""
    if value not in message:
        return False
    return not value or re.search(rf"(?<![\w.]){re.escape(value)}(?!\w|\.\d)", message) is not None


def _harmless(text: str) -> str:
    """Text without control characters: a client's name could take over the terminal or forge a line."""
    return "\n    ".join(map(printable, text.split("\n")))


_OTHERS = "<others>"
_OF_BROKERS = "broker_"
_OF_QUOTAS = "quota_"
_BUCKET = ("kind", "user", "client_id", "ip", "group")


class OncePerPeer(logging.Filter):
    """Passes one record per reason and peer in `seconds`, so that a misbehaving peer cannot fill the log.

    The key is a record's `reason` and the host of its `peer`. For reasons that begin with `broker_` it is the `broker`: a
    broker that closes all connections is one peer. For reasons that begin with `quota_` it is the quota's kind and entity.
    Without a `peer` it is the type of the exception, if there is one: another bug in the same place has its own traceback.
    Records without a `reason` pass. At most `size` keys exist in `seconds`; further peers of a reason count as one. `now` is
    monotonic.
    """

    def __init__(self, seconds: float = 60.0, size: int = 1_000, now: Callable[[], float] = clock.monotonic) -> None:
        super().__init__()
        self._seconds = seconds
        self._size = size
        self._now = now
        self._since: OrderedDict[tuple[str, str], float] = OrderedDict()
        self._repeated: dict[tuple[str, str], int] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """True if the record is logged, with the number of suppressed records in `repeated`."""
        reason, peer = getattr(record, "reason", None), str(getattr(record, "peer", ""))
        if reason is None:
            return True
        now = self._now()
        self._forget(now)
        key = (str(reason), _source(record, str(reason), peer))
        if key not in self._since and len(self._since) >= self._size:
            key = (str(reason), _OTHERS)
        if key in self._since and now - self._since[key] < self._seconds:
            self._repeated[key] += 1
            return False
        if repeated := self._repeated.get(key, 0):
            record.repeated = repeated
        self._since[key] = now
        self._since.move_to_end(key)
        self._repeated[key] = 0
        return True

    def _forget(self, now: float) -> None:
        """If the table is full, drop the oldest keys that are older than `seconds`."""
        while len(self._since) >= self._size:
            oldest, since = next(iter(self._since.items()))
            if now - since < self._seconds:
                return
            del self._since[oldest], self._repeated[oldest]


def _source(record: logging.LogRecord, reason: str, peer: str) -> str:
    if reason.startswith(_OF_QUOTAS):
        return "\0".join(str(getattr(record, name, "")) for name in _BUCKET)
    if reason.startswith(_OF_BROKERS):
        return str(getattr(record, "broker", ""))
    if not peer and record.exc_info:
        return str(record.exc_info[0])
    return peer.rpartition(":")[0]


class OfWorker(logging.Filter):
    """Adds the `worker` to each record."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self._number = number

    def filter(self, record: logging.LogRecord) -> bool:
        record.worker = self._number
        return True


def _log_unraisable(raised: "sys.UnraisableHookArgs") -> None:
    """Log an error of a callback or a destructor, with its traceback.

    Any client can send a server name that is not ASCII, which Python's ssl module refuses. That error gets no traceback; its
    object is the name, in `bytes`.
    """
    kind, error = raised.exc_type, raised.exc_value
    traceback = None if error is None or isinstance(raised.object, bytes) else (kind, error, raised.exc_traceback)
    message = f"{raised.err_msg or 'an error was ignored'}: {kind.__name__}: {error}"
    _log.warning("%s", message, exc_info=traceback, extra={"reason": f"ignored {kind.__name__}"})


def configure_logging(
    log_format: LogFormat, *, level: int = logging.INFO, stream: TextIO | None = None, worker: int | None = None
) -> None:
    """Send all logs of the process to `stream` (stderr, in a thread) only. `worker` is the number in each record."""
    handler = LogWriter(_STDERR) if stream is None else logging.StreamHandler(stream)
    handler.addFilter(OncePerPeer())
    if worker is not None:
        handler.addFilter(OfWorker(worker))
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    logging.captureWarnings(capture=True)
    sys.unraisablehook = _log_unraisable
    logging.basicConfig(level=level, handlers=[handler], force=True)
    # watchfiles logs every change in the config file's directory, also of other files.
    logging.getLogger("watchfiles").setLevel(logging.WARNING)
    # aiokafka logs each failed attempt, about once a second, and a traceback for each unexpected answer. Weir's own code
    # reports both once, with the cause. The loggers are disabled instead of set to a level, which other modules would inherit.
    for name in ("aiokafka", "aiokafka.conn", "aiokafka.cluster"):
        logging.getLogger(name).disabled = True
