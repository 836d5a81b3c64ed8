"""Tables of states and events, as the specifications draw them."""

from collections.abc import Mapping
from enum import Enum
from typing import TypeVar

State = TypeVar("State", bound=Enum)
Event = TypeVar("Event", bound=Enum)


def transitions(
    table: str, states: type[State], events: type[Event], short: Mapping[str, State] | None = None
) -> dict[tuple[State, Event], State | None]:
    """The state after each event in each state, by its name or by one of `short`. None: the cell "-", an illegal event."""
    names = {**(states.__members__ if short is None else short), "-": None}
    header, *rows = [line.split() for line in table.strip().splitlines()]
    return {(states[row[0]], events[event]): names[cell] for row in rows for event, cell in zip(header, row[1:], strict=True)}
