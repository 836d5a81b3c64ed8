"""The admin server, with a real client over a real socket."""

import asyncio
import base64
import hashlib
import json
import re
import threading
from typing import Any
from unittest import mock

import aiohttp
import pytest
import uvloop
from aiohttp import web
from aiohttp.test_utils import make_mocked_request
from prometheus_client.parser import text_string_to_metric_families

from gateway.admin.forgive import read_filter
from gateway.admin.server import AdminServer
from gateway.admin.view import AdminView
from gateway.binding import BindError
from gateway.config.effective import ReloadResult
from gateway.config.load import parse_config
from gateway.config.model import WeirConfig
from gateway.config.problems import Problem
from gateway.steps import at_once
from loadtest.testkit.kafka import free_port


async def ask(client: aiohttp.ClientSession, path: str) -> dict:
    async with client.get(path) as response:
        assert response.status == 200
        assert response.content_type == "application/json"
        assert response.headers["Cache-Control"] == "no-store"
        return await response.json()


async def test_metrics_page_is_prometheus_text(client: aiohttp.ClientSession) -> None:
    async with client.get("/metrics") as response:
        assert response.status == 200
        assert response.headers["Content-Type"].startswith("text/plain")
        families = {family.name: family for family in text_string_to_metric_families(await response.text())}
    assert families["weir_connections"].samples[0].value == 3
    assert families["weir_throttle_time_seconds"].type == "histogram"


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/api/quota", "there is no page '/api/quota': did you mean /api/quotas?\n"),
        ("/metric", "there is no page '/metric': did you mean /metrics?\n"),
        ("/elsewhere", "there is no page '/elsewhere': the pages are /api/active, /api/config, "),
    ],
)
async def test_unknown_page_is_answered_with_known_ones(client: aiohttp.ClientSession, path: str, words: str) -> None:
    async with client.get(path) as response:
        assert response.status == 404
        assert (await response.text()).startswith(words)


@pytest.mark.parametrize("path", ["/api/quotas", "/api/quotas/configured", "/api/throttles", "/api/config", "/api/topics"])
async def test_unknown_parameter_is_named(client: aiohttp.ClientSession, path: str) -> None:
    async with client.get(f"{path}?kind=xyz") as response:
        assert response.status == 400
        assert await response.text() == "kind: there is no such parameter: this page has none\n"


async def test_scraper_may_add_parameters(client: aiohttp.ClientSession) -> None:
    async with client.get("/metrics?target=weir") as response:
        assert response.status == 200


async def test_metrics_page_is_open_metrics_on_request(client: aiohttp.ClientSession) -> None:
    async with client.get("/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"}) as response:
        assert response.content_type == "application/openmetrics-text"
        assert (await response.text()).endswith("# EOF\n")


async def test_parallel_scrapes_succeed(client: aiohttp.ClientSession) -> None:
    async def scrape() -> int:
        async with client.get("/metrics") as response:
            await response.read()
            return response.status

    assert await asyncio.gather(*(scrape() for _ in range(10))) == [200] * 10


async def test_livez_answers_live(client: aiohttp.ClientSession) -> None:
    async with client.get("/livez") as response:
        assert (response.status, await response.text()) == (200, "live\n")


async def test_readyz_gives_the_reason(client: aiohttp.ClientSession, readiness) -> None:
    async with client.get("/readyz") as response:
        assert (response.status, await response.text()) == (200, "ready\n")
    readiness.reason = "no broker of upstream.bootstrap_servers answers"
    async with client.get("/readyz") as response:
        assert (response.status, await response.text()) == (503, "no broker of upstream.bootstrap_servers answers\n")


async def test_quotas_page_lists_rows_and_units(client: aiohttp.ClientSession, view: AdminView) -> None:
    answer = await ask(client, "/api/quotas")
    assert answer["generated_at"] == "2026-01-01T00:00:00.250Z"
    assert answer["enforce"] is True
    assert answer["units"]["produce"] == "bytes"
    assert len(answer["rows"]) == len(at_once(view.engine.rows(view.monotonic())))
    (alice,) = [row for row in answer["rows"] if row["user"] == "alice"]
    assert alice["throttle_left"] == pytest.approx(3.0)
    assert alice["level"] == "user=<default>, client-id=<default>"
    assert (alice["kind"], alice["client_id"], alice["limit"], alice["early_total"]) == ("produce", "etl", 100_000, 2)


