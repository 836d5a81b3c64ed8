"""`weir quotas --groups`: the parts of groups that share a capacity, as a table in the terminal."""

from rich.console import Console
from rich.table import Table
from rich.text import Text

from gateway.admin.admin_client import ask
from gateway.admin.group_list import GROUPS
from gateway.admin.json_text import JsonObject
from gateway.admin.table import formatter, show
from gateway.terminal_text import printable


async def show_groups(admin: str, *, once: bool, as_json: bool, console: Console) -> None:
    """Print the table, again each second on a terminal unless `once`. Raises AdminUnreachableError."""
    await show(lambda: ask(admin, GROUPS, "groups"), group_table, console, once=once, as_json=as_json)


def group_table(answer: JsonObject) -> Table | Text:
    """The answer of `/api/groups`. Groups below others are indented."""
    rows = answer["groups"]
    if not rows:
        return Text("No groups share a capacity. Give groups in quotas.groups a parent with a ceiling.")
    table = Table(title="Groups that share a capacity", title_justify="left", header_style="bold")
    table.add_column("kind")
    table.add_column("group", overflow="fold")
    for name in ("use", "present share", "lends or borrows", "entitlement", "guarantee", "weight", "ceiling"):
        table.add_column(name, justify="right")
    table.add_column("wants more")
    below: dict[tuple[str, str], list[JsonObject]] = {}
    for row in rows:
        below.setdefault((row["kind"], row["parent"]), []).append(row)
    for kind in dict.fromkeys(row["kind"] for row in rows):
        _add(table, below, kind, "")
    return table


def _add(table: Table, below: dict[tuple[str, str], list[JsonObject]], kind: str, parent: str) -> None:
    """Add the groups below `parent`, each before the groups below it."""
    rate = formatter(kind)
    for row in below.get((kind, parent), []):
        table.add_row(
            kind if not parent else "",
            Text("  " * row["level"] + printable(row["group"])),
            rate(row["use"]),
            rate(row["allocation"]),
            f"+{rate(row['borrowed'])}" if row["borrowed"] else f"-{rate(row['lent'])}" if row["lent"] else "",
            rate(row["entitlement"]),
            rate(row["guarantee"]) if row["guarantee"] else "",
            f"{row['weight']:g}" if parent else "",
            "" if row["ceiling"] is None else rate(row["ceiling"]),
            "yes" if row["wants_more"] else "",
            style="yellow" if row["wants_more"] else "",
        )
        _add(table, below, kind, row["group"])
