"""The admin port of `weir volumes publish`: metrics and probes of one publisher."""

from collections.abc import Callable, Collection

from aiohttp import web
from prometheus_client import ProcessCollector
from prometheus_client.exposition import choose_encoder

from gateway.admin.http import Page, PageServer, TcpAddress, readiness, shared_metrics
from gateway.admin.metrics.row import Given, families
from gateway.features.volume_quotas.metrics import PUBLISHER_METRICS
from gateway.features.volume_quotas.report import PublisherReport

_PORT_KEY = "quotas.volumes.agent.admin_port"


class AgentServer(PageServer):
    """Serves `/metrics`, `/livez` and `/readyz`. The agent is ready for `freshness` seconds after each publication."""

    def __init__(
        self, report: Callable[[], PublisherReport], freshness: float, at: TcpAddress, allowed_hosts: Collection[str] = ()
    ) -> None:
        self._report = report
        self._freshness = freshness
        pages: dict[str, Page] = {"/metrics": shared_metrics(self._metrics), "/readyz": self._readyz}
        super().__init__(pages, None, at, lambda: allowed_hosts, _PORT_KEY)

    async def _metrics(self, accept: str) -> web.Response:
        encode, content_type = choose_encoder(accept)
        page = Given([*families(PUBLISHER_METRICS, self._report()), *ProcessCollector(registry=None).collect()])
        return web.Response(body=encode(page), headers={"Content-Type": content_type})

    async def _readyz(self, _: web.Request) -> web.Response:
        report = self._report()
        if report.age is not None and report.age < self._freshness:
            return readiness(None)
        since = "usage has not been published yet" if report.age is None else f"usage was last published {report.age:.0f} s ago"
        problem = report.source_problem or report.log.publisher.problem
        return readiness(f"{since}: {problem}" if problem else since)
