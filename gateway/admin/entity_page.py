"""`/entities` and `/api/entities`: the quotas of one entity, for its tenant. `/api/explain`: the quotas of one client.

The page of an entity shows nothing of other entities. It has no links and no script, so an operator can send it as a file.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from html import escape
from importlib.resources import files
from string import Template
from typing import Any, Final, NamedTuple

from aiohttp import web

from gateway.admin.explanation import ClientNames
from gateway.admin.http import Page, json_page
from gateway.admin.json_text import JsonObject
from gateway.admin.query import QueryError, check_names, read_address
from gateway.admin.rows import EARLY
from gateway.quotas.entity import ANONYMOUS, OTHER, short_name
from gateway.quotas.kinds import KINDS
from gateway.quotas.snapshot import is_throttled, wait_text

EXPLAIN: Final = "/api/explain"
_PARAMETERS: Final = ("user", "client-id", "ip", "group")
_EXPLAIN_PARAMETERS: Final = ("user", "client-id", "ip", "claim", "catch-up")

MAX_ROWS: Final = 200
"""Quotas on one page. A user with many client-ids may have more buckets."""

_PAGE: Final = files("gateway.admin").joinpath("entity.html")
_POLICY: Final = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


class EntityUsage(NamedTuple):
    """The rows of `/api/quotas`, and their time (ISO 8601)."""

    rows: list[dict[str, Any]]
    enforce: bool
    at: str


class EntityNames(NamedTuple):
    """The entity of a request, by names as tables show them. None: the request has no such part."""

    user: str | None
    client_id: str | None
    ip: str | None
    group: str | None = None

    def __str__(self) -> str:
        parts = (("user", self.user), ("client-id", self.client_id), ("ip", self.ip), ("group", self.group))
        return ", ".join(f"{kind} {name or '(empty)'}" for kind, name in parts if name is not None)

    def owns(self, row: JsonObject) -> bool:
        """True if the bucket belongs to this entity alone.

        A user owns the buckets of all its client-ids. A client-id without a user owns only buckets that all of its users
        share, so that no other user is shown.
        """
        user, client_id, ip = row["user"], row["client_id"], row["ip"]
        if self.group is not None or row["group"]:
            return self.group is not None and self.group == row["group"]
        if OTHER in (user, client_id):
            return False
        if self.ip is not None and ip:
            return _named(self.ip, ip)
        if ip or (self.user is None and self.client_id is None):
            return False
        if self.user is not None and user and not _named(self.user, user):
            return False
        if self.client_id is not None and client_id and not _named(self.client_id, client_id):
            return False
        if self.user is None:
            return not user
        return bool(user) or self.client_id is not None


class EntityPages:
    """The pages of entities. `usage` should share one look among simultaneous requests, whichever entities they name."""

    def __init__(self, usage: Callable[[], Awaitable[EntityUsage]]) -> None:
        self._usage = usage

    def pages(self) -> dict[str, Page]:
        return {"/entities": self._html, "/api/entities": self._json}

    async def _html(self, request: web.Request) -> web.Response:
        entity, usage = _entity(request), await self._usage()
        text = await asyncio.to_thread(entity_page, entity, _owned(entity, usage), usage)
        return web.Response(text=text, content_type="text/html", headers={"Content-Security-Policy": _POLICY})

    async def _json(self, request: web.Request) -> web.Response:
        entity, usage = _entity(request), await self._usage()
        answer = {"user": entity.user, "client_id": entity.client_id, "ip": entity.ip, "group": entity.group}
        rows = _owned(entity, usage)
        return await json_page(
            {"generated_at": usage.at, "entity": answer, "enforce": usage.enforce, "early": EARLY, "rows": rows}
        )


def explain_page(explain: Callable[[ClientNames, str], Awaitable[Mapping[str, Any]]]) -> Page:
    """`explain` gets the client, and the query string of the request."""

    async def page(request: web.Request) -> web.Response:
        return await json_page(await explain(_client(request), request.rel_url.raw_query_string))

    return page


def _client(request: web.Request) -> ClientNames:
    """The client that a request names. Raises QueryError."""
    query = request.query
    check_names(query, _EXPLAIN_PARAMETERS)
    claims = tuple(query.getall("claim", ()))
    for claim in claims:
        if not all(claim.partition("=")):
            raise QueryError(f"claim: {claim!r} is not a claim: write one such as groups=payments")
    ip = query.get("ip", "")
    names = query.get("user", ANONYMOUS), query.get("client-id", ""), ip and read_address(ip)
    return ClientNames(*names, claims, "catch-up" in query)


def _entity(request: web.Request) -> EntityNames:
    """The entity that a request names. Raises QueryError."""
    check_names(request.query, _PARAMETERS)
    user, client_id, ip, group = (request.query.get(key) for key in _PARAMETERS)
    names = EntityNames(user, client_id, ip and read_address(ip), group)
    if not any(name is not None for name in names):
        raise QueryError(f"name an entity: {request.path}?user=NAME, ?client-id=NAME, both with &, ?ip=ADDRESS or ?group=NAME")
    return names


def _owned(entity: EntityNames, usage: EntityUsage) -> list[dict[str, Any]]:
    return [row for row in usage.rows if entity.owns(row)][:MAX_ROWS]


def _named(wanted: str, shown: str) -> bool:
    return wanted == shown or short_name(wanted) == shown


def entity_page(entity: EntityNames, rows: list[dict[str, Any]], usage: EntityUsage) -> str:
    """The page as HTML. Every name is escaped."""
    order = {name: index for index, name in enumerate(KINDS)}
    rows = sorted(rows, key=lambda row: (-row["throttle_left"], row["shadow"], order[row["kind"]], row["client_id"]))
    throttled = [row for row in rows if is_throttled(row["throttle_left"], row["unthrottled_seconds"])]
    if throttled:
        summary = f"Throttled now by {', '.join(dict.fromkeys(row['key'] for row in throttled))}."
    elif rows:
        summary = "Not throttled now."
    else:
        summary = "No recent use. Weir shows an entity after its first request, or its name is written differently."
    if not usage.enforce:
        summary += " Quotas are not enforced: throttles are only counted."
    return Template(_PAGE.read_text("utf-8")).substitute(
        entity=escape(str(entity)),
        at=escape(usage.at),
        summary=escape(summary),
        tone="bad" if throttled else "good",
        quotas="\n".join(map(_card, rows)),
        early=escape(EARLY),
    )


def _card(row: JsonObject) -> str:
    kind = KINDS[row["kind"]]
    limited = row["limit"] is not None
    facts = [("Use now", kind.text(row["rate"]))]
    if limited:
        facts.append(("Shadow limit" if row["shadow"] else "Limit", f"{kind.text(row['limit'])} ({row['key']})"))
        begins = "it would throttle from 100% on" if row["shadow"] else "throttling begins at 100%"
        facts.append(("Used", f"{row['used_ratio']:.0%} of the {_whole(row)}; {begins}"))
        facts.append(("Quota of entity", row["level"]))
        facts.append(("Set in", row["set_in"]))
    else:
        facts.append(("Limit", "none" if not row["level"] else f"none: {row['level']}"))
    if row["throttle_left"] > 0.0:
        facts.append(("Next request waits", wait_text(row["throttle_left"])))
    if row["throttled_since"]:
        facts.append((_since(row), row["throttled_since"]))
    if row["shadow"]:
        words = f"{_requests(row['throttled_total'])}, {row['throttle_seconds_total']:,.1f} s in sum"
        facts.append(("Would have throttled", words if row["throttled_total"] else "nothing; a shadow limit delays nobody"))
    elif row["throttled_total"]:
        words = f"{_requests(row['throttled_total'])}, {row['throttle_seconds_total']:,.1f} s in sum"
        words += f"; {row['unenforced_total']:,} of them not enforced" if row["unenforced_total"] else ""
        facts.append(("Throttled so far", words))
    if row["early_total"]:
        facts.append(("Too early", f"{_requests(row['early_total'])}, by up to {wait_text(row['early_seconds_max'])}"))
    facts.append(("Connections", f"{row['connections']:,}"))
    if row["addresses"]:
        facts.append(("Addresses" if row["shadow"] else "Throttled addresses", ", ".join(row["addresses"])))
    words = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(text)}</dd></div>" for name, text in facts)
    parts = [part for part in (row["user"] and f"user {row['user']}", row["client_id"] and f"client-id {row['client_id']}",
                               row["ip"] and f"ip {row['ip']}", row["group"] and f"group {row['group']}",
                               row["broker"] and f"broker {row['broker']}") if part]  # fmt: skip
    return (
        f'<section><h2>{escape(kind.title)} <span class="quiet">{escape(", ".join(parts))}</span></h2>'
        f"{_bar(row) if limited else ''}<dl>{words}</dl></section>"
    )


def _since(row: JsonObject) -> str:
    """The name of the episode's begin. An episode lasts a minute longer than its last throttle."""
    if row["shadow"]:
        return "Would throttle since"
    return "Throttled since" if is_throttled(row["throttle_left"], row["unthrottled_seconds"]) else "Last throttling began"


def _whole(row: JsonObject) -> str:
    return "limit, or of the present share of a capacity" if row["group"] else "limit"


def _requests(count: int) -> str:
    return "1 request" if count == 1 else f"{count:,} requests"


def _bar(row: JsonObject) -> str:
    """A bar that ends at 150 %, with a mark at 100 %."""
    percent = min(row["used_ratio"] / 1.5, 1.0) * 100
    tone = " over" if row["used_ratio"] > 1.0 else ""
    return (
        f'<div class="bar{tone}" role="img" aria-label="{row["used_ratio"]:.0%} of the {_whole(row)}">'
        f'<i style="width:{percent:.1f}%"></i><b></b></div>'
    )
