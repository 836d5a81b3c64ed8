"""Draws the rates of groups over time, one upon the other, below the capacity that they share."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from loadtest.scenarios.svg import Drawing

_WIDTH, _LEFT, _RIGHT, _TOP, _PLOT = 920, 44, 706, 84, 280
_LANE, _AXIS = 20, 34
_TICK_SECONDS, _TICK_RATE = 10, 2.0
_HEADROOM = 1.2
_NUMBER_HEIGHT = 15
_COLOURS = ("#2b78ba", "#cc7722", "#2f8f68")


@dataclass(frozen=True)
class GroupNumbers:
    """In MB/s."""

    weight: int
    guarantee: float | None = None
    ceiling: float | None = None

    def text(self) -> str:
        parts = [f"{name} {value:g}" for name, value in (("guarantee", self.guarantee), ("ceiling", self.ceiling)) if value]
        return ", ".join([*parts, f"weight {self.weight}"])


@dataclass(frozen=True)
class Period:
    """The time between two events, in seconds of the script. `division` has the computed parts, `found` the measured means.

    All rates are in MB/s. A group that does not run has the part 0.
    """

    begin: float
    end: float
    event: str
    running: Sequence[str]
    division: Mapping[str, float]
    found: Mapping[str, float]


@dataclass(frozen=True)
class Timeline:
    """`rates` are each group's means over `step` seconds, from second 0 on, in MB/s. The first group is drawn at the bottom."""

    capacity: float
    groups: Mapping[str, GroupNumbers]
    step: float
    rates: Mapping[str, Sequence[float]]
    periods: Sequence[Period]


def stacked_areas(title: str, timeline: Timeline) -> str:
    """An SVG. Thin lines are the computed division, dashed ones guarantees and ceilings."""
    return _Chart(title, timeline).draw()


class _Chart:
    def __init__(self, title: str, timeline: Timeline) -> None:
        self._timeline = timeline
        self._names = list(timeline.groups)
        self._colours = dict(zip(self._names, _COLOURS, strict=False))
        self._seconds = timeline.periods[-1].end
        self._bottom = _TOP + _PLOT
        self._drawing = Drawing(_WIDTH, self._bottom + _AXIS + len(self._names) * _LANE + 8, title, _LEFT)

    def draw(self) -> str:
        self._draw_grid()
        self._draw_areas()
        self._draw_division()
        self._draw_limits()
        for number, period in enumerate(self._timeline.periods):
            self._draw_event(number, period)
            self._draw_numbers(period)
        self._draw_lanes()
        return self._drawing.svg()

    def _x(self, second: float) -> float:
        return _LEFT + (_RIGHT - _LEFT) * min(second, self._seconds) / self._seconds

    def _y(self, rate: float) -> float:
        return self._bottom - _PLOT * rate / (self._timeline.capacity * _HEADROOM)

    def _draw_grid(self) -> None:
        rate = 0.0
        while rate <= self._timeline.capacity:
            self._drawing.line((_LEFT, self._y(rate)), (_RIGHT, self._y(rate)))
            self._drawing.text(_LEFT - 6, self._y(rate) + 4, f"{rate:g}", anchor="end")
            rate += _TICK_RATE
        self._drawing.text(_LEFT - 38, _TOP - 6, "MB/s")
        for second in range(0, int(self._seconds) + 1, _TICK_SECONDS):
            self._drawing.text(self._x(second), self._bottom + 16, f"{second} s", anchor="middle")

    def _draw_areas(self) -> None:
        below = [0.0] * len(self._timeline.rates[self._names[0]])
        for name in self._names:
            above = [low + rate for low, rate in zip(below, self._timeline.rates[name], strict=True)]
            self._drawing.shape([*self._edge(above), *reversed(self._edge(below))], self._colours[name], name)
            below = above

    def _edge(self, rates: Sequence[float]) -> list[tuple[float, float]]:
        """Each rate is drawn over its whole step."""
        step = self._timeline.step
        return [(self._x((number + end) * step), self._y(rate)) for number, rate in enumerate(rates) for end in (0, 1)]

    def _draw_division(self) -> None:
        for upper in range(1, len(self._names) + 1):
            points = []
            for period in self._timeline.periods:
                y = self._y(sum(period.division[name] for name in self._names[:upper]))
                points += [(self._x(period.begin), y), (self._x(period.end), y)]
            self._drawing.steps(points)

    def _draw_limits(self) -> None:
        capacity = self._timeline.capacity
        self._drawing.line((_LEFT, self._y(capacity)), (_RIGHT, self._y(capacity)), kind="mark")
        self._drawing.text(_RIGHT + 8, self._y(capacity) + 4, f"capacity: {capacity:g} MB/s", bold=True)
        self._drawing.text(_RIGHT + 8, self._y(capacity) + 22, "thin line: computed division")
        lowest = self._names[0]
        guarantee = self._timeline.groups[lowest].guarantee
        if guarantee is not None:
            y = self._y(guarantee)
            self._drawing.line((_LEFT, y), (_RIGHT, y), kind="mark", dashes="6 4")
            self._drawing.text(_RIGHT + 8, y + 4, f"guarantee of {lowest}: {guarantee:g} MB/s")

    def _draw_event(self, number: int, period: Period) -> None:
        x = self._x(period.begin)
        y = _TOP - 34 + 14 * (number % 2)
        self._drawing.line((x, y + 4), (x, self._bottom), kind="mark", dashes="1 3")
        name = period.event.split()[0]
        self._drawing.text(x + 3, y, period.event, bold=True, fill=self._colours.get(name, ""))

    def _draw_numbers(self, period: Period) -> None:
        """The measured rates, in the middle of each area that has room for them."""
        below = 0.0
        x = (self._x(period.begin) + self._x(period.end)) / 2
        for name in self._names:
            part = period.division[name]
            if self._y(0) - self._y(part) > _NUMBER_HEIGHT:
                self._draw_white(x, self._y(below + part * 0.42) + 5, f"{period.found[name]:.1f}", 14)
                if part == self._timeline.groups[name].ceiling:
                    self._draw_white(x, self._y(below + part) + 14, "ceiling", 11)
            below += part

    def _draw_white(self, x: float, y: float, words: str, size: int) -> None:
        self._drawing.text(x, y, words, anchor="middle", size=size, bold=True, fill="#ffffff")

    def _draw_lanes(self) -> None:
        for number, name in enumerate(self._names):
            y = self._bottom + _AXIS + number * _LANE
            for period in self._timeline.periods:
                if name in period.running:
                    width = self._x(period.end) - self._x(period.begin)
                    self._drawing.bar((self._x(period.begin), y), (width, _LANE - 8), self._colours[name], f"{name} runs")
            self._drawing.text(_RIGHT + 8, y + 11, name, bold=True, fill=self._colours[name])
            self._drawing.text(_RIGHT + 78, y + 11, self._timeline.groups[name].text())
