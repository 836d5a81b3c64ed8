"""The admin port of several workers: each page is merged from the answers of all workers."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from aiohttp import web
from prometheus_client import ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from gateway import clock
from gateway.admin.config_answer import config_answer, config_facts
from gateway.admin.configured import CONFIGURED
from gateway.admin.connection_list import CONNECTIONS, ConnectionQuery, connections_page, merged
from gateway.admin.entity_page import EXPLAIN, explain_page
from gateway.admin.explanation import ClientNames, with_use
from gateway.admin.forgive import FORGIVE, read_filter
from gateway.admin.group_list import GROUPS, groups_page
from gateway.admin.http import Page, PageServer, TcpAddress, answered, readiness, shared_metrics
from gateway.admin.json_text import JsonObject
from gateway.admin.live import LiveFeed, Point, kinds, ranked, units
from gateway.admin.metrics.registry import METRICS
from gateway.admin.metrics.row import Given
from gateway.admin.query import NoWorkerAnswersError
from gateway.admin.rows import undescribed
from gateway.admin.server import ACTIVE
from gateway.admin.usage_pages import THROTTLES, UsagePages
from gateway.config.effective import EffectiveConfig
from gateway.quotas.snapshot import UsageRow, merge_rows
from gateway.time_slices import in_slices
from gateway.version import weir_version
from gateway.workers.answers import (
    merge_config,
    merge_facts,
    merge_groups,
    merge_histories,
    merge_sharing,
    merge_topics,
    merge_volumes,
)
from gateway.workers.families import CONFIG_VERSION, WORKER_METRICS, Families, Totals, config_families
from gateway.workers.supervised_worker import SupervisedWorker, WorkerUnreachableError

_READY = "weir_ready"
NO_FACTS: JsonObject = {
    "weir": weir_version(),
    "enforce": True,
    "connections": 0,
    "units": units(),
    "kinds": kinds(),
    "now": None,
    "brokers": [],
    "volumes": None,
    "config": {"version": 1, "loaded_at": clock.iso(clock.wall()), "reloads": {}, "last_reload": None},
}
"""The content of the live page until a worker has answered."""

_SUPERVISOR = -1
"""The process number of the supervisor, for its own CPU and memory."""


class WorkersServer(PageServer):
    """Serves the merged pages of the workers. `not_ready` returns the reason if balancers should send no clients here.

    Pages leave out silent workers, except for their counters in metrics. If no worker answers, pages answer 503.
    """

    def __init__(
        self,
        workers: Sequence[SupervisedWorker],
        at: TcpAddress,
        not_ready: Callable[[], str | None],
        restarts: Mapping[str, int],
        effective: EffectiveConfig,
        own_families: Callable[[], Families] = tuple,
    ) -> None:
        """`restarts` counts the failures of the supervisor's own background tasks. `own_families` are its further metrics.

        `effective` is the supervisor's own reading of the config file. Its version is the one of all workers.
        """
        self._own_families = own_families
        self._effective = effective
        self._workers = workers
        self._restarts = restarts
        self._not_ready = not_ready
        self._totals = Totals()
        self._scraping = asyncio.Lock()  # the two formats share the totals, which need each worker's pages in order
        self._facts: JsonObject = NO_FACTS
        self._usage = UsagePages(self.rows, self._muted, effective)
        pages: dict[str, Page] = {
            "/metrics": shared_metrics(self._metrics),
            "/readyz": self._readyz,
            CONFIGURED: answered(self._merged(CONFIGURED, lambda answers: answers[0])),  # the same in every worker
            "/api/topics": answered(self._merged("/api/topics", merge_topics)),
            "/api/volumes": answered(self._merged("/api/volumes", merge_volumes)),
            GROUPS: groups_page(self._merged(GROUPS, merge_groups)),
            "/api/sharing": answered(self._merged("/api/sharing", merge_sharing)),
            "/api/config": answered(self._config),
            "/api/workers": answered(self._worker_list),
            **self._usage.pages(),
            EXPLAIN: explain_page(self._explain),
            CONNECTIONS: connections_page(self._connections),
        }
        super().__init__(
            pages, LiveFeed(self), at, lambda: effective.config.admin.allowed_hosts, actions={FORGIVE: self._forgive}
        )

    def record_second(self) -> None:
        """No effect: the workers have the history."""

    async def snapshot_with_history(self) -> tuple[list[Point], dict[str, Any]]:
        try:
            facts, rows = await asyncio.gather(self._ask("/api/facts"), self.rows())
        except NoWorkerAnswersError:
            facts, rows = [], []
        if facts:
            self._facts = merge_facts([answer["facts"] for answer in facts], config_facts(self._effective))
        own = {"at": clock.iso(clock.wall()), "not_ready": self._not_ready(), "workers": self._states()}
        return merge_histories([answer["history"] for answer in facts]), {
            **self._facts,
            **await in_slices(ranked(rows, self._effective.places(), clock.wall())),
            **own,
        }

    async def _forgive(self, request: web.Request) -> web.Response:
        """Every worker clears the debts, because each has its own bucket for a client. 503 if one of them does not answer."""
        wanted = await read_filter(request, self._effective.places().config)
        running = {worker.process: worker.number for worker in self._workers if worker.process and worker.has_answered}
        answers = await self._bodies(FORGIVE, wanted.body())
        cleared = [debt for _, answer in answers for debt in json.loads(answer)["cleared"]]
        silent = running.keys() - {process for process, _ in answers}
        if silent:
            names = ", ".join(f"worker {running[process]}" for process in sorted(silent))
            raise web.HTTPServiceUnavailable(
                text=f"no answer from {names}: its clients stay muted. "
                f"The others have cleared {len(cleared)} debts. Try again\n"
            )
        if not answers:
            raise NoWorkerAnswersError
        return web.json_response({"cleared": cleared})

    async def _ask(self, path: str) -> list[JsonObject]:
        """The parsed answers of all workers that answer. Raises NoWorkerAnswersError."""
        answers = [json.loads(body) for _, body in await self._bodies(path)]
        if not answers:
            raise NoWorkerAnswersError
        return answers

    async def _bodies(self, path: str, body: bytes | None = None) -> list[tuple[int, bytes]]:
        """(process number, answer) of each worker that answers."""
        processes = [(worker.process, worker) for worker in self._workers if worker.process]
        answers = await asyncio.gather(*(worker.ask(path, body) for _, worker in processes), return_exceptions=True)
        found = []
        for (process, _), answer in zip(processes, answers, strict=True):
            if isinstance(answer, bytes):
                found.append((process, answer))
            elif not isinstance(answer, WorkerUnreachableError):
                raise answer
        return found

    def _merged(self, path: str, merge: Callable[[Sequence[JsonObject]], JsonObject]) -> Callable[[], Awaitable[JsonObject]]:
        async def answer() -> JsonObject:
            merged = merge(await self._ask(path))
            return {name: value for name, value in merged.items() if name != "generated_at"}

        return answer

    async def rows(self) -> list[UsageRow]:
        """A row for each bucket of any worker. Raises NoWorkerAnswersError."""
        answers = await self._ask("/api/quotas")
        return await in_slices(merge_rows([await in_slices(undescribed(answer["rows"])) for answer in answers]))

    async def active_rows(self) -> dict[int, list[UsageRow] | None]:
        """By process number: the rows of buckets that were used lately. None for a running process that does not answer."""
        rows: dict[int, list[UsageRow] | None] = {worker.process: None for worker in self._workers if worker.process}
        for process, body in await self._bodies(ACTIVE):
            rows[process] = await in_slices(undescribed(json.loads(body)["rows"]))
        return rows

    async def _muted(self) -> int:
        return sum(answer["muted_connections"] for answer in await self._ask(THROTTLES))

    async def _config(self) -> JsonObject:
        numbers = {worker.process: worker.number for worker in self._workers}
        own, bodies = await asyncio.gather(config_answer(self._effective), self._bodies("/api/config"))
        if not bodies:
            raise NoWorkerAnswersError
        # Thousands of entities take long to parse.
        return await asyncio.to_thread(
            lambda: merge_config(own, [(numbers[process], json.loads(body)) for process, body in bodies if process in numbers])
        )

    async def _explain(self, _: ClientNames, query: str) -> JsonObject:
        answers, usage = await asyncio.gather(self._ask(f"{EXPLAIN}?{query}"), self._usage.usage())
        return with_use(answers[0], usage.rows)

    async def _connections(self, query: ConnectionQuery, request: web.Request) -> JsonObject:
        """Each worker may have all rows of the wanted part, so each is asked for all rows up to the end of the part."""
        return merged(query, await self._ask(f"{CONNECTIONS}?{request.rel_url.raw_query_string}&whole=true"))

    async def _readyz(self, _: web.Request) -> web.Response:
        return readiness(self._not_ready())

    async def _worker_list(self) -> JsonObject:
        return {"workers": self._states()}

    def _states(self) -> list[dict[str, Any]]:
        return [
            {
                "worker": worker.number,
                "pid": worker.pid if worker.process else None,
                "started_at": clock.iso(worker.started_at) if worker.process else None,
                "not_ready": worker.not_ready,
                "restarts": worker.restarts,
            }
            for worker in self._workers
        ]

    async def _metrics(self, accept: str) -> web.Response:
        encode, content_type = choose_encoder(accept)
        async with self._scraping:
            bodies = await self._bodies("/metrics")
            # A thread formats thousands of samples, because probes should not wait.
            body = await asyncio.to_thread(self._page, bodies, encode)
        return web.Response(body=body, headers={"Content-Type": content_type})

    def _page(self, bodies: list[tuple[int, bytes]], encode: Callable[[Collector], bytes]) -> bytes:
        pages: dict[int, Families] = {process: list(text_string_to_metric_families(body.decode())) for process, body in bodies}
        config = config_families(self._effective)
        pages[_SUPERVISOR] = [
            *ProcessCollector(registry=None).collect(),
            self._own_restarts(),
            *config,
            *self._own_families(),
        ]
        for process, page in pages.items():
            self._totals.seen(process, page)
        merged = self._totals.merged([_SUPERVISOR, *(worker.process for worker in self._workers)], pages)
        ready = GaugeMetricFamily(_READY, "1 if /readyz answers 200.", float(self._not_ready() is None))
        version = [family for family in config if family.name == CONFIG_VERSION]
        workers = [row.family(self._workers, pages) for row in WORKER_METRICS]
        return encode(
            Given([*(family for family in merged if family.name not in {_READY, CONFIG_VERSION}), ready, *version, *workers])
        )

    def _own_restarts(self) -> Metric:
        row = next(row for row in METRICS if row.name == "weir_task_restarts_total")
        family = CounterMetricFamily(row.name, row.help, labels=("task",))
        for name, count in self._restarts.items():
            family.add_metric((name,), count)
        return family
