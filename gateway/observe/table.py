"""`weir quotas`: who uses how much of which quota, as a table in the terminal."""

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import aiohttp
from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

REFRESH_SECONDS = 1.0

_TIMEOUT = aiohttp.ClientTimeout(total=5)
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_BAR_WIDTH = 20

Answer = Mapping[str, Any]


class AdminUnreachableError(Exception):
    """No answer from an admin server. The message names the URL and the remedy."""


async def show_quotas(admin: str, *, once: bool, as_json: bool, console: Console) -> None:
    """Print the table, again each second on a terminal unless `once`. Raises AdminUnreachableError."""
    async with aiohttp.ClientSession(timeout=_TIMEOUT) as session:
        answer = await _ask(session, admin)
        if as_json:
            console.print(json.dumps(answer, indent=2), markup=False, highlight=False, soft_wrap=True)
        elif once or not console.is_terminal:
            console.print(quota_table(answer))
        else:
            with Live(quota_table(answer), console=console, auto_refresh=False, screen=False) as live:
                while True:
                    await asyncio.sleep(REFRESH_SECONDS)
                    live.update(quota_table(await _ask(session, admin)), refresh=True)


async def _ask(session: aiohttp.ClientSession, admin: str) -> Answer:
    url = f"{admin.rstrip('/')}/api/quotas"
    try:
        async with session.get(url) as response:
            response.raise_for_status()
            answer = await response.json()
            if not isinstance(answer, dict) or not isinstance(answer.get("rows"), list):
                raise AdminUnreachableError(f"{url} answers, but not as Weir does — name Weir's admin address with --admin")
            return answer
    except (aiohttp.ClientResponseError, ValueError) as error:
        raise AdminUnreachableError(
            f"{url} answers, but not as Weir does ({error}) — name Weir's admin address with --admin"
        ) from None
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        reason = str(error) or "no answer in time"
        raise AdminUnreachableError(
            f"{url} can't be reached: {reason} — start the gateway, or name its admin.host and admin.port with --admin"
        ) from None


def quota_table(answer: Answer) -> Group:
    """What `/api/quotas` answers, as a table with the greediest first."""
    table = Table(title=f"Quotas at {answer['generated_at']}", title_justify="left", header_style="bold")
    for name, justify in _COLUMNS.items():
        table.add_column(name, justify=justify, overflow="fold", no_wrap=name not in {"user", "client-id or ip", "limit from"})  # type: ignore[arg-type]
    units = answer["units"]
    for row in sorted(answer["rows"], key=lambda row: (-row["used_ratio"], -row["rate"], row["kind"], row["user"])):
        table.add_row(*_cells(row, per_second(units.get(row["kind"], ""))), style=_style(row))
    notes: list[Text] = []
    if not answer["rows"]:
        notes.append(Text("No client has used a quota yet."))
    if not answer["enforce"]:
        notes.append(Text("quotas.enforce is false: nobody is delayed; throttled is what would have been.", style="yellow"))
    return Group(table, *notes)


_COLUMNS = {
    "kind": "left",
    "user": "left",
    "client-id or ip": "left",
    "rate": "right",
    "limit": "right",
    "used": "left",
    "throttled": "right",
    "early": "right",
    "time left": "right",
    "limit from": "left",
}


def per_second(unit: str) -> Callable[[float], str]:
    """How a rate in a kind's unit is written: bytes with a binary prefix, anything else as a plain number."""
    return (lambda rate: f"{human_bytes(rate)}/s") if unit == "bytes" else (lambda rate: f"{rate:,.1f}/s")


def human_bytes(count: float) -> str:
    """Bytes with three digits or so: `0 B`, `999 B`, `1.00 MiB`."""
    for unit in _UNITS:
        if count < 1023.5 or unit == _UNITS[-1]:
            break
        count /= 1024
    digits = 0 if unit == "B" or count >= 100 else 1 if count >= 10 else 2
    return f"{count:.{digits}f} {unit}"


def _cells(row: Answer, rate: Callable[[float], str]) -> Sequence[str | Text | Table]:
    used: str | Table = ""
    if row["limit"] is not None:
        used = Table.grid(padding=(0, 1))
        full = ProgressBar(total=1.0, completed=min(row["used_ratio"], 1.0), width=_BAR_WIDTH)
        used.add_row(full, f"{row['used_ratio']:4.0%}")
    return (
        row["kind"],
        Text(printable(row["user"])),
        Text(printable(row["client_id"] or row["ip"])),
        rate(row["rate"]),
        "" if row["limit"] is None else rate(row["limit"]),
        used,
        f"{row['throttled_total']:,}",
        f"{row['early_total']:,}, by {row['early_seconds_max']:.1f} s" if row["early_total"] else "",
        f"{row['throttle_left']:.1f} s" if row["throttle_left"] > 0 else "",
        Text(printable(f"{row['source']}: {row['level']}" if row["source"] else "")),
    )


def printable(name: str) -> str:
    """A client's name without the control characters by which it could take over the terminal."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in name)


def _style(row: Answer) -> str:
    return "bold red" if row["throttle_left"] > 0 else ""
