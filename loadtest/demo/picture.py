"""The demo's output: a table on a terminal, otherwise one line each second, and a summary at the end."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from gateway.quotas.kinds import BYTES
from gateway.reports.job.phrases import percent
from loadtest.demo.clients import Role

_BAR = 24
_FULL = 0.9
"""A client that uses at least this part of its quota counts as one that uses all of it."""


@dataclass(frozen=True)
class Look:
    """A client's current state. `rate` is the last second's, in bytes/s; `throttled` counts requests since the start.

    `throttle_time` is the client's last throttle time in seconds.
    """

    role: Role
    rate: float
    throttled: int
    throttle_time: float

    @property
    def used(self) -> float:
        """The rate as a part of the quota."""
        return self.rate / self.role.quota


class Tally:
    """Turns the counters of /api/quotas, read about once a second, into rates."""

    def __init__(self, roles: Sequence[Role], settle: float) -> None:
        """Mean rates leave out the first `settle` seconds of each client's requests, in which it uses its burst."""
        self._roles = roles
        self._settle = settle
        self._last: dict[str, tuple[float, int]] = {}
        self._first: dict[str, tuple[float, int]] = {}
        self._begun: dict[str, float] = {}

    def look(self, rows: Sequence[Mapping[str, Any]], throttle_time: Mapping[str, float], now: float) -> list[Look]:
        """Process the rows of /api/quotas, `now` seconds after the start, and return each client's state."""
        looks = []
        for role in self._roles:
            row = next((row for row in rows if row["client_id"] == role.name and row["kind"] == role.kind), None)
            total = row["amount_total"] if row else 0
            if row:
                self._begun.setdefault(role.name, now)
            before, had = self._last.get(role.name, (0.0, 0))
            rate = (total - had) / (now - before)
            self._last[role.name] = (now, total)
            if now >= self._begun.get(role.name, inf) + self._settle:
                self._first.setdefault(role.name, (now, total))
            looks.append(Look(role, rate, row["throttled_total"] if row else 0, throttle_time.get(role.name, 0.0)))
        return looks

    def mean(self, role: Role) -> float | None:
        """Bytes/s since the end of the settling time; None before that."""
        if role.name not in self._first:
            return None
        (began, had), (now, total) = self._first[role.name], self._last[role.name]
        return (total - had) / (now - began) if now > began else None

    def unseen(self) -> list[str]:
        """The names of the clients without any request at the gateway."""
        return [role.name for role in self._roles if role.name not in self._begun]

    def summary(self) -> list[str]:
        """One line for each client: its mean rate since the end of the settling time, and its quota."""
        lines = []
        for role in self._roles:
            mean = self.mean(role)
            if role.name not in self._begun:
                lines.append(f"  {role.name:<13} no requests arrived")
                continue
            rate = f"{BYTES.text(mean)}/s" if mean is not None else "the run was too short"
            share = f" ({percent(mean / role.quota)})" if mean is not None else ""
            lines.append(f"  {role.name:<13} {rate} of {BYTES.text(role.quota)}/s{share}")
        return lines


def table(looks: Sequence[Look], admin: str, elapsed: float, left: float | None) -> RenderableType:
    """The table for a terminal. `left` is the remaining time in seconds, or None without an end."""
    end = "Ctrl-C ends it" if left is None else f"{left:.0f} s left"
    grid = Table(title=f"Weir in front of a real Kafka, {elapsed:.0f} s — {end}", title_justify="left", header_style="bold")
    for name, justify in (
        ("client", "left"), ("does", "left"), ("now", "right"), ("quota", "right"), ("used", "left"),
        ("throttled", "right"), ("throttle time", "right"),
    ):  # fmt: skip
        grid.add_column(name, justify=justify, no_wrap=True)  # type: ignore[arg-type]
    for look in looks:
        role = look.role
        bar = Table.grid(padding=(0, 1))
        bar.add_row(ProgressBar(total=1.0, completed=min(look.used, 1.0), width=_BAR), f"{look.used:4.0%}")
        grid.add_row(
            role.name,
            "produces" if role.kind == "produce" else "reads",
            f"{BYTES.text(look.rate)}/s",
            f"{BYTES.text(role.quota)}/s",
            bar,
            f"{look.throttled:,} requests",
            f"{look.throttle_time * 1000:.0f} ms" if look.throttle_time else "",
            style="yellow" if look.used >= _FULL else "",
        )
    notes = [Text(f"  {look.role.name}: {look.role.about}") for look in looks]
    return Group(grid, *notes, Text(f"  metrics: {admin}/metrics   admin: {admin}/   table: weir quotas --admin {admin}"))


def line(looks: Sequence[Look], elapsed: float) -> str:
    """The same as one line, for logs."""
    parts = []
    for look in looks:
        part = f"{look.role.name} {BYTES.text(look.rate)}/s of {BYTES.text(look.role.quota)}/s ({look.used:.0%})"
        if look.throttled:
            part += f" {look.throttled:,} throttled, throttle time {look.throttle_time * 1000:.0f} ms"
        parts.append(part)
    return f"{elapsed:4.0f} s  " + " | ".join(parts)
