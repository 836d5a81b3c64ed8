"""`workers: 2` with real processes and without a cluster."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import tempfile
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from gateway import clock, state_locks
from gateway.config.load import load_config
from gateway.config.problems import ConfigError
from gateway.drain import Stopping
from gateway.features.quota_api.config import StateConfig
from gateway.features.recent_use.usage_file import entity_line, write_usage
from gateway.quotas.entity import Tags
from gateway.quotas.meter import PastUse
from gateway.quotas.recent_use import BucketUse, Moment, RecentUse
from gateway.quotas.settings import Metering
from gateway.workers.supervisor import PrivateDirectory, Supervisor, supervise
from loadtest.testkit.kafka import free_port
from tests.gateway.features.notify.test_webhook import SECRET, Receiver
from tests.weir_process import Weir, wait_until

pytestmark = pytest.mark.process

API_VERSIONS = bytes.fromhex("00120000000000010000")
REQUEST = len(API_VERSIONS).to_bytes(4, "big") + API_VERSIONS
QUOTAS = {"entities": [{"user": "<default>", "producer_byte_rate": 100_000}]}
_USE = RecentUse(1e5, Metering(), (PastUse(0.0, 0.0, 1e8),))
DEBT = entity_line(BucketUse("produce", Tags("alice", None), _USE))
"""A line of recent use: about 1 000 s of debt by these quotas."""


def gateway(directory: Path, upstream: str = "", **config: Any) -> Weir:
    return Weir(directory, upstream or f"127.0.0.1:{free_port()}", {"workers": 2, "quotas": QUOTAS, **config}, wait="/livez")


def pids(weir: Weir) -> list[int]:
    """Wait until all workers answer and return their process ids."""
    wait_until(lambda: weir.metric("weir_worker_up") == 2, "both workers answer")
    return [worker["pid"] for worker in weir.workers()]


def connections(weir: Weir) -> list[float]:
    """Return each worker's connections. A worker that is slow to answer is missing and counts 0."""
    return [weir.metric("weir_worker_connections", worker=worker) for worker in "01"]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # the latter: it ends between the open and the read
        return False


def who_logged(weir: Weir, text: str) -> set[int | None]:
    """Return the workers with this text in their log lines; None stands for the supervisor."""
    return {event.get("worker") for event in weir.events() if text in event["msg"]}


def reload(weir: Weir, config: dict[str, Any]) -> None:
    """Replace the config file, and wait until the supervisor and both workers have applied it."""

    def reloads() -> Counter[int | None]:
        return Counter(event.get("worker") for event in weir.events() if "reloaded" in event["msg"])

    before = reloads()
    weir.write_config(config)
    weir.reload()
    wait_until(lambda: len(reloads() - before) == 3, "all processes apply the config")


def private_directory(worker: int) -> Path:
    """Return the workers' shared directory, from the command line of one worker."""
    arguments = Path(f"/proc/{worker}/cmdline").read_text().split("\0")
    descriptor = Path(arguments[arguments.index("--worker-directory") + 1]).name
    return Path(f"/proc/{worker}/fd/{descriptor}").readlink()


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.fixture(scope="module")
def weir(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Weir]:
    directory = tmp_path_factory.mktemp("workers")
    with gateway(directory, ledger={"path": str(directory / "ledger"), "gateway": "weir-a", "flush_seconds": 1}) as running:
        yield running


