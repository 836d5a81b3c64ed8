"""Hand-written SVG, without a browser or a plotting library. It follows the reader's light or dark mode."""

from collections.abc import Iterable
from xml.sax.saxutils import escape

_STYLE = """<style>
.page { fill: #ffffff } .text { fill: #333333 } .grid { stroke: #e4e4e4 } .mark { stroke: #222222 }
@media (prefers-color-scheme: dark) {
  .page { fill: #1e2129 } .text { fill: #d8d8d8 } .grid { stroke: #3a3e48 } .mark { stroke: #f0f0f0 }
}
</style>"""


class Drawing:
    """Draws from the back to the front. Lengths are in pixels; y grows downwards."""

    def __init__(self, width: int, height: int, title: str, x: float) -> None:
        """The title begins at `x`."""
        box = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
        self._parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" {box} role="img" aria-label="{escape(title)}">',
            _STYLE,
            '<g font-family="sans-serif" font-size="12">',
            f'<rect class="page" width="{width}" height="{height}"/>',
        ]
        self.text(x, 20, title, size=15, bold=True)

    def svg(self) -> str:
        return "\n".join([*self._parts, "</g></svg>\n"])

    def text(
        self, x: float, y: float, words: str, *, anchor: str = "start", size: int = 12, bold: bool = False, fill: str = ""
    ) -> None:
        """`fill` is a colour; without one, the text follows the mode."""
        look = f'fill="{fill}"' if fill else 'class="text"'
        weight = ' font-weight="bold"' if bold else ""
        place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}"'
        self._parts.append(f"<text {place}{weight} {look}>{escape(words)}</text>")

    def line(self, start: tuple[float, float], end: tuple[float, float], *, kind: str = "grid", dashes: str = "") -> None:
        """`kind` is "grid" or "mark"."""
        dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
        (x1, y1), (x2, y2) = start, end
        self._parts.append(f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"{dashed}/>')

    def steps(self, points: Iterable[tuple[float, float]]) -> None:
        """A line of the kind "mark" through the points."""
        through = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self._parts.append(f'<polyline class="mark" fill="none" points="{through}"/>')

    def bar(self, corner: tuple[float, float], size: tuple[float, float], fill: str, words: str) -> None:
        """A rectangle from its upper left corner. A pointer over it shows the words."""
        (x, y), (width, height) = corner, size
        self._parts.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{fill}">'
            f"<title>{escape(words)}</title></rect>"
        )

    def shape(self, points: Iterable[tuple[float, float]], fill: str, words: str) -> None:
        outline = "M" + " L".join(f"{x:.1f} {y:.1f}" for x, y in points) + " z"
        self._parts.append(f'<path d="{outline}" fill="{fill}"><title>{escape(words)}</title></path>')
