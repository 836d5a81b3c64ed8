"""Reads the report page with Python's own HTML parser: its tables by section, its index, its ids, links and scripts."""

import re
from dataclasses import dataclass, field
from html.parser import HTMLParser

COUNTS = frozenset(
    {"throttles", "throttles not enforced", "requests", "requests or connections", "minutes", "rejected requests", "broker id"}
    | {"reporting gateways", "throttles before", "throttles after", "config version", "days with use"}
)
"""Headings of numbers without a unit."""


@dataclass
class Table:
    """The text of a table's cells. `numbers` are the places of the cells with numbers."""

    heads: list[str] = field(default_factory=list)
    rows: list[list[str]] = field(default_factory=list)
    numbers: list[tuple[int, int]] = field(default_factory=list)

    def check(self) -> None:
        """Each row has a cell for each head, and each number has its unit in its head or in its cell."""
        assert self.heads
        assert all(self.heads)
        assert len(set(self.heads)) == len(self.heads)
        assert {len(row) for row in self.rows} == {len(self.heads)}
        for row, column in self.numbers:
            head, cell = self.heads[column], self.rows[row][column]
            assert head in COUNTS or re.search(r"\(.+\)$", head) or re.search(r"\d [A-Za-z]+(/s)?$", cell), (head, cell)

    def row(self, **cells: str) -> dict[str, str]:
        """The only row with these cells, by head. A space in a head is an underscore in the keyword."""
        wanted = {head.replace("_", " "): cell for head, cell in cells.items()}
        rows = [dict(zip(self.heads, row, strict=True)) for row in self.rows]
        (found,) = [row for row in rows if wanted.items() <= row.items()]
        return found


class Html(HTMLParser):
    """A parsed page. `index` has each line of the findings with its link."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.scripts: list[str] = []
        self.style = ""
        self.links: list[str] = []
        self.ids: list[str] = []
        self.widths: list[str] = []
        self.tables: dict[str, Table] = {}
        self.small_tables: list[Table] = []
        self.index: list[tuple[str, str]] = []
        self._section = ""
        self._in: list[str] = []
        self._table = Table()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.links += [given[name] for name in ("src", "href") if name in given]
        self.widths += [
            given[name] for name in ("width", "style") if "width" in f"{name}:{given.get(name, '')}" and name in given
        ]
        if "id" in given:
            assert given["id"] not in self.ids
            self.ids.append(given["id"])
        if tag in ("section", "nav"):
            self._section = given.get("id", "")
        elif tag == "table":
            self._table = Table()
            if "rows" in given["class"].split():
                self.tables[self._section] = self._table
            else:
                self.small_tables.append(self._table)
        elif tag == "tr" and "tbody" in self._in:
            self._table.rows.append([])
        elif tag == "th":
            self._table.heads.append("")
        elif tag == "td":
            row = self._table.rows[-1]
            row.append("")
            if given.get("class") == "number":
                self._table.numbers.append((len(self._table.rows) - 1, len(row) - 1))
        elif tag == "script":
            self.scripts.append("")
        elif tag == "li" and self._section == "findings":
            self.index.append(("", ""))
        elif tag == "a" and "li" in self._in and self._section == "findings":
            self.index[-1] = "", given["href"]
        if tag not in ("meta", "link", "input"):
            self._in.append(tag)

    def handle_endtag(self, tag: str) -> None:
        while self._in and self._in.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        if "script" in self._in:
            self.scripts[-1] += data
        elif "style" in self._in:
            self.style += data
        elif "th" in self._in:
            self._table.heads[-1] += data
        elif "td" in self._in:
            self._table.rows[-1][-1] += data
        elif "li" in self._in and self._section == "findings":
            text, link = self.index[-1]
            self.index[-1] = text + data, link
