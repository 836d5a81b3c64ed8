"""Each route of the admin server is in openapi.yaml, and its answer has the schema that stands there."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import jsonschema
import pytest
import yaml

from gateway.admin.rows import CurrentPlaces
from gateway.admin.server import AdminServer
from gateway.admin.view import AdminView
from gateway.config.effective import EffectiveConfig
from gateway.workers.pages import WorkersServer

DOCUMENT: dict[str, Any] = yaml.safe_load((Path(__file__).parents[3] / "docs/reference/openapi.yaml").read_text("utf-8"))
OPERATIONS = [(method, path) for path, methods in DOCUMENT["paths"].items() for method in methods]
OF_WORKERS = {"/api/workers"}
ONE_GATEWAY = {"/api/facts", "/api/active"}


@pytest.fixture
async def server(view: AdminView) -> AsyncIterator[AdminServer]:
    server = AdminServer(view, ("127.0.0.1", 0))
    await server.start()
    yield server
    await server.stop()


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
    server = WorkersServer([], ("127.0.0.1", 0), lambda: None, {}, CurrentPlaces(lambda: effective.config, "weir.yaml"))
    await server.start()
    try:
        assert routes(server) == {(method, path) for method, path in OPERATIONS if path not in ONE_GATEWAY}
    finally:
        await server.stop()


@pytest.mark.parametrize(("method", "path"), [each for each in OPERATIONS if each[1] not in OF_WORKERS], ids=lambda each: each)
async def test_answer_has_the_documented_schema(server: AdminServer, method: str, path: str) -> None:
    documented = DOCUMENT["paths"][path][method]["responses"]["200"]["content"]
    known = {each["name"] for each in DOCUMENT["paths"][path][method].get("parameters", ())}
    names = {name: value for name, value in {"user": "alice", "client-id": "etl"}.items() if name in known}
    body = {"json": {"client-id": "etl"}} if method == "post" else {"params": names}
    async with (
        aiohttp.ClientSession(f"http://127.0.0.1:{server.port}") as client,
        client.request(method, path, **body) as response,  # type: ignore[arg-type]
    ):
        assert response.status == 200
        ((content_type, content),) = documented.items()
        assert response.content_type == content_type
        if content_type == "application/json":
            schema = {"components": DOCUMENT["components"], **content["schema"]}
            jsonschema.Draft202012Validator(schema).validate(await response.json())


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        ("{}", {"Content-Type": "application/json"}, 400),
        ('{"user": "a"}', {"Content-Type": "text/plain"}, 415),
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
