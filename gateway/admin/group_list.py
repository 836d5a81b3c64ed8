"""`/api/groups`: the groups that share a capacity, all of them, or the busiest ones with the groups above them."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from heapq import nlargest
from typing import Any, Final, Self

from aiohttp import web

from gateway import clock
from gateway.admin.http import Page, json_page
from gateway.admin.json_text import JsonObject
from gateway.admin.query import QueryError, check_names, read_number
from gateway.admin.single_flight import SingleFlight
from gateway.quotas.kinds import CLIENT_KINDS, KINDS

GROUPS: Final = "/api/groups"
PARAMETERS: Final = ("kind", "text", "limit")
MAX_LIMIT: Final = 10_000


@dataclass(frozen=True, slots=True)
class GroupQuery:
    """`kind` is a quota kind, or empty for all. `words` stand in a group's name or in the name of a group above it."""

    kind: str = ""
    words: tuple[str, ...] = ()
    limit: int = MAX_LIMIT

    @classmethod
    def parse(cls, query: Mapping[str, str]) -> Self:
        """The query of a URL. Raises QueryError."""
        check_names(query, PARAMETERS)
        kind = query.get("kind", "")
        if kind and kind not in KINDS:
            raise QueryError(f"kind: there is no quota kind {kind!r}: use one of {', '.join(CLIENT_KINDS)}")
        words = tuple(query.get("text", "").casefold().split())
        return cls(kind, words, read_number("limit", query.get("limit"), 1, MAX_LIMIT, MAX_LIMIT))

    def part(self, rows: Sequence[JsonObject]) -> dict[str, Any]:
        """The busiest `limit` of the matching rows, and all groups above them, in the order of `rows`.

        A row has a group's numbers of one kind. A group whose clients wait is busier than others. Then its part of the whole
        capacity counts.
        """
        of_kind = [row for row in rows if not self.kind or row["kind"] == self.kind]
        by_name = {(row["kind"], row["group"]): row for row in of_kind}
        paths: dict[tuple[str, str], list[JsonObject]] = {}
        for key, row in by_name.items():  # parents come first
            paths[key] = [*paths.get((row["kind"], row["parent"]), ()), row]
        matching = [path for path in paths.values() if self._matches(path)]
        wanted = {
            (row["kind"], row["group"])
            for path in (nlargest(self.limit, matching, key=_busy) if len(matching) > self.limit else matching)
            for row in path
        }
        return {
            "kinds": list(dict.fromkeys(row["kind"] for row in rows)),
            "total": len(of_kind),
            "matching": len(matching),
            "groups": [row for key, row in by_name.items() if key in wanted],
        }

    def _matches(self, path: Sequence[JsonObject]) -> bool:
        names = " ".join([row["group"] for row in path]).casefold() if self.words else ""
        return all(word in names for word in self.words)


def _busy(path: Sequence[JsonObject]) -> tuple[bool, float]:
    capacity, row = path[0]["ceiling"], path[-1]
    return row["wants_more"], max(row["use"], row["allocation"]) / capacity if capacity else 0.0


def groups_page(answer: Callable[[], Awaitable[Mapping[str, Any]]]) -> Page:
    """`answer` gives all groups. Simultaneous requests share it."""
    flight = SingleFlight(answer)

    async def page(request: web.Request) -> web.Response:
        query = GroupQuery.parse(request.query)
        found = await flight.get()
        # Thousands of rows take long, so a thread looks through them.
        part = await asyncio.to_thread(query.part, found["groups"]) if "groups" in found else {}
        return await json_page({"generated_at": clock.iso(clock.wall()), **found, **part})

    return page
