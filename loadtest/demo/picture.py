"""What the demo shows: a table on a terminal, a line a second elsewhere, and a summary at the end."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from gateway.quotas.kinds import BYTES
from loadtest.demo.clients import Role

_BAR = 24
_FULL = 0.9
"""From this part of its quota on, a client counts as one that uses all of it."""


@dataclass(frozen=True)
class Look:
    """A client now. `rate` in bytes/s over the last second, times in seconds; `throttled` counts requests since the start."""

    role: Role
    rate: float
    throttled: int
    told: float

    @property
    def used(self) -> float:
        """Its rate as a part of its quota."""
        return self.rate / self.role.quota


class Tally:
    """Turns the counters of /api/quotas, read about once a second, into rates."""

    def __init__(self, roles: Sequence[Role], settle: float) -> None:
        """Means leave out the first `settle` seconds, in which clients connect and spend what a full bucket gives them."""
        self._roles = roles
        self._settle = settle
        self._last: dict[str, tuple[float, int]] = {}
        self._first: dict[str, tuple[float, int]] = {}
        self._rows: dict[str, Mapping[str, Any]] = {}

    def look(self, rows: Sequence[Mapping[str, Any]], told: Mapping[str, float], now: float) -> list[Look]:
        """Take in the rows of /api/quotas, `now` seconds after the start; what there is to see of each client."""
        looks = []
        for role in self._roles:
            row = next((row for row in rows if row["client_id"] == role.name and row["kind"] == role.kind), None)
            total = row["amount_total"] if row else 0
            if row:
                self._rows[role.name] = row
            before, had = self._last.get(role.name, (0.0, 0))
            rate = (total - had) / (now - before)
            self._last[role.name] = (now, total)
            if now >= self._settle:
                self._first.setdefault(role.name, (now, total))
            looks.append(Look(role, rate, row["throttled_total"] if row else 0, told.get(role.name, 0.0)))
        return looks

    def mean(self, role: Role) -> float | None:
        """Bytes a second between the end of the settling time and now; None where that is no time at all."""
        if role.name not in self._first:
            return None
        (began, had), (now, total) = self._first[role.name], self._last[role.name]
        return (total - had) / (now - began) if now > began else None

    def unseen(self) -> list[str]:
        """Name the clients of which nothing has passed through the gateway."""
        return [role.name for role in self._roles if role.name not in self._rows]

    def summary(self, told: Mapping[str, float]) -> list[str]:
        """Return a line for each client: its mean rate against its quota, and how it was throttled."""
        lines = []
        for role in self._roles:
            row, mean = self._rows.get(role.name), self.mean(role)
            if row is None:
                lines.append(f"  {role.name:<13} nothing came through")
                continue
            rate = f"{BYTES.text(mean)}/s" if mean is not None else "too short a run to tell"
            share = f" ({mean / role.quota:.1%})" if mean is not None else ""
            held = f"{row['throttled_total']:,} requests throttled, told to wait for {told.get(role.name, 0.0):.1f} s in total"
            lines.append(f"  {role.name:<13} {rate} of {BYTES.text(role.quota)}/s{share}: {held}")
        return lines


def table(looks: Sequence[Look], admin: str, elapsed: float, left: float | None) -> RenderableType:
    """Return the picture for a terminal; `left` is how many seconds are left, None without an end."""
    end = "Ctrl-C ends it" if left is None else f"{left:.0f} s left"
    grid = Table(title=f"Weir in front of a real Kafka, {elapsed:.0f} s — {end}", title_justify="left", header_style="bold")
    for name, justify in (
        ("client", "left"), ("does", "left"), ("now", "right"), ("quota", "right"), ("used", "left"),
        ("throttled", "right"), ("told to wait", "right"),
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
            f"{look.told * 1000:.0f} ms" if look.told else "",
            style="yellow" if look.used >= _FULL else "",
        )
    notes = [Text(f"  {look.role.name}: {look.role.about}") for look in looks]
    return Group(grid, *notes, Text(f"  metrics: {admin}/metrics   admin: {admin}/   table: weir quotas --admin {admin}"))


def line(looks: Sequence[Look], elapsed: float) -> str:
    """Return the same on one line, for logs."""
    parts = []
    for look in looks:
        part = f"{look.role.name} {BYTES.text(look.rate)}/s of {BYTES.text(look.role.quota)}/s ({look.used:.0%})"
        if look.throttled:
            part += f" {look.throttled:,} throttled, told {look.told * 1000:.0f} ms"
        parts.append(part)
    return f"{elapsed:4.0f} s  " + " | ".join(parts)
