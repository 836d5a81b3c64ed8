"""Markdown of the generated pages."""

from collections.abc import Iterable, Sequence

GENERATED = "<!-- Written by .ci/reference: change the code, then run `python .ci/reference`. -->\n"


def below_title(text: str) -> str:
    """The page with the mark of generated files below its heading: mkdocs takes a title only from the first line."""
    title, _, rest = text.partition("\n")
    return f"{title}\n\n{GENERATED}{rest}"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *([cell.replace("|", "\\|").replace("\n", " ") for cell in row] for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def code(text: str) -> str:
    """A code span; the empty text stays empty."""
    return f"`{text}`" if text else ""


def anchor(path: str) -> str:
    """The id of a section's heading: `listeners[].tls` becomes `listeners-tls`."""
    return path.replace("[]", "").replace(".", "-")
