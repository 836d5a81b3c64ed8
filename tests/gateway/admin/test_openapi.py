"""Each route of the admin server is in openapi.yaml, and its answer has the schema that stands there."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import jsonschema
import pytest
import yaml

from gateway.admin.server import AdminServer
from gateway.admin.view import AdminView
from gateway.config.effective import EffectiveConfig, ReloadResult
from gateway.config.load import parse_config
from gateway.config.problems import Problem
from gateway.features.client_quotas.feature import quota_settings
from gateway.features.groups.feature import Groups
from gateway.features.sharing.feature import Sharing
from gateway.features.topic_quotas.feature import TopicQuotasFeature
from gateway.features.topic_quotas.report import TopicRow, TopicsReport, TopicTotals
from gateway.features.volume_quotas.config import VolumesConfig
from gateway.features.volume_quotas.feature import VolumeQuotas
from gateway.observer import Outlet
from gateway.quotas.engine import QuotaEngine
from gateway.workers.pages import WorkersServer
from gateway.workers.supervised_worker import SupervisedWorker
from tests.gateway.admin.serving import served
from tests.gateway.admin.test_connection_list import EVERYBODY, OneSession
from tests.gateway.conftest import NOW, WALL, reported
from tests.gateway.features.sharing.test_metrics import REPORT as SHARING
from tests.gateway.features.volume_quotas import test_metrics as volumes

DOCUMENT: dict[str, Any] = yaml.safe_load((Path(__file__).parents[3] / "docs/reference/openapi.yaml").read_text("utf-8"))
OPERATIONS = [(method, path) for path, methods in DOCUMENT["paths"].items() for method in methods]
OF_WORKERS = {"/api/workers"}
ONE_GATEWAY = {"/api/facts", "/api/active"}


FULL_CONFIG = """
upstream: {bootstrap_servers: ["127.0.0.1:9092"]}
listeners: [{name: clients, bootstrap_port: 21250, max_connections: 5, connection_creation_rate: 10}]
connections: {max_connections: 100}
admin: {port: 21201}
sharing: {}
quotas:
  entities:
    - {user: alice, client-id: etl, producer_byte_rate: 100000, shadow: {producer_byte_rate: 50000}}
    - {user: alice, producer_byte_rate: 5, max_connections: 7}
    - {user: carol, exempt: true}
    - {ip: 10.0.0.1, connection_creation_rate: 3}
  groups:
    - {name: all, producer_byte_rate: 8000000}
    - {name: jobs, parent: all, match: [{client-id: etl}], producer_byte_rate: {guarantee: 1000000}}
  topics: {total.bytes.in.per.sec.threshold: 1000000, bytes.in.per.sec.threshold: {orders: 50000}}
  volumes: {source: log_dirs}
