"""`weir connections`: the open connections of a running gateway, as a table in the terminal."""

import argparse
import asyncio
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from gateway.command_parser import DEFAULT_ADMIN, url
from gateway.terminal_text import printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from gateway.admin.json_text import JsonObject

_SORTS: Final = ("bytes", "throttle", "since", "user", "client-id", "group", "software", "ip", "listener", "broker")

_ABOUT = """\
Shows the open connections of a running gateway, of all its workers. A row has the user, client-id and software (KIP-511)
of the client, its address, the listener and the broker. It also has the time of the connect, the bytes per second, and
the quota that throttles the client. The bytes per second are a mean over a second or more, so the answer takes a second.

A connection must match all given options. Names must be equal; --software and --text match a part of the text.

examples:
  weir connections --user alice --sort since
  weir connections --throttled --sort throttle
  weir connections --software librdkafka --json | jq -r '.rows[].software_version' | sort | uniq -c
"""


def add_connections(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    command = commands.add_parser(
        "connections",
        help="show who is connected",
        description=_ABOUT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument("--user", metavar="NAME", help="only connections of this user")
    command.add_argument("--client-id", metavar="NAME", help="only connections with this client-id")
    command.add_argument("--group", metavar="NAME", help="only connections of members of this group")
    command.add_argument("--ip", metavar="ADDRESS", help="only connections from this address")
    command.add_argument("--listener", metavar="NAME", help="only connections of this listener")
    command.add_argument("--broker", metavar="ID", help="only connections to the broker with this node id")
    command.add_argument("--software", metavar="TEXT", help="only clients whose software's name and version contain this text")
    command.add_argument("--text", metavar="TEXT", help="only connections with all these words in any column")
    command.add_argument("--throttled", action="store_true", help="only connections that are throttled now")
    command.add_argument("--sort", choices=_SORTS, default="bytes", help="the order (default: bytes, the most first)")
    command.add_argument("--reverse", action="store_true", help="the opposite order")
    command.add_argument("--limit", default="100", metavar="N", help="rows, from 1 to 1000 (default: 100)")
    command.add_argument("--offset", default="0", metavar="N", help="rows to skip (default: 0)")
    command.add_argument("--json", action="store_true", help="print the gateway's answer as JSON")
    command.add_argument("--admin", type=url, default=DEFAULT_ADMIN, metavar="URL", help=f"of the gateway ({DEFAULT_ADMIN})")
    command.set_defaults(run=_run, parser=command)


def query_of(options: argparse.Namespace) -> dict[str, str]:
    """The parameters of `/api/connections`."""
    given = {name: getattr(options, name.replace("-", "_")) for name in _FILTERS}
    query = {name: str(value) for name, value in given.items() if value is not None}
    query |= {name: "true" for name in ("throttled", "reverse") if getattr(options, name)}
    return query | {"sort": options.sort, "limit": options.limit, "offset": options.offset}


_FILTERS: Final = ("user", "client-id", "group", "ip", "listener", "broker", "software", "text")


def _run(options: argparse.Namespace) -> int:
    # Here, so that other commands start without them.
    from gateway.admin.admin_client import AdminUnreachableError, ask
    from gateway.admin.connection_list import ConnectionQuery
    from gateway.admin.query import QueryError
    from gateway.admin.table import stdout_console

    query = query_of(options)
    try:
        ConnectionQuery.parse(query)
    except QueryError as error:
        options.parser.error(f"--{error}")

    try:
        answer = asyncio.run(ask(options.admin, "/api/connections", query=tuple(query.items())))
    except AdminUnreachableError as error:
        print(error, file=sys.stderr)
        return 1
    if options.json:
        print(json.dumps(answer, indent=2))
    else:
        filters = [f"--{name} {query[name]}" for name in _FILTERS if name in query]
        print_connections(answer, stdout_console(), [*filters, *(["--throttled"] if options.throttled else [])])
    return 0


def print_connections(answer: "JsonObject", console: "Console", filters: Sequence[str] = ()) -> None:
    """`filters` are the options that select connections, with their values, for the message if none matches."""
    from rich.text import Text

    shown, matching = len(answer["rows"]), answer["matching"]
    if filters and not matching:
        reason = (
            f"no connection matches {' '.join(filters)}: names must be equal; --software and --text match a part of the text"
        )
        # In a str, rich would replace names such as :key:.
        console.print(Text(f"{answer['total']:,} open connections, and {reason}."))
        return
    console.print(_table(answer, console.width))
    if shown < matching:
        console.print(f"{shown:,} of {matching:,} matching connections: use filters, --limit or --offset to see others.")
    else:
        console.print(f"{matching:,} of {answer['total']:,} connections.")


def _table(answer: "JsonObject", width: int) -> "Table":
    from rich.table import Table
    from rich.text import Text

    table = Table(title=f"Connections at {answer['generated_at']}", title_justify="left", header_style="bold")
    columns = [name for name in _COLUMNS if width >= _WIDE or name not in _DISPENSABLE]
    if not any(row.get("group") for row in answer["rows"]):
        columns.remove("group")
    for name in columns:
        number = name in ("bytes/s", "broker", "time left")
        table.add_column(name, justify="right" if number else "left", overflow="fold", no_wrap=number)
    for row in answer["rows"]:
        style = "bold red" if row["throttled_by"] else ""
        table.add_row(*(Text(printable(_COLUMNS[name](row))) for name in columns), style=style)
    return table


def _time_left(row: "JsonObject") -> str:
    from gateway.quotas.snapshot import wait_text

    return wait_text(row["throttle_left"]) if row["throttled_by"] else ""


def _pace(row: "JsonObject") -> str:
    from gateway.quotas.kinds.kind import BYTES

    return BYTES.text(row["bytes_per_second"]) + "/s"


_COLUMNS: Final[Mapping[str, Callable[["JsonObject"], str]]] = {
    "user": lambda row: row["user"],
    "client-id": lambda row: row["client_id"],
    "group": lambda row: row.get("group", ""),
    "software": lambda row: f"{row['software_name']} {row['software_version']}".strip() or "-",
    "address": lambda row: row["address"],
    "listener": lambda row: row["listener"],
    "broker": lambda row: "-" if row["broker"] is None else str(row["broker"]),
    "since": lambda row: row["since"][:19].replace("T", " "),
    "bytes/s": _pace,
    "time left": _time_left,
    "throttled by": lambda row: row["throttled_by"],
}
_WIDE: Final = 120
_DISPENSABLE: Final = frozenset({"listener", "broker", "since"})
"""Columns that a terminal of less than `_WIDE` characters drops."""
