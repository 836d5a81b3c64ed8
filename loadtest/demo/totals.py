"""Each client's figures of the whole demo, summed in plain Python from the ledger that `weir report` reads as well."""

import gzip
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from gateway.events import Event, ThrottleEvent, UsageSample, from_line
from gateway.quotas.kinds import BYTES
from gateway.reports.job.phrases import percent
from loadtest.demo.clients import Role


@dataclass(frozen=True)
class Total:
    """A client's use in bytes, the seconds in which it used its quota or was throttled, and its throttles."""

    role: Role
    amount: float
    active_seconds: int
    throttled: int
    throttle_seconds: float

    @property
    def used(self) -> float:
        """The mean rate of the active seconds as a fraction of the quota, rounded as in the report."""
        return round(self.amount / (self.role.quota * self.active_seconds), 4) if self.active_seconds else 0.0

    def text(self) -> str:
        return (
            f"  {self.role.name:<13} {BYTES.text(self.amount)} in {self.active_seconds:,.1f} active s, {percent(self.used)} of"
            f" {BYTES.text(self.role.quota)}/s: {self.throttled:,} throttles, {self.throttle_seconds:,.1f} s of throttle time"
        )


def ledger_events(path: Path) -> Iterator[Event]:
    """The events of the finished files of one gateway. Raises `InvalidEventError`."""
    for file in sorted(path.rglob("*.jsonl.gz")):
        if not file.name.startswith(("_", ".")):
            yield from map(from_line, gzip.decompress(file.read_bytes()).splitlines())


def totals(roles: Sequence[Role], events: Iterable[Event]) -> list[Total]:
    found = list(events)
    return [_total(role, found) for role in roles]


def _total(role: Role, events: Iterable[Event]) -> Total:
    own = [
        event
        for event in events
        if isinstance(event, (UsageSample, ThrottleEvent)) and (event.kind, event.client_id) == (role.kind, role.name)
    ]
    usage = [event for event in own if isinstance(event, UsageSample)]
    throttles = [event for event in own if isinstance(event, ThrottleEvent)]
    return Total(
        role,
        sum(event.amount for event in usage),
        sum(event.active_seconds or 0 for event in usage),
        sum(event.count for event in throttles),
        sum(event.throttle_ms for event in throttles) / 1000,
    )