"""


@pytest.fixture
async def server(view: AdminView, engine: QuotaEngine) -> AsyncIterator[AdminServer]:
    """With the features that each gateway has, whatever its config."""
    features = [*view.features, Groups(engine, list, shared=False)]
    async with served(AdminServer(replace(view, features=features), ("127.0.0.1", 0))) as running:
        yield running


@pytest.fixture
async def full_server(view: AdminView) -> AsyncIterator[AdminServer]:
    """With all features on, a refused reload, and rows in each list."""
    config = parse_config(FULL_CONFIG, source="weir.yaml")
    effective = EffectiveConfig(config, loaded_at=WALL, outlet=Outlet())
    problem = Problem("quotas.entities[0]", "is wrong", "mend it", "5", 7)
    effective.record(ReloadResult(WALL, config, problems=(problem,)))
    engine = QuotaEngine(quota_settings(config.quotas), NOW)
    for bucket in engine.acquire_path("produce", "alice", "etl", NOW):
        bucket.charge(1_300_000, NOW)
    totals = TopicTotals(1_000_000.0, 5.0, False, 10.0, 3, "1")
    row = TopicRow("orders", 50_000.0, True, 5.0, 1, 2, 3, {"NOT_LEADER": 4}, False, "1")
    full = volumes.report(volumes.verdict(100, 700, active=3))
    features = [
        *view.features,
        Groups(engine, list, shared=False),
        reported(Sharing, SHARING),
        reported(TopicQuotasFeature, TopicsReport("appended", True, totals, [row], [totals])),
        reported(VolumeQuotas, replace(full, config=VolumesConfig(source="log_dirs"))),
    ]
    full_view = replace(
        view, engine=engine, effective=effective, features=features, sessions=lambda: [OneSession(each) for each in EVERYBODY]
    )
    async with served(AdminServer(full_view, ("127.0.0.1", 0))) as running:
        yield running


def routes(server: AdminServer | WorkersServer) -> set[tuple[str, str]]:
    """(method, path) of the running server."""
    runner = server._runner
    assert runner is not None
    assert runner.app is not None
    return {(route.method.lower(), route.resource.canonical) for route in runner.app.router.routes() if route.method != "HEAD"}


async def test_each_route_of_a_gateway_is_documented(server: AdminServer) -> None:
    """If this fails, describe the route in .ci/reference/admin_api.py."""
    assert routes(server) == {(method, path) for method, path in OPERATIONS if path not in OF_WORKERS}


async def test_each_route_of_workers_is_documented(effective: EffectiveConfig) -> None:
    async with served(WorkersServer([], ("127.0.0.1", 0), lambda: None, {}, effective)) as server:
        assert routes(server) == {(method, path) for method, path in OPERATIONS if path not in ONE_GATEWAY}


@pytest.mark.parametrize(("method", "path"), [each for each in OPERATIONS if each[1] not in OF_WORKERS], ids=lambda each: each)
async def test_answer_has_the_documented_schema(server: AdminServer, method: str, path: str) -> None:
    await check(server, method, path)


@pytest.mark.parametrize(("method", "path"), [each for each in OPERATIONS if each[1] not in OF_WORKERS], ids=lambda each: each)
async def test_answer_with_all_features_has_its_schema(full_server: AdminServer, method: str, path: str) -> None:
    answer = await check(full_server, method, path)
    if isinstance(answer, dict) and "configured" in answer:
        assert answer["configured"]
        assert answer.keys() == schema(method, path)["properties"].keys()


async def test_answer_of_workers_has_the_documented_schema(effective: EffectiveConfig) -> None:
    worker = SupervisedWorker(0, ("true",), Path("socket"), int)
    async with served(WorkersServer([worker], ("127.0.0.1", 0), lambda: None, {}, effective)) as server:
        for path in OF_WORKERS:
            await check(server, "get", path)


async def test_groups_without_a_capacity_are_not_configured(server: AdminServer) -> None:
    answer = await check(server, "get", "/api/groups")
    assert isinstance(answer, dict)
    assert (answer["configured"], answer["groups"]) == (False, [])


def schema(method: str, path: str) -> dict[str, Any]:
    """The schema of a JSON answer, closed: a field that it lacks is an error."""

    def closed(part: Any) -> Any:
        if isinstance(part, list):
            return [closed(each) for each in part]
        if not isinstance(part, dict):
            return part
        found = {name: closed(each) for name, each in part.items()}
        return {**found, "additionalProperties": False} if isinstance(part.get("properties"), dict) else found

    found = DOCUMENT["paths"][path][method]["responses"]["200"]["content"]["application/json"]["schema"]
    result: dict[str, Any] = closed({"components": DOCUMENT["components"], **found})
    return result


async def check(server: AdminServer | WorkersServer, method: str, path: str) -> object:
    """Compare the answer with its schema, and return it if it is JSON."""
    documented = DOCUMENT["paths"][path][method]["responses"]["200"]["content"]
    known = {each["name"] for each in DOCUMENT["paths"][path][method].get("parameters", ())}
    names = {name: value for name, value in {"user": "alice", "client-id": "etl"}.items() if name in known}
    body = {"json": {"client-id": "etl"}} if method == "post" else {"params": names}
    async with (
        aiohttp.ClientSession(f"http://127.0.0.1:{server.port}") as client,
        client.request(method, path, **body) as response,  # type: ignore[arg-type]
    ):
        assert response.status == 200
        (content_type,) = documented
        assert response.content_type == content_type
        if content_type != "application/json":
            return None
        answer = await response.json()
        jsonschema.Draft202012Validator(schema(method, path)).validate(answer)
        return answer


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        ("{}", {"Content-Type": "application/json"}, 400),
        ('{"user": "a"}', {"Content-Type": "text/plain"}, 415),
        ('{"user": "a"}', {"Content-Type": "application/json", "Via": "1.1 proxy"}, 403),
    ],
)
async def test_documented_refusals(server: AdminServer, body: str, headers: dict[str, str], status: int) -> None:
    path = "/api/quotas/forgive"
    assert str(status) in DOCUMENT["paths"][path]["post"]["responses"]
    async with (
        aiohttp.ClientSession(f"http://127.0.0.1:{server.port}") as client,
        client.post(path, data=body, headers=headers) as response,
    ):
        assert response.status == status
