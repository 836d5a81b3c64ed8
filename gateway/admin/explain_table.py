"""`weir explain`: the quotas of one client, as text."""

from collections.abc import Iterator, Sequence
from typing import Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from gateway.admin.admin_client import ask
from gateway.admin.entity_page import EXPLAIN
from gateway.admin.explanation import ClientNames
from gateway.admin.json_text import JsonObject
from gateway.admin.table import formatter
from gateway.quotas.snapshot import wait_text
from gateway.terminal_text import printable

_NUMBERS: Final = frozenset({"limit", "value", "use now", "used", "time left"})
"""Columns on the right."""


async def ask_explanation(admin: str, client: ClientNames) -> JsonObject:
    """The explanation of a running gateway. Raises AdminUnreachableError."""
    names = [("user", client.user), ("client-id", client.client_id), ("ip", client.ip)]
    names += [("claim", claim) for claim in client.claims] + [("catch-up", "")] * client.catch_up
    return await ask(admin, EXPLAIN, "quotas", query=names)


def print_explanation(answer: JsonObject, console: Console) -> None:
    # A gateway of version 0.2.0 answers without claims, catch-up, groups, shadow limits and brokers.
    client = answer["client"]
    names = [f"user {client['user']}", f"client-id {client['client_id'] or '(empty)'}"]
    names += [f"ip {client['ip']}"] if client["ip"] else []
    names += [f"claim {claim}" for claim in client.get("claims", ())] + ["catching up"] * client.get("catch_up", False)
    console.print(Text(f"Quotas of {printable(', '.join(names))}", style="bold"))
    if not answer["enforce"]:
        console.print(Text("quotas.enforce is false: no client is delayed; throttles are only counted.", style="yellow"))
    for note in answer.get("notes", ()):
        console.print(Text(printable(note), style="yellow"))
    group = answer.get("group")
    if group is not None:
        text = f"Member of group {group['name']} ({group['set_in']}) by the rule {group['rule']}"
        console.print(Text(printable(text)))
        if len(group.get("path", ())) > 1:
            console.print(Text(printable(f"Group path: {' > '.join(group['path'])}")))
        for share in group.get("shares", ()):
            console.print(Text(printable(_share(share))))
    console.print(_quotas(answer))
    overruled = [(quota, each) for quota in answer["quotas"] for each in quota["candidates"] if not each["applies"]]
    if overruled:
        console.print(_overruled(overruled))
    if answer.get("shadows"):
        console.print(_shadows(answer))
    console.print(_connections(answer))
    for line in _sections(answer):
        console.print(Text(printable(line)))
    console.print(Text("\nWhich quota binds", style="bold"))
    for line in answer["binds"]:
        console.print(Text(printable(line)))


def _share(share: JsonObject) -> str:
    rate = formatter(share["kind"])
    guarantee = f"the guarantee {rate(share['guarantee'])} and " if share["guarantee"] else ""
    text = f"{share['key']}: all members may use {rate(share['entitlement'])} at any time, by {guarantee}the weight"
    text += f" {share['weight']:g}"
    if share["entitlement"] >= share["ceiling"]:
        return f"{text}: that is their ceiling"
    return f"{text}, and up to {rate(share['ceiling'])} while other groups do not use their part"


def _quotas(answer: JsonObject) -> Table:
    running = answer["running"]
    use_columns = ("use now", "used", "time left", "since") if running else ()
    table = _table(None, "quota", "limit", "of entity", "shared by", "set in", *use_columns)
    for quota in answer["quotas"]:
        rate = formatter(quota["kind"])
        limit = "exempt" if quota["exempt"] else "no limit" if quota["limit"] is None else rate(quota["limit"])
        cells = [quota["key"], limit, quota["entity"] or "-", _sharers(quota), quota["set_in"] or "-"]
        style = ""
        if running:
            use = quota["use"]
            style = "bold red" if use is not None and use["throttle_left"] > 0.0 else ""
            cells += ["-"] * 4 if use is None else [
                rate(use["rate"]),
                "-" if quota["limit"] is None else f"{use['used_ratio']:.0%}",
                wait_text(use["throttle_left"]) if use["throttle_left"] > 0.0 else "-",
                use["throttled_since"] or "-",
            ]  # fmt: skip
        _add_row(table, cells, style)
    return table


