"""The agent's admin port: metrics of publishing, and readiness that ends when its usage is stale."""

from collections.abc import AsyncIterator
from dataclasses import replace

import aiohttp
import pytest

from gateway.binding import BindError
from gateway.cluster.log_status import LinkStatus, LogStatus
from gateway.features.volume_quotas.agent_admin import AgentServer
from gateway.features.volume_quotas.report import PublisherReport

FAILING = LogStatus(publisher=LinkStatus(problem="the broker is gone"), publication_errors_total=4)
NEVER = PublisherReport(FAILING, age=None, source_problem="", source_errors_total=2)
FRESHNESS = 300.0


class Agent:
    """A server that shows `report`."""

    def __init__(self) -> None:
        self.report = NEVER
        self.server = AgentServer(lambda: self.report, FRESHNESS, ("127.0.0.1", 0))

    async def get(self, path: str) -> tuple[int, str]:
        url = f"http://127.0.0.1:{self.server.port}{path}"
        async with aiohttp.ClientSession() as session, session.get(url) as response:
            return response.status, await response.text()


@pytest.fixture
async def agent() -> AsyncIterator[Agent]:
    running = Agent()
    await running.server.start()
    yield running
    await running.server.stop()


async def test_agent_is_ready_while_its_publication_is_fresh(agent: Agent) -> None:
    assert await agent.get("/readyz") == (503, "usage has not been published yet: the broker is gone\n")
    assert await agent.get("/livez") == (200, "live\n")
    agent.report = replace(NEVER, log=LogStatus(publisher=LinkStatus(connected=True)), age=299.9)
    assert await agent.get("/readyz") == (200, "ready\n")
    agent.report = replace(NEVER, log=LogStatus(), age=300.0)
    assert await agent.get("/readyz") == (503, "usage was last published 300 s ago\n")


async def test_agent_metrics_report_publishing(agent: Agent) -> None:
    status, page = await agent.get("/metrics")
    assert status == 200
    assert 'weir_volume_connected{role="publisher"} 0.0' in page
    assert "weir_volume_publication_errors_total 4.0" in page
    assert "weir_volume_source_errors_total 2.0" in page
    assert "\nweir_volume_publication_age_seconds" not in page
    assert "process_start_time_seconds" in page
    agent.report = replace(NEVER, log=LogStatus(publisher=LinkStatus(connected=True), published_total=7), age=1.5)
    _, page = await agent.get("/metrics")
    assert "weir_volume_publication_age_seconds 1.5" in page
    assert "weir_volume_published_total 7.0" in page


async def test_agent_has_no_live_page(agent: Agent) -> None:
    assert (await agent.get("/"))[0] == 404


async def test_taken_port_names_the_agents_key(agent: Agent) -> None:
    second = AgentServer(lambda: NEVER, FRESHNESS, ("127.0.0.1", agent.server.port))
    with pytest.raises(BindError, match=r"^quotas\.volumes\.agent\.admin_port: .* can't be bound"):
        await second.start()
