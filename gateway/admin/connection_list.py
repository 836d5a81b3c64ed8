"""`/api/connections`: the open connections, filtered and sorted, with their bytes per second.

The bytes are the kernel's. A request reads them for all connections, at most once a second. So a connection without a reader
costs nothing.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Self

from aiohttp import web

from gateway import clock
from gateway.admin.http import Page, json_page
from gateway.admin.json_text import JsonObject
from gateway.admin.query import QueryError, check_names, read_address, read_number, read_truth
from gateway.admin.single_flight import SingleFlight
from gateway.admin.view import ListedSession
from gateway.proxy.sessions import ConnectionFacts
from gateway.quotas.entity import short_name
from gateway.steps import Steps
from gateway.time_slices import in_slices
from gateway.whole_number import whole_number

CONNECTIONS: Final = "/api/connections"

DEFAULT_LIMIT: Final = 100
MAX_LIMIT: Final = 1_000
MAX_OFFSET: Final = 10_000

MIN_SAMPLE_SECONDS: Final = 1.0
MAX_SAMPLE_SECONDS: Final = 10.0
"""The bytes per second are a mean over so many seconds: since the last reading, if that is not older."""

_EXACT: Final = {"user": "user", "client-id": "client_id", "group": "group", "listener": "listener"}
FILTERS: Final = (*_EXACT, "ip", "broker", "software", "throttled", "text")
SORTS: Final[Mapping[str, Callable[[JsonObject], Any]]] = {
    "bytes": lambda row: -row["bytes_per_second"],
    "throttle": lambda row: -row["throttle_left"],
    "since": lambda row: row["since"],
    "user": lambda row: row["user"],
    "client-id": lambda row: row["client_id"],
    "group": lambda row: row["group"],
    "software": lambda row: (row["software_name"], row["software_version"]),
    "ip": lambda row: row["address"],
    "listener": lambda row: row["listener"],
    "broker": lambda row: -1 if row["broker"] is None else row["broker"],
}
"""The orders of a list: the most bytes, the longest throttle and the oldest connection come first."""


@dataclass(frozen=True, slots=True)
class ConnectionQuery:
    """The wanted connections, their order, and the part of the list.

    `whole`: the list begins with its first row in any case. A supervisor of workers needs such lists.
    """

    filters: Mapping[str, str] = field(default_factory=dict)
    sort: str = "bytes"
    reverse: bool = False
    limit: int = DEFAULT_LIMIT
    offset: int = 0
    whole: bool = False

    @classmethod
    def parse(cls, query: Mapping[str, str]) -> Self:
        """The query of a URL. Raises QueryError."""
        rest = dict(query)
        sort, limit, offset = rest.pop("sort", "bytes"), rest.pop("limit", None), rest.pop("offset", None)
        reverse = read_truth("reverse", rest.pop("reverse", "false"))
        whole = read_truth("whole", rest.pop("whole", "false"))
        if sort not in SORTS:
            raise QueryError(f"sort: there is no order {sort!r}: use one of {', '.join(SORTS)}")
        check_names(rest, (*FILTERS, "sort", "reverse", "limit", "offset"))
        if "throttled" in rest:
            read_truth("throttled", rest["throttled"])
        if "broker" in rest and whole_number(rest["broker"]) is None:
            raise QueryError(f"broker: {rest['broker']!r} is not the node id of a broker: write a number, such as 3")
        if "ip" in rest:
            rest["ip"] = read_address(rest["ip"])
        return cls(rest, sort, reverse, read_number("limit", limit, 1, MAX_LIMIT, DEFAULT_LIMIT),
                   read_number("offset", offset, 0, MAX_OFFSET, 0), whole)  # fmt: skip

    def wants(self, row: JsonObject) -> bool:
        return all(_matches(name, wanted, row) for name, wanted in self.filters.items())

    def part(self, rows: Iterable[JsonObject]) -> list[JsonObject]:
        """The rows of the answer, in their order."""
        ordered = sorted(rows, key=lambda row: (SORTS[self.sort](row), row["address"]), reverse=self.reverse)
        return ordered[0 if self.whole else self.offset : self.offset + self.limit]


def _matches(name: str, wanted: str, row: JsonObject) -> bool:
    match name:
        case "ip":
            return str(row["address"]).rpartition(":")[0] == wanted
        case "broker":
            return bool(row["broker"] == int(wanted))
        case "throttled":
            return bool(row["throttled_by"]) == (wanted == "true")
        case "software":
            return wanted.casefold() in f"{row['software_name']} {row['software_version']}".casefold()
        case "text":
            line = " ".join(str(row[each]) for each in _SEARCHED).casefold()
            return all(word in line for word in wanted.casefold().split())
        case _:
            return row[_EXACT[name]] in (wanted, short_name(wanted))


_SEARCHED: Final = ("user", "client_id", "group", "software_name", "software_version", "address", "listener", "throttled_by")


class ConnectionList:
    """The rows of all open connections of this process."""

    def __init__(
        self,
        sessions: Callable[[], Iterable[ListedSession]],
        monotonic: Callable[[], float] = clock.monotonic,
        wall: Callable[[], float] = clock.wall,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._sessions = sessions
        self._monotonic = monotonic
        self._wall = wall
        self._sleep = sleep
        self._read = SingleFlight(self._rows)
        self._read_at = float("-inf")
        self._before: dict[tuple[str, float], tuple[int, int]] = {}  # the bytes of each connection at `_read_at`

    async def answer(self, query: ConnectionQuery) -> dict[str, Any]:
        """The answer of the admin API. It takes up to `MIN_SAMPLE_SECONDS` after a time without requests."""
        rows = await self._read.get()
        # Thousands of rows take long, so a thread looks through them.
        return await asyncio.to_thread(_answer, query, rows)

    async def _rows(self) -> list[JsonObject]:
        if not MIN_SAMPLE_SECONDS <= self._monotonic() - self._read_at <= MAX_SAMPLE_SECONDS:
            if self._monotonic() - self._read_at > MAX_SAMPLE_SECONDS:
                await in_slices(self._facts())
            await self._sleep(MIN_SAMPLE_SECONDS - (self._monotonic() - self._read_at))
        before, since, wall = self._before, self._read_at, self._wall()
        found = await in_slices(self._facts())
        return await in_slices(_listed(found, before, since, self._read_at, wall))

    def _facts(self) -> Steps[list[ConnectionFacts]]:
        now = self._monotonic()
        found: list[ConnectionFacts] = []
        for session in self._sessions():
            facts = session.facts(now)
            if facts is not None:
                found.append(facts)
            yield
        self._before = {(each.address, each.begun): (each.received_bytes, each.sent_bytes) for each in found}
        self._read_at = now
        return found


def _listed(
    found: Iterable[ConnectionFacts], before: Mapping[tuple[str, float], tuple[int, int]], since: float, now: float, wall: float
) -> Steps[list[JsonObject]]:
    rows: list[JsonObject] = []
    for each in found:
        rows.append(_row(each, before.get((each.address, each.begun)), now - since, now, wall))
        yield
    return rows


def _answer(query: ConnectionQuery, rows: Sequence[JsonObject]) -> dict[str, Any]:
    wanted = [row for row in rows if query.wants(row)]
    return {"total": len(rows), "matching": len(wanted), "rows": query.part(wanted)}


def _row(facts: ConnectionFacts, before: tuple[int, int] | None, seconds: float, now: float, wall: float) -> JsonObject:
    """A connection that was not open `seconds` ago has its mean since it began."""
    received, sent = before or (0, 0)
    over = max(now - facts.begun if before is None else seconds, MIN_SAMPLE_SECONDS)
    rates = ((facts.received_bytes - received) / over, (facts.sent_bytes - sent) / over)
    return {
        "user": facts.user,
        "client_id": facts.client_id,
        "group": facts.group,
        "software_name": facts.software_name,
        "software_version": facts.software_version,
        "address": facts.address,
        "listener": facts.listener,
        "broker": facts.broker,
        "since": clock.iso(wall - (now - facts.begun)),
        "bytes_per_second": round(sum(rates), 1),
        "received_bytes_per_second": round(rates[0], 1),
        "sent_bytes_per_second": round(rates[1], 1),
        "throttled_by": facts.throttled_by,
        "throttle_left": round(facts.throttle_left, 3),
    }


def merged(query: ConnectionQuery, answers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One answer from those of several workers, of which each has all rows up to the end of the wanted part."""
    return {
        "total": sum(answer["total"] for answer in answers),
        "matching": sum(answer["matching"] for answer in answers),
        "rows": query.part(row for answer in answers for row in answer["rows"]),
    }


def connections_page(answer: Callable[[ConnectionQuery, web.Request], Awaitable[Mapping[str, Any]]]) -> Page:
    """`answer` gets the query, and the request that it comes from."""

    async def page(request: web.Request) -> web.Response:
        query = ConnectionQuery.parse(request.query)
        found = await answer(query, request)
        head = {"generated_at": clock.iso(clock.wall()), "sort": query.sort, "limit": query.limit, "offset": query.offset}
        return await json_page({**head, **found})

    return page