def _table(title: str | None, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", header_style="bold")
    for name in columns:
        table.add_column(name, overflow="fold", justify="right" if name in _NUMBERS else "left")
    return table


def _add_row(table: Table, cells: Sequence[str], style: str = "") -> None:
    table.add_row(*(Text(printable(cell)) for cell in cells), style=style)


def _sharers(quota: JsonObject) -> str:
    """The clients that share the quota's bucket, and its broker."""
    if quota["limit"] is None:
        return "-"
    broker = (quota["use"] or {}).get("broker")
    place = "" if not quota.get("at_each_broker") else f", at broker {broker}" if broker else ", at each broker"
    return _clients(quota["bucket"]) + place


def _clients(bucket: JsonObject) -> str:
    if bucket["ip"]:
        return "this address"
    if bucket.get("group"):
        return f"all members of group {bucket['group']}"
    if not bucket["client_id"]:
        return f"all clients of user {bucket['user']}"
    return "this client-id of all users" if not bucket["user"] else "this user and client-id"


def _overruled(values: list[tuple[JsonObject, JsonObject]]) -> Table:
    table = _table("Overruled values", "quota", "value", "of entity", "set in", "reason")
    for quota, each in values:
        value = "exempt" if each["limit"] is None else formatter(quota["kind"])(each["limit"])
        _add_row(table, (quota["key"], value, each["entity"], each["set_in"], each["reason"]))
    return table


def _shadows(answer: JsonObject) -> Table:
    running = answer["running"]
    use_columns = ("used", "would have throttled") if running else ()
    title = "Shadow limits: measured, never enforced"
    table = _table(title, "quota", "limit", "of entity", "shared by", "set in", *use_columns)
    for quota in answer["shadows"]:
        use = quota["use"]
        limit = formatter(quota["kind"])(quota["limit"])
        cells = [quota["key"], limit, quota["entity"], _sharers(quota), quota["set_in"]]
        if running:
            cells += ["-", "-"] if use is None else [
                f"{use['used_ratio']:.0%}",
                f"{use['throttled_total']:,} requests, {use['throttle_seconds_total']:,.1f} s in sum",
            ]  # fmt: skip
        _add_row(table, cells)
    return table


def _connections(answer: JsonObject) -> Table:
    table = _table("Limits on connections", "scope", "limit", "key", "set in")
    for each in answer["connections"]:
        _add_row(table, (each["scope"], f"{each['limit']:,} {each['unit']}", each["key"], each["set_in"]))
    return table


def _sections(answer: JsonObject) -> Iterator[str]:
    topics, volumes = answer["topics"], answer["volumes"]
    if topics is None:
        yield "Topic quotas: not configured."
    elif topics["exempt_by"]:
        yield f"Topic quotas: exempt by {topics['exempt_by']}."
    else:
        place = " at their broker" if topics.get("at_each_broker") else ""
        number = len(topics["explicit"])
        having = f"{number} topic has" if number == 1 else f"{number} topics have"
        yield (
            f"Topic quotas ({topics['set_in']}): Weir rejects batches of a topic over its threshold while all topics are over"
            f" {topics['total']:,} {topics['unit']}{place}. {having} an explicit threshold."
            f"{'' if topics['enforce'] else ' The quotas are not enforced.'}"
        )
    if volumes is None:
        yield "Volume quotas: not configured."
    elif volumes["exempt_by"]:
        yield f"Volume quotas: exempt by {volumes['exempt_by']}."
    else:
        yield (
            f"Volume quotas ({volumes['set_in']}): producers are delayed from {volumes['soft']}, paused from {volumes['hard']}"
            f"{'' if volumes['enforce'] else '; not enforced'}."
        )