async def test_throttles_page_lists_current_throttles(client: aiohttp.ClientSession) -> None:
    answer = await ask(client, "/api/throttles")
    assert [row["user"] for row in answer["rows"]] == ["alice"]
    assert answer["muted_connections"] == 1


async def test_config_page_shows_config_in_effect(client: aiohttp.ClientSession, view: AdminView) -> None:
    answer = await ask(client, "/api/config")
    assert (answer["version"], answer["loaded_at"]) == (1, "2026-01-01T00:00:00.250Z")
    assert answer["last_reload"] is None
    assert parse_config(json.dumps(answer["config"]), source="/api/config") == view.effective.config


async def test_config_page_is_of_one_moment(client: aiohttp.ClientSession, view: AdminView, monkeypatch) -> None:
    """The event loop is free while a thread describes the config, so a reload may come meanwhile."""
    loop, before, reloaded = asyncio.get_running_loop(), view.effective.config, threading.Event()
    after = before.model_copy(update={"workers": 2})
    dump = WeirConfig.model_dump

    def reload() -> None:
        view.effective.record(ReloadResult(5_000.0, after, changes=("workers: 1 -> 2",)))
        reloaded.set()

    def slow_dump(config: WeirConfig, **options: Any) -> dict[str, Any]:
        loop.call_soon_threadsafe(reload)
        assert reloaded.wait(20)
        return dump(config, **options)

    monkeypatch.setattr(WeirConfig, "model_dump", slow_dump)
    answer = await ask(client, "/api/config")
    assert view.effective.version == 2
    assert (answer["version"], answer["config"]["workers"], answer["last_reload"]) == (1, 1, None)


async def test_config_page_shows_refused_reload(client: aiohttp.ClientSession, view: AdminView) -> None:
    problem = Problem("admin.port", "must be at most 65535", "write a number at most 65535", "99999", 3)
    view.effective.record(ReloadResult(5_000.0, view.effective.config, problems=(problem,)))
    answer = await ask(client, "/api/config")
    assert answer["version"] == 1
    assert answer["reloads"] == {"success": 0, "failure": 1}
    assert answer["last_reload"] == {
        "result": "failure",
        "at": "1970-01-01T01:23:20.000Z",
        "changes": [],
        "problems": [
            {
                "key": "admin.port",
                "message": "must be at most 65535",
                "remedy": "write a number at most 65535",
                "value": "99999",
                "line": 3,
            }
        ],
    }


async def test_index_links_to_every_page(client: aiohttp.ClientSession) -> None:
    async with client.get("/") as response:
        assert response.content_type == "text/html"
        page = await response.text()
    links = [part.split('"')[0] for part in page.split('href="')[1:]]
    pages = [
        "/metrics",
        "/api/quotas",
        "/api/throttles",
        "/api/connections",
        "/api/topics",
        "/api/volumes",
        "/api/groups",
        "/api/sharing",
        "/api/config",
        "/livez",
        "/readyz",
    ]
    assert [link for link in links if link.startswith("/")] == pages
    for link in pages:
        async with client.get(link) as response:
            assert response.status == 200


@pytest.mark.parametrize("path", ["/", "/metrics", "/livez", "/api/config", "/api/stream", "/nowhere"])
async def test_responses_have_security_headers(client: aiohttp.ClientSession, path: str) -> None:
    async with client.get(path) as response:
        assert response.headers["Cache-Control"] == "no-store"
        assert response.headers["X-Content-Type-Options"] == "nosniff"
        assert response.headers["Cross-Origin-Resource-Policy"] == "same-origin"
        policy = response.headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'")
    assert "frame-ancestors 'none'" in policy


async def test_live_page_runs_its_own_script_only(client: aiohttp.ClientSession) -> None:
    async with client.get("/") as response:
        page, policy = await response.text(), response.headers["Content-Security-Policy"]
    (script,) = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    hashed = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    directives = dict(part.strip().split(" ", 1) for part in policy.split(";"))
    assert directives["script-src"] == f"'sha256-{hashed}'"
    assert (directives["connect-src"], directives["base-uri"]) == ("'self'", "'none'")
    assert not re.search(r"<[^>]* on\w+=", page), "an inline handler, which the policy forbids"


