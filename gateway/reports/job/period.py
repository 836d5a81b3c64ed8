"""The requested hours, in UTC."""

import datetime as dt
from dataclasses import dataclass

Hour = tuple[dt.date, int]
"""A date and an hour from 0 to 23, which is one folder of the ledger."""


@dataclass(frozen=True)
class Period:
    """From the hour `first` to the hour `last`, both included. None means no bound."""

    first: Hour | None = None
    last: Hour | None = None

    def includes(self, hour: Hour) -> bool:
        return (self.first is None or self.first <= hour) and (self.last is None or hour <= self.last)


def parsed(text: str, of_whole_day: int) -> Hour:
    """An hour (`2026-11-21T15`), or the hour `of_whole_day` of a day (`2026-11-21`). Raises `ValueError`."""
    date, separator, hour = text.partition("T")
    day = dt.date.fromisoformat(date)
    if not separator:
        return day, of_whole_day
    number = int(hour.removesuffix(":00"))
    if not 0 <= number <= 23:
        raise ValueError(f"{hour} is not an hour from 00 to 23")
    return day, number


def shown(hour: Hour) -> str:
    """A text such as `2026-11-21 15:00`."""
    return f"{hour[0].isoformat()} {hour[1]:02d}:00"