class TestAtWork:
    def test_each_worker_is_a_process_on_the_same_port(self, weir: Weir) -> None:
        one, other = pids(weir)
        assert sorted(children(weir.pid)) == sorted([one, other])
        rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        port, listening = f":{weir.ports[0]:04X}", "0A"
        assert sum(row[1].endswith(port) and row[3] == listening for row in rows) == 2

    def test_readyz_names_workers_and_reasons(self, weir: Weir) -> None:
        pids(weir)
        reason = wait_until(lambda: "can't be reached" in weir.not_ready() and weir.not_ready(), "the reason of each worker")
        assert reason.startswith("worker 0: the cluster can't be reached")
        assert "; worker 1: " in reason
        assert weir.metric("weir_ready") == 0

    def test_every_page_answers(self, weir: Weir) -> None:
        pids(weir)
        assert weir.get("/livez") == "live\n"
        assert "<title>Weir</title>" in weir.get("/")
        assert weir.api("quotas")["rows"] == []
        assert weir.api("throttles")["muted_connections"] == 0
        assert weir.api("topics").keys() == {"generated_at", "configured"}
        assert weir.api("volumes")["configured"] is False
        assert weir.api("config")["config"]["workers"] == 2

    def test_foreign_host_is_refused(self, weir: Weir) -> None:
        request = urllib.request.Request(f"{weir.admin}/api/config", headers={"Host": "rebound.example"})
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(request, timeout=30)
        with refused.value as answer:
            assert answer.code == 421

    def test_parallel_scrapes_ask_each_worker_a_few_times(self, weir: Weir) -> None:
        pids(weir)
        before = weir.metric("weir_worker_cpu_seconds_total")
        for _ in range(3):
            weir.get("/metrics")
        one = (weir.metric("weir_worker_cpu_seconds_total") - before) / 4
        with ThreadPoolExecutor(60) as pool:
            assert all(pool.map(lambda _: weir.get("/metrics"), range(60)))
        cost = weir.metric("weir_worker_cpu_seconds_total") - before - 4 * one
        assert cost < 20 * max(one, 0.005)

    def test_connections_of_all_workers_are_counted(self, weir: Weir) -> None:
        pids(weir)
        sockets = [socket.create_connection(("127.0.0.1", weir.ports[0])) for _ in range(40)]
        try:
            wait_until(lambda: weir.metric("weir_connections") == 40, "40 connections")
            # The kernel distributes them: the probability that one worker gets none of forty is 10^-12.
            wait_until(lambda: min(shown := connections(weir)) > 0 and sum(shown) == 40, "each worker has connections")
            page = "connections?sort=since&limit=30&offset=5"
            listed = wait_until(lambda: (found := weir.api(page))["total"] == 40 and found, "each worker lists its connections")
            assert (listed["matching"], len(listed["rows"])) == (40, 30)
            since = [row["since"] for row in listed["rows"]]
            assert since == sorted(since)
            port = sockets[7].getsockname()[1]
            (row,) = weir.api(f"connections?text=127.0.0.1:{port}")["rows"]
            assert (row["user"], row["listener"]) == ("ANONYMOUS", weir.api("config")["config"]["listeners"][0]["name"])
        finally:
            for each in sockets:
                each.close()
        wait_until(lambda: weir.metric("weir_connections") == 0, "all connections are closed")

    def test_killed_worker_is_replaced(self, weir: Weir) -> None:
        one, other = pids(weir)
        before = weir.metric("weir_worker_restarts_total")
        accepted = weir.metric("weir_connections_accepted_total")
        os.kill(one, signal.SIGKILL)
        wait_until(lambda: weir.workers()[0]["pid"] not in {one, None}, "a replacement process")
        after, still = pids(weir)
        assert still == other
        assert after not in {one, other}
        assert weir.metric("weir_worker_restarts_total") == before + 1
        assert weir.metric("weir_connections_accepted_total") >= accepted, "counters of the killed worker stay"
        assert "worker 0 was ended by signal 9" in weir.log()

    def test_reload_reaches_all_workers_and_later_ones(self, weir: Weir) -> None:
        _, other = pids(weir)
        changed = {**weir.config, "quotas": {**QUOTAS, "enforce": False}}
        reload(weir, changed)
        weir.write_config({**changed, "workers": 3})
        wait_until(lambda: weir.metric("weir_config_reloads_total", result="failure") > 0, "the config is refused")
        os.kill(other, signal.SIGKILL)
        wait_until(lambda: weir.workers()[1]["pid"] not in {other, None}, "a replacement process")
        pids(weir)
        config = weir.api("config")["config"]
        assert (config["workers"], config["quotas"]["enforce"]) == (2, False)
        wait_until(lambda: weir.metric("weir_quota_enforced") == 0, "no worker enforces")
        reload(weir, weir.config)

    def test_replaced_workers_keep_the_version_of_the_config(self, weir: Weir) -> None:
        old = pids(weir)
        reload(weir, {**weir.config, "quotas": {"entities": []}})
        reload(weir, weir.config)
        version = weir.metric("weir_config_version")
        assert version >= 3
        for pid in old:
            os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not {worker["pid"] for worker in weir.workers()} & {*old, None}, "replacement processes")
        pids(weir)
        answer = weir.api("config")
        assert weir.metric("weir_config_version") == answer["version"] == version
        assert [(each["worker"], each["version"], each["current"]) for each in answer["workers"]] == [
            (0, version, True),
            (1, version, True),
        ]

    def test_config_that_cannot_be_stored_still_applies(self, weir: Weir) -> None:
        one, other = pids(weir)
        in_the_way = private_directory(one) / "config.new"
        in_the_way.mkdir()
        weir.write_config({**weir.config, "quotas": {**QUOTAS, "enforce": False}})
        wait_until(lambda: "can't be saved" in weir.log(), "the warning is logged")
        wait_until(lambda: weir.metric("weir_quota_enforced") == 0, "both workers have applied the config")
        assert pids(weir) == [one, other]
        in_the_way.rmdir()
        weir.reload()
        wait_until(lambda: '"enforce": false' in in_the_way.with_name("config.json").read_text(), "the config is stored")
        reload(weir, weir.config)
        wait_until(lambda: weir.metric("weir_quota_enforced") == 1, "both workers have the first config again")

    def test_each_worker_writes_its_own_ledger(self, weir: Weir) -> None:
        pids(weir)
        reload(weir, {**weir.config, "quotas": {"entities": []}})
        reload(weir, weir.config)
        ledger = weir.config_file.with_name("ledger")
        for worker in ("weir-a-0", "weir-a-1"):
            wait_until(lambda worker=worker: list(ledger.glob(f"date=*/hour=*/*weir-{worker}-*")), f"the events of {worker}")

    def test_live_page_shows_all_workers(self, weir: Weir) -> None:
        pids(weir)
        with urllib.request.urlopen(f"{weir.admin}/api/stream", timeout=60) as stream:
            events = [(stream.readline().decode(), stream.readline().decode(), stream.readline())[:2] for _ in range(3)]
        assert [name.strip() for name, _ in events] == ["event: history", "event: snapshot", "event: snapshot"]
        history, snapshot, _ = (json.loads(data.removeprefix("data: ")) for _, data in events)
        assert history[-1].keys() == {"at", "muted", "throttles"}
        assert [worker["worker"] for worker in snapshot["workers"]] == [0, 1]
        assert snapshot["rates"]["produce"] == 0
        assert snapshot["config"]["version"] >= 1

    def test_background_task_failures_are_counted(self, weir: Weir) -> None:
        assert 'weir_task_restarts_total{task="reload the config"} 0.0' in weir.get("/metrics")
        assert 'weir_task_restarts_total{task="tick"} 0.0' in weir.get("/metrics")

    def test_log_lines_name_their_worker(self, weir: Weir) -> None:
        pids(weir)
        serving = [event["worker"] for event in weir.events() if event["msg"] == "serving"]
        assert serving[:2] == [0, 1]

    def test_worker_that_cannot_start_is_retried(self, weir: Weir) -> None:
        _, other = pids(weir)
        state = weir.config_file.with_name("weir.state.json")
        state.write_text("{")
        try:
            os.kill(other, signal.SIGKILL)
            tries = "worker 1 ended with exit code 1; another is started in "
            wait_until(lambda: weir.log().count(tries) >= 2, "the start is retried", timeout=60)
            wait_until(lambda: weir.metric("weir_worker_up", worker="0") == 1, "worker 0 answers")
            assert weir.metric("weir_worker_up", worker="1") == 0
            assert weir.process.poll() is None
        finally:
            state.unlink()
        pids(weir)


