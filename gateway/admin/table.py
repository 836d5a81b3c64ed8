"""`weir quotas`: the use of each quota, as a table in the terminal."""

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress

from rich.console import Console, Group, JustifyMethod, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from gateway.admin.admin_client import ask
from gateway.admin.configured import CONFIGURED
from gateway.admin.json_text import JsonObject
from gateway.quotas.entity import OTHER
from gateway.quotas.kinds import BY_CONFIG_KEY, KINDS
from gateway.quotas.snapshot import EXEMPT, is_throttled, wait_text
from gateway.terminal_text import printable

REFRESH_SECONDS = 1.0

_PIPE_WIDTH = 180
"""Rich assumes 80 columns for a pipe, too few for the tables."""
_BAR_WIDTH = 20


class _StdoutConsole(Console):
    def on_broken_pipe(self) -> None:
        raise BrokenPipeError  # the command line ends as after `print`; Rich would exit with 1


def stdout_console() -> Console:
    return _StdoutConsole(width=None if sys.stdout.isatty() else _PIPE_WIDTH)


async def show_quotas(admin: str, *, once: bool, as_json: bool, console: Console, unused: bool = False) -> None:
    """Print the table, again each second on a terminal unless `once`. Raises AdminUnreachableError.

    With `unused`, a second table has the configured quotas that no client has used lately.
    """

    async def answer() -> JsonObject:
        usage = await ask(admin)
        return {**usage, "unused": unused_quotas(usage, await ask(admin, CONFIGURED))} if unused else usage

    await show(answer, lambda found: quota_table(found, console.width), console, once=once, as_json=as_json)


async def show(
    answer: Callable[[], Awaitable[JsonObject]],
    draw: Callable[[JsonObject], RenderableType],
    console: Console,
    *,
    once: bool,
    as_json: bool,
) -> None:
    """Print the answer as JSON, or draw it: on a terminal again each second until it is cancelled, unless `once`."""
    if as_json:
        print(json.dumps(await answer(), indent=2))  # not by rich, which replaces names such as :key:
    elif once or not console.is_terminal:
        console.print(draw(await answer()))
    else:
        with (
            Live(draw(await answer()), console=console, auto_refresh=False, screen=False) as live,
            suppress(asyncio.CancelledError),  # Ctrl-C is the ordinary end of a table that is shown
        ):
            while True:
                await asyncio.sleep(REFRESH_SECONDS)
                live.update(draw(await answer()), refresh=True)


def unused_quotas(usage: JsonObject, configured: JsonObject) -> list[JsonObject]:
    """The configured quotas without a row in the answer of `/api/quotas`: no client has used them lately."""
    used = {(row.get("key"), row["level"], row.get("shadow", False)) for row in usage["rows"]}
    exempt = {row["level"] for row in usage["rows"] if row["level"].endswith(EXEMPT)}
    return [
        row
        for row in configured["rows"]
        if (row["entity"] + EXEMPT not in exempt if row["exempt"] else (row["key"], row["entity"], row["shadow"]) not in used)
    ]


async def forgive_debts(admin: str, wanted: Mapping[str, str]) -> None:
    """Clear the debts of the clients that `wanted` names, and print the debts. Raises AdminUnreachableError."""
    answer = await ask(admin, "/api/quotas/forgive", "cleared", wanted)
    for debt in answer["cleared"]:
        place = f" at broker {debt['broker']}" if debt.get("broker") else ""
        if debt.get("user") == OTHER:  # a client of this name has a backslash in front of it
            names = f"the shared bucket {OTHER} of {printable(debt['client_id'])}"
        else:
            parts = (("user", "user"), ("client-id", "client_id"), ("group", "group"))
            names = ", ".join(f"{name} {printable(debt[key])}" for name, key in parts if debt.get(key))
        print(f"cleared {debt['seconds']:.1f} s of {debt['kind']} for {names}{place}")
    if not answer["cleared"]:
        print("nothing to clear: no client or group of this name is in debt. `weir quotas` shows the names.")


def quota_table(answer: JsonObject, width: int) -> Group:
    """The answer of `/api/quotas` as a table of at most `width` characters, with the highest used ratio first."""
    rows = sorted(answer["rows"], key=lambda row: (-row["used_ratio"], -row["rate"], row["kind"], row["user"]))
    lines = [_cells(row, formatter(row["kind"])) for row in rows]
    columns = [name for name in _COLUMNS if name != _BROKER or any(line[name] for line in lines)]
    widths = {name: max([len(name), *(len(line[name]) for line in lines)]) for name in columns}
    left_out = _left_out(widths, width)
    table = Table(title=f"Quotas at {answer['generated_at']}", title_justify="left", header_style="bold")
    shown = [name for name in columns if name not in left_out]
    for name in shown:
        least = _least(name, widths[name])
        table.add_column(name, justify=_COLUMNS[name], overflow="fold", no_wrap=name not in _FOLDED, min_width=least)
    for row, line in zip(rows, lines, strict=True):
        cells: dict[str, Text | Table] = {name: Text(text) for name, text in line.items()}
        if _BAR not in left_out and line["used"]:
            cells["used"] = _bar(row["used_ratio"], line["used"])
        table.add_row(*(cells[name] for name in shown), style=_style(row))
    notes: list[Text] = []
    if not answer["rows"]:
        notes.append(Text("No client has used a quota yet."))
    if not answer["enforce"]:
        notes.append(Text("quotas.enforce is false: no client is delayed; throttles are only counted.", style="yellow"))
    if "early" not in left_out and any(row["early_total"] for row in answer["rows"]):
        notes.append(Text("early: requests that came before their client's throttle time was over, and the largest lead."))
    if any(row.get("shadow") for row in answer["rows"]):
        notes.append(
            Text("shadow: a limit that delays nobody. It shows how many requests it would throttle, and for how long.")
        )
    if answer.get("shared"):
        notes.append(Text("Gateways share these quotas: rate is the use through this gateway, used that of all gateways."))
    return Group(table, *([_unused_table(answer["unused"])] if "unused" in answer else []), *notes)


