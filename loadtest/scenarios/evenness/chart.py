"""Draws the rates of each second beside a quota, in one panel for each way."""

from collections.abc import Mapping, Sequence

from loadtest.scenarios.svg import Drawing

_WIDTH, _PANEL, _TOP, _LEFT, _RIGHT, _GAP = 860, 150, 46, 70, 20, 54
_COLOURS = ("#c0392b", "#1f6fb2", "#7d7d7d")
_SECOND_TICK = 15


def chart(title: str, panels: Mapping[str, Sequence[float]], quota: float, unit: tuple[str, float], seconds: int) -> str:
    """An SVG with one panel for each label: its rates, one for each second, against the quota.

    All panels have the same scale. `unit` is a name and its size in bytes/s. Rates above twice the quota, during the burst,
    are cut off and marked.
    """
    name, one = unit
    highest = 2.0 * quota
    right = _WIDTH - _RIGHT
    drawing = Drawing(_WIDTH, _TOP + len(panels) * (_PANEL + _GAP), title, _LEFT)
    for number, (label, rates) in enumerate(panels.items()):
        top = _TOP + 20 + number * (_PANEL + _GAP)
        bottom = top + _PANEL
        colour = _COLOURS[number % len(_COLOURS)]
        step = (right - _LEFT) / seconds
        drawing.text(_LEFT, top - 13, label, bold=True, fill=colour)
        for part in (0.0, 0.5, 1.0, 1.5, 2.0):
            y = bottom - part * quota / highest * _PANEL
            drawing.line((_LEFT, y), (right, y))
            drawing.text(_LEFT - 6, y + 4, f"{part * quota / one:g} {name}", anchor="end")
        for second, rate in enumerate(rates[:seconds]):
            x, tall = _LEFT + second * step, min(rate, highest) / highest * _PANEL
            words = f"second {second + 1}: {rate / one:.2f} {name}"
            drawing.bar((x + 0.5, bottom - tall), (step - 1, tall), colour, words)
            if rate > highest:
                middle = x + step / 2
                drawing.shape([(middle, top - 8), (middle - 3, top - 3), (middle + 3, top - 3)], colour, "beyond the scale")
        y = bottom - quota / highest * _PANEL
        drawing.line((_LEFT, y), (right, y), kind="mark", dashes="5 4")
        drawing.text(right, y - 4, "quota", anchor="end")
        for second in range(0, seconds + 1, _SECOND_TICK):
            drawing.text(_LEFT + second * step, bottom + 16, f"{second} s", anchor="middle")
    return drawing.svg()
