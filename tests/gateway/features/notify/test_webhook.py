"""A target's sender, against a real HTTP server: retries, redirects, slow servers, bounded queues, hidden URLs."""

import asyncio
import logging
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from gateway.features.notify import webhook as module
from gateway.features.notify.config import NotifyTargetConfig
from gateway.features.notify.webhook import ATTEMPTS, Webhook
from gateway.log import OncePerPeer
from loadtest.testkit.certificates import Authority
from loadtest.testkit.kafka import free_port
from tests.gateway.running import until

PATIENCE = 60.0
SECRET = "s3cret"

Answer = Callable[[dict[str, Any]], Awaitable[web.Response]]


class Receiver:
    """An HTTP server that gives the next of `statuses` to each request, and then 200."""

    def __init__(self, *statuses: int, headers: dict[str, str] | None = None) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.port = 0
        self._statuses = list(statuses)
        self._headers = headers
        self._arrived = asyncio.Condition()

    async def handle(self, request: web.Request) -> web.Response:
        async with self._arrived:
            self.bodies.append(await request.json())
            self._arrived.notify_all()
        return web.Response(status=self._statuses.pop(0) if self._statuses else 200, headers=self._headers)

    async def got(self, count: int) -> list[dict[str, Any]]:
        async with self._arrived:
            await asyncio.wait_for(self._arrived.wait_for(lambda: len(self.bodies) >= count), PATIENCE)
        return self.bodies

    @asynccontextmanager
    async def serve(self, port: int = 0) -> AsyncIterator["Receiver"]:
        app = web.Application()
        app.router.add_post(f"/{SECRET}", self.handle)
        runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port).start()
        self.port = int(runner.addresses[0][1])
        try:
            yield self
        finally:
            await runner.cleanup()


class Silent(Receiver):
    """It takes requests, and never answers."""

    async def handle(self, request: web.Request) -> web.Response:
        await super().handle(request)
        await asyncio.Event().wait()
        return web.Response()


