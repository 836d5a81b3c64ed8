"""A query of the admin server, or a body that clears debts, gets an answer or a 4xx with a sentence: never a 500."""

import asyncio
import json
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any
from urllib.parse import quote

from aiohttp import web
from aiohttp.test_utils import make_mocked_request
from yarl import URL

from gateway.admin.http import explain_errors
from gateway.admin.server import AdminServer
from gateway.admin.view import AdminView
from gateway.config.effective import EffectiveConfig
from gateway.config.load import parse_config
from gateway.features.client_quotas.feature import quota_settings
from gateway.observer import Outlet
from gateway.proxy.counters import Counters
from gateway.proxy.sessions import ConnectionFacts
from gateway.quotas.debts import clear_debts
from gateway.quotas.engine import QuotaEngine
from tests.gateway.quotas.engines import bucket_of

NOW = 1_000.0
CONFIG = """
upstream: {bootstrap_servers: ["127.0.0.1:9092"]}
listeners: [{name: clients, bootstrap_port: 21250, broker_ports: 21251-21260}]
quotas:
  entities:
    - {user: "<default>", client-id: "<default>", producer_byte_rate: 100000}
    - {user: alice, consumer_byte_rate: 5, shadow: {producer_byte_rate: 5}}
    - {ip: 10.0.0.1, connection_creation_rate: 5}
  groups:
    - {name: all, producer_byte_rate: 500}
    - {name: jobs, parent: all, match: [{user: "a*", client-id: "etl?"}, {claim: {groups: etl}}, {ip: 10.0.0.0/8}]}
"""
POST = b"POST"
PATHS = ("/api/connections", "/api/groups", "/api/explain", "/entities", "/api/entities")
SHARE = 1.5
STEPS_PER_BYTE = 5_000
WORDS = tuple(
    word.encode()
    for word in (
        "sort=", "limit=", "offset=", "reverse=true", "whole=false", "user=", "client-id=", "group=", "listener=", "ip=",
        "10.0.0.1",
        "::1", "fe80::1%25x", "broker=3", "software=", "throttled=true", "text=", "kind=produce", "claim=groups=etl",
        "catch-up",
        "%ff", "%00", "%F0%9F%98%80", "%ed%a0%80", "%C2%B2", "&", "=", "<other>", "alice", "bytes", '{"user":"alice"}',
        '"client-id":', '"kind":"produce"', '"\\ud800"',
    )
)  # fmt: skip


class Here(ThreadPoolExecutor):
    """Runs the work of threads at once, in this thread."""

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        done: Future[Any] = Future()
        try:
            done.set_result(fn(*args, **kwargs))
        except BaseException as error:
            done.set_exception(error)
        return done


class Content:
    """The body of a request."""

    def __init__(self, body: bytes) -> None:
        self._body = body

    async def readany(self) -> bytes:
        body, self._body = self._body, b""
        return body


class Listed:
    def __init__(self, facts: ConnectionFacts) -> None:
        self._facts = facts

    def facts(self, now: float) -> ConnectionFacts:
        return self._facts


def _server() -> AdminServer:
    config = parse_config(CONFIG, source="weir.yaml")
    engine = QuotaEngine(quota_settings(config.quotas), NOW)
    for user, client_id in (("alice", "etl1"), ("bob", "app")):
        bucket_of(engine, "produce", user, client_id, NOW).charge(1_300_000, NOW)
    plain = ConnectionFacts("alice", "etl", "librdkafka", "2.3.0", "10.0.0.1:5001", "clients", None, NOW, 0, 0, "", 0.0)
    facts = [plain, replace(plain, user="bob", address="::1:5003", broker=3, throttled_by="volumes", throttle_left=2.5)]
    effective = EffectiveConfig(config, loaded_at=NOW, outlet=Outlet())
    view = AdminView(
        engine, Counters(), effective, lambda: None, [], monotonic=lambda: NOW, wall=lambda: 1_767_225_600.25,
        sessions=lambda: [Listed(each) for each in facts],
        forgive=lambda wanted: clear_debts(engine.buckets(), wanted, NOW)[1],
    )  # fmt: skip
    return AdminServer(view, ("127.0.0.1", 0))


async def _no_sleep(seconds: float) -> None:
    """The sample of the connections' rates takes no time here."""


_LOOP = asyncio.new_event_loop()
_LOOP.set_default_executor(Here())
_SERVER = _server()
_SERVER._connections._sleep = _no_sleep


def check(data: bytes) -> None:
    """A byte for the page, and the query; or the body of a POST."""
    if not data:
        return
    if data.startswith(POST):
        answer = _LOOP.run_until_complete(_post(data[len(POST) :]))
    else:
        query = quote(data[1:], safe="&=%+:")
        try:
            url = URL(f"{PATHS[data[0] % len(PATHS)]}?{query}", encoded=True)
        except ValueError:
            return  # aiohttp answers 400
        answer = _LOOP.run_until_complete(_get(url))
    status, body = answer
    assert status in (200, 400, 413, 415)
    assert body
    body.encode()
    if status == 200 and body.startswith("{"):
        json.loads(body)


async def _get(url: URL) -> tuple[int, str]:
    return await _answer(_SERVER._pages[url.path], make_mocked_request("GET", str(url)))


async def _post(body: bytes) -> tuple[int, str]:
    content: Any = Content(body)
    request = make_mocked_request("POST", "/api/quotas/forgive", {"Content-Type": "application/json"}, payload=content)
    return await _answer(_SERVER._actions["/api/quotas/forgive"], request.clone(remote="127.0.0.1"))


async def _answer(page: Any, request: web.Request) -> tuple[int, str]:
    try:
        response = await explain_errors(request, page)
    except web.HTTPException as refused:
        return refused.status, refused.text or ""
    return response.status, response.text


def seeds():
    queries = (
        (0, "user=alice&sort=throttle&limit=5&offset=1"), (0, "ip=10.0.0.1&reverse=true&broker=3"),
        (0, "text=li+volumes&throttled=true"),
        (0, "software=librd&listener=clients&client-id=etl&group=jobs&whole=true"), (0, "limit=-1"), (0, "broker=x"),
        (1, "kind=produce&text=jobs&limit=1"), (1, "kind=nothing"),
        (2, "user=alice&client-id=etl1&ip=10.0.0.7&claim=groups=etl&claim=x&catch-up"), (2, ""),
        (3, "user=alice&client-id=etl1"), (3, "group=jobs"), (4, "ip=10.0.0.1"), (4, ""),
    )  # fmt: skip
    for page, query in queries:
        yield bytes((page,)) + query.encode()
    for body in (b'{"user": "alice", "client-id": "etl1", "kind": "produce"}', b'{"group": "jobs"}', b"[]", b'{"user": 1}'):
        yield POST + body