def _unused_table(rows: Sequence[JsonObject]) -> Table | Text:
    if not rows:
        return Text("Every configured quota was used lately.")
    table = Table(title="Configured quotas without recent use", title_justify="left", header_style="bold")
    table.add_column("entity", overflow="fold")
    table.add_column("quota")
    table.add_column("limit", justify="right")
    table.add_column("set in", overflow="fold")
    for row in rows:
        kind = BY_CONFIG_KEY.get(row["key"])
        limit = "" if row["limit"] is None else kind.text(row["limit"]) if kind else f"{row['limit']:,.0f} {row['unit']}"
        key = f"shadow {row['key']}" if row["shadow"] else row["key"] or "exempt"
        table.add_row(Text(printable(row["entity"])), key, limit, Text(row["set_in"]))
    return table


def _left_out(widths: Mapping[str, int], width: int) -> set[str]:
    """Columns to drop in a narrow terminal, so that the entity stays visible."""
    needed = {name: _least(name, longest) + _BORDER for name, longest in widths.items()} | {_BAR: _BAR_WIDTH + 1}
    left_out: set[str] = set()
    for name in _DISPENSABLE:
        if sum(needed.values()) + 1 - sum(needed[each] for each in left_out) <= width:
            break
        left_out.add(name)
    return left_out


def _least(name: str, longest: int) -> int:
    return min(longest, _FOLDED_WIDTH) if name in _FOLDED else longest


_COLUMNS: dict[str, JustifyMethod] = {
    "kind": "left",
    "user": "left",
    "client-id or ip": "left",
    "broker": "right",
    "rate": "right",
    "limit": "right",
    "used": "left",
    "throttled": "right",
    "early": "right",
    "time left": "right",
    "since": "left",
    "quota that binds": "left",
    "addresses": "left",
}
_BAR = "bar"
"""The bar in the column `used`, beside the percentage."""
_BROKER = "broker"
"""The column of the broker that a row is for. No row has one without `quotas.scope: broker`."""
_DISPENSABLE = ("addresses", "early", "since", _BAR, "throttled", "quota that binds", "time left", "limit")
"""Columns that a narrow terminal drops, in this order."""
_FOLDED = frozenset({"kind", "user", "client-id or ip", "quota that binds", "addresses"})
"""Columns with cells of several lines."""
_FOLDED_WIDTH = 12
"""The minimum width of these columns, in characters."""
_BORDER = 3
_SHOWN_ADDRESSES = 3


def formatter(kind: str) -> Callable[[float], str]:
    """The text of amounts of a kind. A gateway of a later version may have kinds that this registry does not know."""
    known = KINDS.get(kind)
    return (lambda rate: f"{rate:,.1f}/s") if known is None else known.text


def _cells(row: JsonObject, rate: Callable[[float], str]) -> dict[str, str]:
    return {
        "kind": row["kind"],
        "user": printable(row["user"]),
        "client-id or ip": printable(row["client_id"] or row["ip"] or (f"group {row['group']}" if row.get("group") else "")),
        "broker": row.get("broker", ""),
        "rate": rate(row["rate"]),
        "limit": "" if row["limit"] is None else rate(row["limit"]),
        "used": "" if row["limit"] is None else f"{row['used_ratio']:4.0%}",
        "throttled": _throttled(row),
        "early": f"{row['early_total']:,}, by {wait_text(row['early_seconds_max'])}" if row["early_total"] else "",
        "time left": wait_text(row["throttle_left"]) if row["throttle_left"] > 0 else "",
        "since": (row.get("throttled_since") or "")[11:19],
        "quota that binds": printable(_binding(row)),
        "addresses": printable(", ".join(row.get("addresses", ())[-_SHOWN_ADDRESSES:])),
    }


def _throttled(row: JsonObject) -> str:
    """The number of throttled requests. A gateway of version 0.2.0 or older does not count the unenforced ones apart."""
    unenforced = row.get("unenforced_total", 0)
    if row.get("shadow"):
        return f"{unenforced:,} would be, {wait_text(row['throttle_seconds_total'])}" if unenforced else "0"
    return f"{row['throttled_total']:,}" + (f", {unenforced:,} unenforced" if unenforced else "")


def _binding(row: JsonObject) -> str:
    """The key, the entity and the place of the quota: `producer_byte_rate of user=alice (weir.yaml:12)`.

    A gateway of version 0.1 names neither the key nor the place.
    """
    if not row["source"]:
        return ""
    key = "" if row["limit"] is None or "key" not in row else f"{'shadow ' if row.get('shadow') else ''}{row['key']} of "
    return f"{key}{row['level']} ({row.get('set_in', row['source'])})"


def _bar(ratio: float, percent: str) -> Table:
    grid = Table.grid(padding=(0, 1))
    grid.add_row(ProgressBar(total=1.0, completed=min(ratio, 1.0), width=_BAR_WIDTH), percent)
    return grid


def _style(row: JsonObject) -> str:
    return "bold red" if is_throttled(row["throttle_left"], row.get("unthrottled_seconds")) else ""
