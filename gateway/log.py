"""Logs on stderr: one JSON object per line, or text for people."""

import json
import logging
import sys
from collections import OrderedDict
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Literal, TextIO

from gateway import clock

LogFormat = Literal["json", "text"]

_OWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
"""What every log record has; the rest of its attributes came by `extra`."""


def iso(seconds: float) -> str:
    """Wall clock seconds as ISO 8601 in UTC, to the millisecond."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class JsonFormatter(logging.Formatter):
    """A record as a line of JSON: ts (ISO 8601, UTC), level, logger, msg, the fields of `extra`, error with a traceback."""

    def format(self, record: logging.LogRecord) -> str:
        """The line, without its end."""
        line: dict[str, object] = {
            "ts": iso(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "msg": record.getMessage(),
        }
        line.update((key, value) for key, value in vars(record).items() if key not in _OWN and key not in line)
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class TextFormatter(logging.Formatter):
    """A record as a line that people read: time (UTC), level, message, and of the fields of `extra` what that does not say."""

    def format(self, record: logging.LogRecord) -> str:
        """The line, followed by a traceback where there is one."""
        worker = f"[worker {record.worker}] " if hasattr(record, "worker") else ""
        message = record.getMessage()
        fields = [
            f"{name}={value}"
            for name, value in vars(record).items()
            if name not in _OWN and name != "worker" and isinstance(value, str | int | float) and str(value) not in message
        ]
        text = _harmless(f"{message} ({', '.join(fields)})" if fields else message)
        line = f"{iso(record.created)} {record.levelname:7} {worker}{text}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def _harmless(text: str) -> str:
    """Text without the control characters by which a client's name could take over the terminal or pass for another line."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else "\n    " if char == "\n" else repr(char)[1:-1] for char in text)


_OTHERS = "<others>"
_OF_BROKERS = "broker_"


class OncePerPeer(logging.Filter):
    """Lets a peer that misbehaves in a loop be logged once in `seconds`, with how often it was passed over.

    It looks at records that have a `reason`, by that and by the host of their `peer`. Reasons that begin with `broker_` are
    told apart by their `broker` instead: a broker that closes all connections is one peer, however many clients it cuts. An
    ERROR is folded only if it has a `peer`, which can cause it again and again. At most `size` keys are told apart in
    `seconds`; the further ones of a reason count as one peer. `now` is monotonic.
    """

    def __init__(self, seconds: float = 60.0, size: int = 1_000, now: Callable[[], float] = clock.monotonic) -> None:
        super().__init__()
        self._seconds = seconds
        self._size = size
        self._now = now
        self._since: OrderedDict[tuple[str, str], float] = OrderedDict()
        self._repeated: dict[tuple[str, str], int] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the record is news; `repeated` is added to it where others like it were passed over."""
        reason, peer = getattr(record, "reason", None), str(getattr(record, "peer", ""))
        if reason is None or (record.levelno >= logging.ERROR and not peer):
            return True
        now = self._now()
        self._forget(now)
        of = str(getattr(record, "broker", "")) if str(reason).startswith(_OF_BROKERS) else peer.rpartition(":")[0]
        key = (str(reason), of)
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
        """Make room: forget the oldest keys that hold back nothing any more."""
        while len(self._since) >= self._size:
            oldest, since = next(iter(self._since.items()))
            if now - since < self._seconds:
                return
            del self._since[oldest], self._repeated[oldest]


class OfWorker(logging.Filter):
    """Adds to each record the `worker` that it is from."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self._number = number

    def filter(self, record: logging.LogRecord) -> bool:
        """Always true."""
        record.worker = self._number
        return True


def configure_logging(
    log_format: LogFormat, *, level: int = logging.INFO, stream: TextIO | None = None, worker: int | None = None
) -> None:
    """Send all logs of the process to `stream` (stderr), and nowhere else; with the number of the `worker` that it is."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.addFilter(OncePerPeer())
    if worker is not None:
        handler.addFilter(OfWorker(worker))
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    logging.captureWarnings(capture=True)
    logging.basicConfig(level=level, handlers=[handler], force=True)
    # It reports every change in the config file's directory, whether or not it concerns the file.
    logging.getLogger("watchfiles").setLevel(logging.WARNING)
    # Its client tells of each attempt to look at the cluster, about once a second; `cluster.discovery` says it once, and why.
    # The client's logger is the library's own one: switched off and not set to a level, which its other modules would inherit.
    # Its connections log a traceback for each odd answer, and the cluster's metadata a warning: Weir's own code reports both.
    for name in ("aiokafka", "aiokafka.conn", "aiokafka.cluster"):
        logging.getLogger(name).disabled = True
