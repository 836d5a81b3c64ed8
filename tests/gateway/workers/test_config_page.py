"""The config of several workers on the supervisor's pages: its own reading, and the difference of each worker."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest
from aiohttp import ClientSession
from prometheus_client.parser import text_string_to_metric_families

from gateway.admin.server import AdminServer
from gateway.admin.view import AdminView
from gateway.config.effective import ConfigHistory, EffectiveConfig, ReloadResult
from gateway.config.model import WeirConfig
from gateway.config.problems import Problem
from gateway.observer import Outlet
from gateway.workers.pages import WorkersServer
from gateway.workers.supervised_worker import SupervisedWorker
from tests.gateway.admin.test_openapi import schema

HISTORY = ConfigHistory(7, 50.0, 60.0, {"success": 6, "failure": 0})


def following(config: WeirConfig) -> EffectiveConfig:
    found = EffectiveConfig(config, 10.0, Outlet())
    found.go_on_from(HISTORY)
    return found


@pytest.fixture
async def url(view: AdminView, tmp_path: Path) -> AsyncIterator[str]:
    """A supervisor that has read a new file. Worker 0 was replaced after that, and worker 1 has refused the file."""
    old = view.effective.config
    new = old.model_copy(update={"workers": 2})
    own, replaced, refusing = following(old), following(new), following(old)
    own.record(ReloadResult(100.0, new, changes=("workers",)))
    replaced.go_on_from(own.history)
    refusing.record(ReloadResult(100.0, old, problems=(Problem("(file)", "can't be read", "mend it"),)))
    workers, servers = [], []
    for number, effective in enumerate((replaced, refusing)):
        servers.append(AdminServer(replace(view, effective=effective), tmp_path / f"worker-{number}"))
        await servers[-1].start()
        workers.append(SupervisedWorker(number, (), tmp_path / f"worker-{number}", lambda: 1))
        workers[-1].process = number + 1
    server = WorkersServer(workers, ("127.0.0.1", 0), lambda: None, {}, own)
    await server.start()
    yield f"http://127.0.0.1:{server.port}"
    for each in (server, *servers):
        await each.stop()


async def test_config_page_lists_the_worker_that_refused(url: str) -> None:
    async with ClientSession() as client, client.get(f"{url}/api/config") as response:
        answer = await response.json()
    jsonschema.Draft202012Validator(schema("get", "/api/config")).validate(answer)
    assert (answer["version"], answer["config"]["workers"], answer["reloads"]["success"]) == (8, 2, 7)
    listed = [(each["worker"], each["version"], each["current"]) for each in answer["workers"]]
    assert listed == [(0, 8, True), (1, 7, False)]
    assert answer["workers"][1]["last_reload"]["result"] == "failure"


async def test_config_metrics_have_the_version_of_the_supervisor(url: str) -> None:
    async with ClientSession() as client, client.get(f"{url}/metrics") as response:
        families = text_string_to_metric_families(await response.text())
    values = {sample.name: sample.value for family in families for sample in family.samples if not sample.labels}
    assert values["weir_config_version"] == 8
    assert values["weir_config_last_reload_successful"] == 0
    assert values["weir_config_last_reload_success_timestamp_seconds"] == 60.0
