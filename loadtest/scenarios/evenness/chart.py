"""Draws a chart as hand-written SVG, without a browser or a plotting library."""

from collections.abc import Mapping, Sequence
from xml.sax.saxutils import escape

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
    height = _TOP + len(panels) * (_PANEL + _GAP)
    inner = _WIDTH - _LEFT - _RIGHT
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}">',
        '<g font-family="sans-serif" font-size="12" fill="#333">',
        f'<rect width="{_WIDTH}" height="{height}" fill="white"/>',
        f'<text x="{_LEFT}" y="20" font-size="15" font-weight="bold">{escape(title)}</text>',
    ]
    for number, (label, rates) in enumerate(panels.items()):
        top = _TOP + 20 + number * (_PANEL + _GAP)
        bottom = top + _PANEL
        colour = _COLOURS[number % len(_COLOURS)]
        step = inner / seconds
        parts.append(f'<text x="{_LEFT}" y="{top - 13}" font-weight="bold" fill="{colour}">{escape(label)}</text>')
        for part in (0.0, 0.5, 1.0, 1.5, 2.0):
            y = bottom - part * quota / highest * _PANEL
            parts.append(f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#e4e4e4"/>')
            parts.append(
                f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{part * quota / one:g} {escape(name)}</text>'
            )
        for second, rate in enumerate(rates[:seconds]):
            x, tall = _LEFT + second * step, min(rate, highest) / highest * _PANEL
            parts.append(
                f'<rect x="{x + 0.5:.1f}" y="{bottom - tall:.1f}" width="{step - 1:.1f}" height="{tall:.1f}" fill="{colour}">'
                f"<title>second {second + 1}: {rate / one:.2f} {escape(name)}</title></rect>"
            )
            if rate > highest:
                parts.append(
                    f'<path d="M{x + step / 2:.1f} {top - 8} l-3 5 h6 z" fill="{colour}"><title>beyond the scale</title></path>'
                )
        y = bottom - quota / highest * _PANEL
        parts.append(f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y}" y2="{y}" stroke="#222" stroke-dasharray="5 4"/>')
        parts.append(f'<text x="{_WIDTH - _RIGHT}" y="{y - 4}" text-anchor="end">quota</text>')
        for second in range(0, seconds + 1, _SECOND_TICK):
            x = _LEFT + second * step
            parts.append(f'<text x="{x:.1f}" y="{bottom + 16}" text-anchor="middle">{second} s</text>')
    parts.append("</g></svg>\n")
    return "\n".join(parts)