async def test_post_to_read_only_page_is_refused(client: aiohttp.ClientSession) -> None:
    async with client.post("/api/config") as response:
        assert response.status == 405


async def test_port_in_use_is_named(server: AdminServer, view: AdminView) -> None:
    second = AdminServer(view, ("127.0.0.1", server.port))
    with pytest.raises(BindError, match=rf"^admin\.port: 127\.0\.0\.1:{server.port} can't be bound: .*choose another"):
        await second.start()
    await second.stop()


def test_address_of_another_machine_is_named(view: AdminView) -> None:
    """The event loop is a gateway's, uvloop. The error of asyncio's own loop has no cause with Python 3.13."""
    with pytest.raises(BindError, match=r"^admin\.port: 192\.0\.2\.1:9644 can't be bound: Cannot assign .*set admin\.host"):
        uvloop.run(AdminServer(view, ("192.0.2.1", 9644)).start())


async def test_port_is_free_after_stop(view: AdminView) -> None:
    port = free_port()
    for _ in range(2):
        server = AdminServer(view, ("127.0.0.1", port))
        await server.start()
        await server.stop()
        await server.stop()


async def test_port_zero_lets_the_system_choose(view: AdminView) -> None:
    server = AdminServer(view, ("127.0.0.1", 0))
    await server.start()
    assert server.port > 0
    await server.stop()


@pytest.mark.parametrize("header", ["via", "Forwarded", "X-Forwarded-For", "X-Forwarded-Proto", "X-Real-IP"])
async def test_no_proxy_forgives_for_others(client: aiohttp.ClientSession, header: str) -> None:
    """A proxy on the gateway's host looks like this host itself."""
    async with client.post("/api/quotas/forgive", json={"user": "alice"}) as response:
        assert response.status == 200
    async with client.post("/api/quotas/forgive", json={"user": "alice"}, headers={header: "for=10.0.0.1"}) as response:
        assert response.status == 403
        assert "says that a proxy passes this on" in await response.text()


async def wants_to_forgive(bound: str, peer: str | None, own: str) -> None:
    """A request for a server that binds `bound`; raises web.HTTPForbidden if it may not clear debts."""
    names = {"peername": peer if peer is None else (peer, 40_000), "sockname": (own, 9644)}
    transport = mock.Mock()
    transport.get_extra_info = lambda name, default=None: names.get(name, default)
    request = make_mocked_request("POST", "/api/quotas/forgive", transport=transport)
    listeners = [{"name": "clients", "bootstrap_port": 9092}]
    config = WeirConfig.model_validate(
        {"upstream": {"bootstrap_servers": ["kafka:9092"]}, "listeners": listeners, "admin": {"host": bound}}
    )
    with pytest.raises(web.HTTPUnsupportedMediaType):  # the next check, so the sender is accepted
        await read_filter(request, config)


@pytest.mark.parametrize(
    ("bound", "peer", "own"),
    [
        ("10.0.0.11", "10.0.0.11", "10.0.0.11"),
        ("weir1.example", "10.0.0.11", "10.0.0.11"),
        ("10.0.0.11", "::ffff:10.0.0.11", "10.0.0.11"),
        ("fd00::2", "fd00::2", "fd00:0::2"),
        ("0.0.0.0", "127.0.0.1", "127.0.0.1"),
        ("::", "::ffff:127.0.0.1", "::ffff:127.0.0.1"),
    ],
)
async def test_own_host_may_forgive(bound: str, peer: str, own: str) -> None:
    await wants_to_forgive(bound, peer, own)


@pytest.mark.parametrize(
    ("bound", "peer", "named"),
    [
        ("10.0.0.11", "10.0.0.12", "10.0.0.11:9644"),
        ("10.0.0.11", None, "10.0.0.11:9644"),
        ("0.0.0.0", "10.0.0.11", "127.0.0.1:9644"),  # rootless containers give each sender the container's own address
        ("::", "fd00::2", r"\[::1\]:9644"),
    ],
)
async def test_other_machines_may_not_forgive(bound: str, peer: str | None, named: str) -> None:
    own = "fd00::2" if ":" in bound else "10.0.0.11"
    with pytest.raises(web.HTTPForbidden) as refused:
        await wants_to_forgive(bound, peer, own)
    assert re.search(f"with --admin http://{named}\n$", refused.value.text or "")
