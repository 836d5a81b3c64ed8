"""The file in which the clients note each batch that they sent, and its fate."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from struct import Struct
from typing import Final, Self


class Fate(IntEnum):
    """The knowledge that a client has about a batch."""

    ACKNOWLEDGED = 0
    REFUSED = 1
    """The error says that nothing was appended."""
    UNCLEAR = 2
    """The error leaves open if the batch was appended."""
    UNANSWERED = 3
    CUT = 4
    """The client sent only a part of the request."""


@dataclass(frozen=True, slots=True)
class Sent:
    """One batch with one record. `frame_bytes` is the size of the request with its length field; `at` is monotonic time."""

    number: int
    topic: str
    fate: Fate
    batch_bytes: int
    frame_bytes: int
    at: float


_ENTRY: Final = Struct(">QBHIId")
_FLUSH_ENTRIES: Final = 500


class Journal:
    """Writes `path`, and beside it the names of the topics."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb")
        self._names = path.with_suffix(".topics")
        self._topics: dict[str, int] = {}
        self._waiting: list[bytes] = []

    def note(self, sent: Sent) -> None:
        topic = self._topics.get(sent.topic)
        if topic is None:
            topic = self._topics[sent.topic] = len(self._topics)
            self._names.write_text("\n".join(self._topics))
        self._waiting.append(_ENTRY.pack(sent.number, sent.fate, topic, sent.batch_bytes, sent.frame_bytes, sent.at))
        if len(self._waiting) >= _FLUSH_ENTRIES:
            self.flush()

    def flush(self) -> None:
        self._file.write(b"".join(self._waiting))
        self._file.flush()
        self._waiting.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.flush()
        self._file.close()


def read_journal(path: Path) -> Iterator[Sent]:
    """All whole entries of a journal, in the order in which the fates became known."""
    topics = path.with_suffix(".topics").read_text().split("\n")
    content = path.read_bytes()
    for number, fate, topic, batch, frame, at in _ENTRY.iter_unpack(content[: len(content) // _ENTRY.size * _ENTRY.size]):
        yield Sent(number, topics[topic], Fate(fate), batch, frame, at)