class Held(Receiver):
    """It answers once `go` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.go = asyncio.Event()

    async def handle(self, request: web.Request) -> web.Response:
        answer = await super().handle(request)
        await self.go.wait()
        return answer


def target(port: int) -> NotifyTargetConfig:
    return NotifyTargetConfig(name="ops", url=f"http://127.0.0.1:{port}/{SECRET}")


@asynccontextmanager
async def sending(webhook: Webhook) -> AsyncIterator[Webhook]:
    task = asyncio.create_task(webhook.run())
    try:
        yield webhook
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def settled(webhook: Webhook) -> None:
    await until(lambda: not len(webhook))


def quick(port: int, **bounds: Any) -> Webhook:
    return Webhook(target(port), Path(), PATIENCE, first_pause_seconds=0.001, **bounds)


async def test_notifications_arrive_in_order() -> None:
    async with Receiver().serve() as receiver, sending(quick(receiver.port)) as webhook:
        for number in range(3):
            webhook.offer({"number": number})
        assert await receiver.got(3) == [{"number": 0}, {"number": 1}, {"number": 2}]
        await settled(webhook)
        assert webhook.results == {"sent": 3, "failed": 0, "dropped": 0}


@pytest.mark.parametrize("status", [500, 503, 429, 408])
async def test_failed_attempt_is_repeated(status: int) -> None:
    async with Receiver(status, status).serve() as receiver, sending(quick(receiver.port)) as webhook:
        webhook.offer({"number": 1})
        webhook.offer({"number": 2})
        assert [body["number"] for body in await receiver.got(4)] == [1, 1, 1, 2]
        await settled(webhook)
        assert webhook.results["sent"] == 2


async def test_server_that_comes_back_gets_the_notification(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ATTEMPTS", 100_000)
    monkeypatch.setattr(module, "LONGEST_PAUSE_SECONDS", 0.05)
    port = free_port()
    async with sending(quick(port)) as webhook:
        webhook.offer({"number": 1})
        async with Receiver().serve(port) as receiver:
            assert await receiver.got(1) == [{"number": 1}]


async def test_lasting_failure_gives_up_and_goes_on(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LONGEST_PAUSE_SECONDS", 0.001)
    async with Receiver(*[500] * ATTEMPTS).serve() as receiver, sending(quick(receiver.port)) as webhook:
        webhook.offer({"number": 1})
        webhook.offer({"number": 2})
        assert len(await receiver.got(ATTEMPTS + 1)) == ATTEMPTS + 1
        await settled(webhook)
        assert webhook.results == {"sent": 1, "failed": 1, "dropped": 0}
    # As in the log of a gateway, which keeps one line a minute.
    kept = list(filter(OncePerPeer(now=lambda: 0.0).filter, caplog.records))
    lines = [f"notify target ops: answers 500 — {end}" for end in (f"attempt 1 of {ATTEMPTS}", "the notification is lost")]
    assert [line.getMessage() for line in kept] == lines


@pytest.mark.parametrize(("status", "words"), [(404, "answers 404"), (302, "answers 302, a redirect: configure the address")])
async def test_refusal_and_redirect_are_not_repeated(status: int, words: str, caplog: pytest.LogCaptureFixture) -> None:
    async with Receiver().serve() as elsewhere:
        headers = {"Location": f"http://127.0.0.1:{elsewhere.port}/{SECRET}"}
        async with Receiver(status, headers=headers).serve() as receiver, sending(quick(receiver.port)) as webhook:
            webhook.offer({"number": 1})
            webhook.offer({"number": 2})
            assert [body["number"] for body in await receiver.got(2)] == [1, 2]
            await settled(webhook)
            assert webhook.results == {"sent": 1, "failed": 1, "dropped": 0}
        assert elsewhere.bodies == []
    assert words in caplog.text


async def test_slow_server_runs_into_the_timeout(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ATTEMPTS", 2)
    async with Silent().serve() as receiver, sending(quick(receiver.port)) as webhook:
        webhook.timeout_seconds = 0.2  # as after a reload
        webhook.offer({"number": 1})
        await settled(webhook)
        assert webhook.results["failed"] == 1
    assert "no answer in time" in caplog.text


async def test_success_needs_no_end_of_the_answer() -> None:
    """The receiver has the notification. To send it again would repeat it, and count it as lost."""
    begun = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"number")
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        begun.set()
        await reader.read()  # until the client closes the connection
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server, sending(quick(server.sockets[0].getsockname()[1])) as webhook:
        webhook.offer({"number": 1})
        await asyncio.wait_for(begun.wait(), PATIENCE)
        await asyncio.wait_for(settled(webhook), 5.0)
        assert webhook.results == {"sent": 1, "failed": 0, "dropped": 0}


async def test_full_queue_drops_the_oldest() -> None:
    async with Receiver().serve() as receiver:
        webhook = quick(receiver.port, max_waiting=2)
        for number in range(5):
            webhook.offer({"number": number})
        async with sending(webhook):
            assert await receiver.got(2) == [{"number": 3}, {"number": 4}]
        assert webhook.results["dropped"] == 3


async def test_full_queue_keeps_the_one_under_delivery() -> None:
    async with Held().serve() as receiver, sending(quick(receiver.port, max_waiting=2)) as webhook:
        webhook.offer({"number": 0})
        await receiver.got(1)
        webhook.offer({"number": 1})
        webhook.offer({"number": 2})
        receiver.go.set()
        assert await receiver.got(2) == [{"number": 0}, {"number": 2}]
        await settled(webhook)
        assert webhook.results == {"sent": 2, "failed": 0, "dropped": 1}


async def test_url_is_in_no_log(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ATTEMPTS", 2)
    caplog.set_level(logging.DEBUG)
    async with sending(quick(free_port())) as webhook:
        webhook.offer({"number": 1})
        await settled(webhook)
    assert "can't be reached: Connection refused" in caplog.text
    assert SECRET not in caplog.text


async def test_untrusted_certificate_is_named(
    authority: Authority, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OpenSSL's error has the number 1, as EPERM has."""
    monkeypatch.setattr(module, "ATTEMPTS", 1)
    mine = authority.issue("hooks")
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(mine.cert, mine.key)
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0, ssl=tls)
    port = server.sockets[0].getsockname()[1]
    hook = NotifyTargetConfig(name="ops", url=f"https://127.0.0.1:{port}/{SECRET}")
    async with server, sending(Webhook(hook, Path(), PATIENCE)) as webhook:
        webhook.offer({"number": 1})
        await settled(webhook)
    assert "can't be reached: TLS fails: " in caplog.text
    assert "certificate verify failed" in caplog.text
    assert SECRET not in caplog.text


async def test_silent_name_server_leaves_lookups_to_brokers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The event loop of a gateway has two threads for lookups. Here it has one."""
    look_up, asked, answer = socket.getaddrinfo, threading.Event(), threading.Event()

    def silent(host: str | None, *arguments: Any, **options: Any) -> Any:
        if host == "hooks.invalid":
            asked.set()
            answer.wait(PATIENCE)
        return look_up(host, *arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", silent)
    loop = asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(1))
    webhook = Webhook(NotifyTargetConfig(name="ops", url="http://hooks.invalid"), Path(), PATIENCE)
    async with sending(webhook):
        webhook.offer({"number": 1})
        await until(asked.is_set)
        try:
            assert await asyncio.wait_for(loop.getaddrinfo("localhost", 9092), 5.0)
        finally:
            answer.set()


async def test_slow_lookup_is_not_begun_again(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Later attempts wait for it, and go on once it is over."""
    monkeypatch.setattr(module, "ATTEMPTS", 100_000)
    monkeypatch.setattr(module, "LONGEST_PAUSE_SECONDS", 0.01)
    look_up, asked, answer = socket.getaddrinfo, list[str](), threading.Event()

    def slow(host: Any, *arguments: Any, **options: Any) -> Any:
        if host == "hooks.invalid":
            asked.append(host)
            answer.wait(PATIENCE)
        return look_up("127.0.0.1", *arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    async with Receiver().serve() as receiver:
        url = f"http://hooks.invalid:{receiver.port}/{SECRET}"
        webhook = Webhook(NotifyTargetConfig(name="ops", url=url), Path(), 0.02, first_pause_seconds=0.001)
        async with sending(webhook):
            webhook.offer({"number": 1})
            await until(lambda: caplog.text.count("no answer in time") > 2)
            webhook.timeout_seconds = PATIENCE
            answer.set()
            assert await receiver.got(1) == [{"number": 1}]
    assert asked == ["hooks.invalid"]
