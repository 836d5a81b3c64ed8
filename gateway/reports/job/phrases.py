"""Numbers in words for the page, its findings and the demo: durations, percentages, and amounts in the unit of a quota kind."""

from gateway.events import VOLUME
from gateway.quotas.kinds import BYTES, KINDS, Unit


def duration(seconds: float) -> str:
    """A text such as `4 d 3 h`, `2 h 05 min`, `3 min 20 s` or `1.5 s`."""
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(minutes, 60)
    if hours < 24:
        return f"{hours} h {minutes:02d} min"
    return f"{hours // 24} d {hours % 24} h"


def counted(number: int, one: str, several: str) -> str:
    """`1 client was` or `3 clients were`."""
    return f"{number:,} {one if number == 1 else several}"


def percent(fraction: float | None) -> str:
    return f"{(fraction or 0.0) * 100:,.1f} %"


def number(value: float) -> str:
    """At most four decimals below 1000, otherwise none."""
    return f"{value:,.0f}" if abs(value) >= 1000 or value == int(value) else f"{value:,.4f}".rstrip("0")


def amount(value: float, kind: str | None, unit: Unit | None = None) -> str:
    """An amount in the unit of its kind (`1.00 MiB`). `unit` is that of amounts without a kind; None for a mixture of kinds."""
    unit = _unit_of(kind) or unit
    if unit is None:
        return f"{number(value)} units"
    # A broker gives mutations back that it refused, so a sum may be negative.
    return f"-{_text(-value, unit)}" if value < 0 else _text(value, unit)


def rate(value: float, kind: str | None, unit: Unit | None = None) -> str:
    """An amount each second (`1.00 MiB/s`)."""
    return f"{amount(value, kind, unit)}/s"


def _unit_of(kind: str | None) -> Unit | None:
    if kind == VOLUME:
        return BYTES
    return KINDS[kind].unit if kind in KINDS else None


def _text(value: float, unit: Unit) -> str:
    return unit.text(value) if unit.prefixes else f"{number(round(value, 3))} {unit.name}"
