"""Writes events like a gateway: into the folders of their hours, and only complete files."""

import gzip
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

from gateway.events import Event, to_line
from gateway.ledger_paths import file_name, in_progress_name, partition

_FAST = 1


def write_events(path: Path, events: Iterable[Event], sequence: int = 0) -> Sequence[Path]:
    """Write one file for each gateway and hour; returns their paths."""
    by_file: dict[tuple[str, str], list[Event]] = defaultdict(list)
    for event in events:
        by_file[partition(event.time_ms), event.gateway].append(event)
    return [
        write_lines(path / folder, file_name(gateway, of_file[0].time_ms, sequence), map(to_line, of_file))
        for (folder, gateway), of_file in by_file.items()
    ]


def write_lines(folder: Path, name: str, lines: Iterable[str]) -> Path:
    """Write one file, which gets its final name when it is complete."""
    folder.mkdir(parents=True, exist_ok=True)
    unfinished = folder / in_progress_name(name)
    # The gzip header has no name and no time, so that the same events make the same file.
    with unfinished.open("wb") as raw, gzip.GzipFile("", "wb", _FAST, raw, mtime=0) as packed:
        packed.write("".join(f"{line}\n" for line in lines).encode())
    return unfinished.rename(folder / name)