def test_one_worker_runs_in_one_process(tmp_path: Path) -> None:
    with gateway(tmp_path, workers=1) as weir:
        assert children(weir.pid) == []
        assert not any("worker" in event for event in weir.events())


def test_length_of_the_temporary_directory_does_not_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The path of a Unix socket has at most 107 bytes."""
    long = tmp_path / ("d" * 107)
    long.mkdir()
    monkeypatch.setenv("TMPDIR", str(long))
    with gateway(tmp_path) as weir:
        assert private_directory(pids(weir)[0]).parent == long
    assert not any(long.iterdir())


@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1)])
def test_debt_outlives_a_change_of_workers(tmp_path: Path, before: int, after: int) -> None:
    weir = gateway(tmp_path, workers=after, sharing=None)
    for file in StateConfig().usage_files(weir.config_file, before):
        write_usage(file, Moment(clock.boot_id(), clock.monotonic(), clock.wall()), [DEBT])
    with weir:
        restored = {None} if after == 1 else {0, 1}
        wait_until(lambda: who_logged(weir, "recent use restored") == restored, "each process restores the use")
        (row,) = [row for row in weir.usage() if row["kind"] == "produce"]
        assert row["tokens"] < 0.0


def test_sigterm_ends_all_workers(tmp_path: Path) -> None:
    with gateway(tmp_path) as weir:
        running = pids(weir)
        directory = private_directory(running[0])
        assert directory.stat().st_mode & 0o777 == 0o700
        assert weir.stop() == 0
    assert not any(map(alive, running))
    assert not directory.exists()


def test_sigterm_during_the_start_leaves_no_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    weir = gateway(tmp_path)
    weir.launch()
    wait_until(lambda: list(folder.iterdir()), "the directory of the workers")
    weir.process.terminate()
    assert weir.process.wait(60) == 0
    assert not list(folder.iterdir())


async def test_sigterm_sends_waiting_notifications(tmp_path: Path) -> None:
    """The supervisor watches the episodes of all workers. Here, an address opens more connections than its quota allows."""
    async with Receiver(503, headers={"Retry-After": "60"}).serve() as receiver:
        weir = gateway(
            tmp_path,
            quotas={"entities": [{"ip": "<default>", "connection_creation_rate": 1}]},
            notify={"targets": [{"name": "ops", "url": f"http://127.0.0.1:{receiver.port}/{SECRET}", "events": ["throttled"]}]},
            connections={"drain_seconds": 0},
        )
        await asyncio.to_thread(weir.start)
        try:
            await asyncio.to_thread(pids, weir)
            sockets = [socket.create_connection(("127.0.0.1", weir.ports[0])) for _ in range(40)]
            (first,) = await receiver.got(1)
            for each in sockets:
                each.close()
        finally:
            await asyncio.to_thread(weir.stop)
        assert receiver.bodies == [first, first]


def test_workers_end_with_a_killed_supervisor(tmp_path: Path) -> None:
    weir = gateway(tmp_path)
    weir.start()
    running = pids(weir)
    directory = private_directory(running[0])
    weir.process.kill()
    weir.process.wait()
    wait_until(lambda: not any(map(alive, running)), "the workers are gone")
    assert not directory.exists()


def test_workers_of_a_killed_supervisor_save_no_use(tmp_path: Path) -> None:
    """The next supervisor's workers write the same files while the old workers drain."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        state = {"usage_interval_ms": 3_600_000}
        weir = gateway(
            tmp_path, f"127.0.0.1:{silent.getsockname()[1]}", connections={"drain_seconds": 3_600}, state=state, sharing=None
        )
        files = StateConfig().usage_files(weir.config_file, 2)
        for file in files:
            write_usage(file, Moment(clock.boot_id(), clock.monotonic(), clock.wall()), [DEBT])
        weir.start()
        running = pids(weir)
        with socket.create_connection(("127.0.0.1", weir.ports[0]), timeout=30) as client:
            client.sendall(REQUEST)
            wait_until(lambda: weir.metric("weir_requests_total"), "the request is in flight")
            for file in files:
                file.write_text("of the next worker")
            weir.process.kill()
            weir.process.wait()
            wait_until(lambda: who_logged(weir, "draining 1 connections"), "the drain waits for the connection")
    wait_until(lambda: not any(map(alive, running)), "the workers are gone")
    assert [file.read_text() for file in files] == ["of the next worker"] * 2


def test_second_sigterm_cuts_connections(tmp_path: Path) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        gateway(tmp_path, f"127.0.0.1:{silent.getsockname()[1]}", connections={"drain_seconds": 3_600}) as weir,
    ):
        running = pids(weir)
        with socket.create_connection(("127.0.0.1", weir.ports[0]), timeout=30) as client:
            client.sendall(REQUEST)
            wait_until(lambda: weir.metric("weir_requests_total"), "the request is in flight")
            weir.process.send_signal(signal.SIGTERM)
            wait_until(lambda: weir.not_ready() == "draining\n", "the gateway drains")
            serving = wait_until(lambda: who_logged(weir, "draining 1 connections"), "the drain waits for the connection")
            weir.process.send_signal(signal.SIGTERM)
            assert client.recv(1) == b""
            last_message_failed = "the last message to the other gateways can't be published"
            assert not serving & who_logged(weir, last_message_failed), "no client is served while the others drain"
            assert weir.process.wait(60) == 0
            assert serving <= who_logged(weir, last_message_failed)
        assert not any(map(alive, running))


class TestWhatKeepsItFromStarting:
    def test_port_in_use_is_named(self, tmp_path: Path) -> None:
        weir = gateway(tmp_path)
        with socket.create_server(("127.0.0.1", weir.ports[0])):
            weir.launch()
            assert weir.process.wait(60) == 3
        (line,) = (event for event in weir.events() if event["level"] == "error")
        assert line["msg"].startswith(f"listeners[clients].bootstrap_port: 127.0.0.1:{weir.ports[0]} can't be bound")

    def test_second_weir_on_the_port_is_refused(self, tmp_path: Path) -> None:
        """Both gateways could bind the port, and each would get some of the other's clients."""
        weir = gateway(tmp_path)
        with socket.create_server(("127.0.0.1", weir.ports[0]), reuse_port=True):
            weir.launch()
            assert weir.process.wait(60) == 3
        assert "can't be bound" in weir.log()

    async def test_state_file_of_another_gateway_is_refused(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(state_locks, "WAIT_SECONDS", 0.0)
        weir = gateway(tmp_path)
        config = load_config(weir.config_file)
        other = state_locks.StateLocks(config.state, weir.config_file)
        await other.take()
        with PrivateDirectory() as directory, pytest.raises(ConfigError, match=r"state\.path: another gateway uses the file"):
            await Supervisor(weir.config_file, config, directory, (), Stopping()).run()
        other.release()

    async def test_missing_temporary_directory_is_named(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        weir = gateway(tmp_path)
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
        assert await supervise(weir.config_file, load_config(weir.config_file)) == 1
        assert "no directory for the workers: " in caplog.text

    def test_admin_port_in_use_is_named(self, tmp_path: Path) -> None:
        weir = gateway(tmp_path)
        with socket.create_server(("127.0.0.1", weir.config["admin"]["port"])):
            weir.launch()
            assert weir.process.wait(60) == 3
        (line,) = (event for event in weir.events() if event["level"] == "error")
        assert line["msg"].startswith("admin.port: ")

    def test_error_found_by_a_worker_is_printed_once(self, tmp_path: Path) -> None:
        weir = gateway(tmp_path)
        (tmp_path / "weir.state.json").write_text("{")
        weir.launch()
        assert weir.process.wait(60) == 1
        assert weir.log().count("is damaged") == 1

    def test_config_error_is_printed(self, tmp_path: Path) -> None:
        weir = gateway(tmp_path, workers=0)
        found = subprocess.run(weir.command(), capture_output=True, text=True, timeout=60)
        assert found.returncode == 1
        assert found.stderr.startswith("workers: must be at least 1 (value 0")
