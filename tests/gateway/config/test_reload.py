"""Reloads of real files that change as people and Kubernetes change them."""

import asyncio
import gc
import logging
import os
import signal
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gateway.config import reload
from gateway.config.effective import ConfigHistory, EffectiveConfig, ReloadResult
from gateway.config.load import parse_config, read_config_text
from gateway.config.model import WeirConfig
from gateway.config.problems import ConfigError, Problem
from gateway.config.reload import Reloader, plan
from gateway.log import JsonFormatter
from gateway.observer import Outlet
from gateway.quotas.entity import EntityQuota

HEAD = 'upstream: {bootstrap_servers: ["127.0.0.1:9092"]}\nlisteners: [{name: clients, bootstrap_port: 21200}]\n'


def text(rate: int) -> str:
    return f"{HEAD}quotas: {{entities: [{{user: alice, producer_byte_rate: {rate}}}]}}\n"


def config(rate: int) -> WeirConfig:
    return parse_config(text(rate), source="weir.yaml")


def rate(of: WeirConfig) -> float:
    return of.quotas.entities[0].limits["producer_byte_rate"]


class Watched:
    """A running reloader of `path`, with its results so far."""

    def __init__(self) -> None:
        self.results: asyncio.Queue[ReloadResult] = asyncio.Queue()
        self.applied: list[tuple[float, float]] = []
        self.prepared: list[tuple[float, bool, int]] = []
        self.failure: Exception | None = None
        self.refusal: list[Problem] = []

    def apply(self, old: WeirConfig, new: WeirConfig) -> list[str]:
        if self.failure is not None:
            raise self.failure
        self.applied.append((rate(old), rate(new)))
        return ["a note"]

    def prepare(self, new: WeirConfig) -> None:
        """Note the rate, if this is the thread of the event loop, and the number of configs applied before."""
        self.prepared.append((rate(new), threading.current_thread() is threading.main_thread(), len(self.applied)))
        if self.refusal:
            raise ConfigError("weir.yaml", self.refusal)

    async def next(self) -> ReloadResult:
        return await asyncio.wait_for(self.results.get(), 20)


@asynccontextmanager
async def watching(path: Path, current: WeirConfig) -> AsyncIterator[Watched]:
    watched = Watched()
    task = asyncio.create_task(
        Reloader(path, current, watched.apply, watched.results.put_nowait, prepare=watched.prepare).run()
    )
    try:
        yield watched
    finally:
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert watched.results.empty()


@asynccontextmanager
async def changed_since_start(path: Path) -> AsyncIterator[Watched]:
    """A reloader that has applied the file in place of a rate of 50 000, as SIGHUP asked for."""
    async with watching(path, config(50_000)) as watched:
        await asyncio.sleep(0)  # the reloader installs the signal's handler
        os.kill(os.getpid(), signal.SIGHUP)
        assert (await watched.next()).success
        yield watched


@pytest.fixture(autouse=True)
def brief_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reload, "_EQUAL_READS_OF_PART", 5)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "weir.yaml"
    path.write_text(text(100_000))
    return path


def in_place(path: Path, content: str) -> None:
    path.write_text(content)


def rename_over(path: Path, content: str) -> None:
    new = path.with_suffix(".new")
    new.write_text(content)
    new.rename(path)


def move_away_and_write(path: Path, content: str) -> None:
    path.rename(path.with_suffix(".bak"))
    path.write_text(content)


@pytest.mark.parametrize("change", [in_place, rename_over, move_away_and_write])
async def test_changed_file_is_applied(path: Path, change: Callable[[Path, str], None]) -> None:
    async with watching(path, config(100_000)) as watched:
        change(path, text(200_000))
        result = await watched.next()
        change(path, text(300_000))
        again = await watched.next()
    assert result.success
    assert result.changes == ("quotas.entities: changed user=alice (producer_byte_rate 100000 -> producer_byte_rate 200000)",)
    assert (rate(result.config), rate(again.config)) == (200_000, 300_000)
    assert watched.applied == [(100_000, 200_000), (200_000, 300_000)]


async def test_first_look_compares_in_the_thread(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    threads = []

    def equal(one: WeirConfig, other: WeirConfig) -> bool:
        threads.append(threading.current_thread())
        return rate(one) == rate(other)

    current = config(100_000)
    monkeypatch.setattr(WeirConfig, "__eq__", equal)
    async with watching(path, current) as watched:
        in_place(path, text(200_000))
        await watched.next()
    assert threads
    assert threading.main_thread() not in threads


async def test_rows_of_the_old_config_are_freed_in_steps(path: Path) -> None:
    """Not in one moment: clients are served in between."""
    rows = ", ".join(f"{{user: old-{number}, producer_byte_rate: 50000}}" for number in range(100))
    old = [parse_config(f"{HEAD}quotas: {{entities: [{rows}]}}\n", source="weir.yaml")]
    left: list[int] = []

    def rows_left() -> int:
        found = (each for each in gc.get_objects() if isinstance(each, EntityQuota))
        return sum(str(each).startswith("user=old-") for each in found)

    task = asyncio.create_task(Reloader(path, old.pop(), lambda *_: [], lambda _: left.append(rows_left())).run())
    async with asyncio.timeout(20):
        while not left or rows_left():  # noqa: ASYNC110 -- the reloader tells nobody
            await asyncio.sleep(0)
    assert left[0] == 100
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_log_names_each_change_once(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows = [f"    - {{user: u{number}, producer_byte_rate: 1}}\n" for number in range(1_000, 1_150)]
    with caplog.at_level(logging.INFO, "weir.reload"):
        async with watching(path, config(100_000)) as watched:
            in_place(path, text(200_000))
            await watched.next()
            in_place(path, f"{HEAD}quotas:\n  entities:\n{''.join(rows)}")
            changes = (await watched.next()).changes
    one, many = [record for record in caplog.records if "reloaded" in record.getMessage()]
    assert JsonFormatter().format(one).count("200000") == 1
    line = JsonFormatter().format(many)
    assert [change for change in changes if change in line] == list(changes[:100])
    assert "; 51 more, 151 in all; a note" in line
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(warnings) == 101
    assert warnings[-1] == f"{path}: 50 more, 150 in all"


async def test_change_is_prepared_in_a_thread(path: Path) -> None:
    async with watching(path, config(100_000)) as watched:
        in_place(path, text(200_000))
        await watched.next()
    assert watched.prepared == [(200_000, False, 0)]
    assert watched.applied == [(100_000, 200_000)]


def config_map(folder: Path, version: str, content: str) -> None:
    """Change a mounted ConfigMap as kubelet does: a new directory, a link to it renamed over `..data`, the old one removed."""
    data = folder / "..data"
    old = data.resolve() if data.is_symlink() else None
    (folder / version).mkdir()
    (folder / version / "weir.yaml").write_text(content)
    (folder / "..data_tmp").symlink_to(version)
    (folder / "..data_tmp").rename(data)
    if old is not None:
        (old / "weir.yaml").unlink()
        old.rmdir()


async def test_changed_config_map_is_applied(tmp_path: Path) -> None:
    config_map(tmp_path, "..2026_01", text(100_000))
    path = tmp_path / "weir.yaml"
    path.symlink_to("..data/weir.yaml")
    async with watching(path, config(100_000)) as watched:
        config_map(tmp_path, "..2026_02", text(200_000))
        assert rate((await watched.next()).config) == 200_000
        config_map(tmp_path, "..2026_03", text(300_000))
        assert rate((await watched.next()).config) == 300_000
    assert watched.applied == [(100_000, 200_000), (200_000, 300_000)]


async def test_changed_link_to_another_directory_is_followed(tmp_path: Path) -> None:
    for name in ("one", "two", "etc"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "real.yaml").write_text(text(100_000))
    path = tmp_path / "etc" / "weir.yaml"
    path.symlink_to("../one/real.yaml")
    async with watching(path, config(100_000)) as watched:
        (tmp_path / "one" / "real.yaml").write_text(text(200_000))
        assert rate((await watched.next()).config) == 200_000
        (tmp_path / "etc" / "new").symlink_to("../two/real.yaml")
        (tmp_path / "etc" / "new").rename(path)
        assert rate((await watched.next()).config) == 100_000
        (tmp_path / "two" / "real.yaml").write_text(text(300_000))
        assert rate((await watched.next()).config) == 300_000


async def test_directory_that_returns_is_followed(tmp_path: Path) -> None:
    folder = tmp_path / "mounted"
    folder.mkdir()
    path = folder / "weir.yaml"
    path.write_text(text(100_000))
    async with watching(path, config(100_000)) as watched:
        folder.rename(tmp_path / "away")
        gone = await watched.next()
        folder.mkdir()
        in_place(path, text(200_000))
        assert rate((await watched.next()).config) == 200_000
    assert [problem.message for problem in gone.problems] == ["does not exist"]
    assert rate(gone.config) == 100_000


async def test_change_before_the_watch_is_applied(path: Path) -> None:
    async with watching(path, config(50_000)) as watched:
        assert rate((await watched.next()).config) == 100_000


async def test_bad_file_leaves_the_old_config(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with watching(path, config(100_000)) as watched:
        in_place(path, text(-1) + "foo: 1\n")
        bad = await watched.next()
        in_place(path, text(200_000))
        good = await watched.next()
    assert not bad.success
    assert [problem.key for problem in bad.problems] == ["quotas.entities[0].producer_byte_rate", "foo"]
    assert rate(bad.config) == 100_000
    errors = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert len(errors) == 2
    assert "must be above 0 (value -1, line 3)" in errors[0]
    assert good.success
    assert watched.applied == [(100_000, 200_000)]


async def test_webhook_without_its_file_is_refused(path: Path) -> None:
    target = "notify: {targets: [{name: a, url_file: hook.url}]}\n"
    async with watching(path, config(100_000)) as watched:
        in_place(path, text(200_000) + target)
        missing = await watched.next()
        (path.parent / "hook.url").write_text("https://hooks.example.com/weir\n")
        in_place(path, text(300_000) + target)
        found = await watched.next()
    assert [problem.key for problem in missing.problems] == ["notify.targets[0].url_file"]
    assert found.success


async def test_config_of_the_start_needs_no_webhook_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A replaced worker begins with the config in effect, and sends no notifications."""
    watches, looked = asyncio.Event(), asyncio.Event()

    async def begun(*_: object, **__: object) -> AsyncIterator[None]:
        watches.set()
        await asyncio.Event().wait()
        yield

    monkeypatch.setattr("gateway.config.reload.awatch", begun)
    monkeypatch.setattr("gateway.config.reload.service_manager.ready", looked.set)
    content = text(100_000) + "notify: {targets: [{name: a, url_file: hook.url}]}\n"
    in_place(path, content)
    async with watching(path, parse_config(content, source="weir.yaml")) as watched:
        await asyncio.wait_for(watches.wait(), 20)
        os.kill(os.getpid(), signal.SIGHUP)
        await asyncio.wait_for(looked.wait(), 20)
        assert watched.results.empty()


async def test_refused_file_is_tried_until_its_files_are_there(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(reload, "RETRY_SECONDS", 0.0)
    async with watching(path, config(100_000)) as watched:
        missing = watched.refusal = [Problem("notify[0].url_file", "names /ops-url, which can't be read", "write it")]
        in_place(path, text(200_000))
        assert (await watched.next()).problems == tuple(missing)
        tried = len(watched.prepared)
        while len(watched.prepared) < tried + 2:  # noqa: ASYNC110 -- the reloader tells only of news
            await asyncio.sleep(0.01)
        assert watched.results.empty()
        assert len([record for record in caplog.records if "refused" in record.message]) == 1
        watched.refusal = []
        assert (await watched.next()).success
    assert watched.applied == [(100_000, 200_000)]


async def test_restored_file_succeeds_without_changes(path: Path) -> None:
    async with watching(path, config(100_000)) as watched:
        in_place(path, "")
        assert not (await watched.next()).success
        in_place(path, text(100_000))
        result = await watched.next()
    assert result.success
    assert result.changes == ()


async def test_unchanged_content_is_no_reload(path: Path) -> None:
    async with watching(path, config(100_000)) as watched:
        rename_over(path, text(100_000))
        in_place(path, text(100_000))
        rename_over(path, text(200_000))
        assert rate((await watched.next()).config) == 200_000
    assert watched.applied == [(100_000, 200_000)]


@pytest.mark.parametrize(
    ("old", "new", "key", "words"),
    [
        ("bootstrap_port: 21200", "bootstrap_port: 21250", "listeners[0].bootstrap_port", "from 21200 to 21250"),
        ("127.0.0.1:9092", "127.0.0.1:9093", "upstream.bootstrap_servers[0]", "from 127.0.0.1:9092 to 127.0.0.1:9093"),
        ("quotas:", "admin: {port: 20000}\nquotas:", "admin.port", "from 9644 to 20000"),
    ],
)
async def test_key_that_needs_a_restart_refuses_the_file(path: Path, old: str, new: str, key: str, words: str) -> None:
    async with watching(path, config(100_000)) as watched:
        in_place(path, text(200_000).replace(old, new))
        result = await watched.next()
    assert key in [problem.key for problem in result.problems]
    (problem,) = [problem for problem in result.problems if problem.key == key]
    assert words in problem.message
    assert "needs a restart" in problem.message
    assert watched.applied == []


async def test_config_that_the_gateway_rejects_is_refused(path: Path) -> None:
    async with watching(path, config(100_000)) as watched:
        watched.failure = ConfigError("weir.yaml", [Problem("quotas.algorithm", "can't change", "restart")])
        in_place(path, text(200_000))
        assert [problem.key for problem in (await watched.next()).problems] == ["quotas.algorithm"]
        watched.failure = RuntimeError("a bug")
        in_place(path, text(300_000))
        result = await watched.next()
        watched.failure = None
        in_place(path, text(400_000))
        assert rate((await watched.next()).config) == 400_000
    assert "a bug" in result.problems[0].message
    assert rate(result.config) == 100_000
    assert watched.applied == [(100_000, 400_000)]


async def test_bug_in_the_parser_refuses_the_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with watching(path, config(100_000)) as watched:
        in_place(path, text(200_000))
        assert (await watched.next()).success
        with monkeypatch.context() as patched:
            patched.setattr("gateway.config.reload.parse_config", lambda *_, **__: {}["a bug"])
            in_place(path, text(300_000))
            bad = await watched.next()
        in_place(path, text(400_000))
        assert rate((await watched.next()).config) == 400_000
    assert rate(bad.config) == 200_000
    assert [problem.key for problem in bad.problems] == ["(file)"]
    assert "a bug" in bad.problems[0].message


async def test_change_outlasts_a_shortage_of_threads(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    to_thread = asyncio.to_thread
    watched = Watched()
    reloader = Reloader(path, config(100_000), watched.apply, watched.results.put_nowait)

    async def only_reads(work: Callable[..., object], *arguments: object, **more: object) -> object:
        if arguments:  # the parser gets the content
            raise RuntimeError("can't start new thread")
        return await to_thread(work, *arguments, **more)

    in_place(path, text(200_000))
    with monkeypatch.context() as patched:
        patched.setattr("asyncio.to_thread", only_reads)
        with pytest.raises(ExceptionGroup):
            await asyncio.wait_for(reloader.run(), 20)
    again = asyncio.create_task(reloader.run())
    assert rate((await watched.next()).config) == 200_000
    again.cancel()
    await asyncio.wait([again])


@pytest.mark.parametrize("error", [OSError(24, "Too many open files"), RuntimeError("OS file watch limit reached")])
async def test_failed_watch_is_logged_once_and_file_is_polled(
    path: Path, error: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def failing(*_: object, **__: object) -> AsyncIterator[None]:
        raise error
        yield

    monkeypatch.setattr("gateway.config.reload.awatch", failing)
    monkeypatch.setattr("gateway.config.reload._LOOK_EVERY_MS", 1)
    async with watching(path, config(50_000)) as watched:
        for expected in (100_000, 200_000, 300_000):
            in_place(path, text(expected))
            assert rate((await watched.next()).config) == expected
    (warning,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert str(error) in warning
    assert "fs.inotify.max_user_instances" in warning


async def tells_nothing(*_: object, **__: object) -> AsyncIterator[None]:
    """A watch that never reports a change."""
    await asyncio.Event().wait()
    yield


async def test_sighup_reloads(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.config.reload.awatch", tells_nothing)  # the file watch would report the change as well
    async with changed_since_start(path) as watched:
        in_place(path, text(200_000))
        os.kill(os.getpid(), signal.SIGHUP)
        assert rate((await watched.next()).config) == 200_000


async def write_slowly(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write the file in place, and its rest once the reloader has read the first part several times."""
    whole = text(200_000) + "# the end\n"
    part = whole.partition("quotas:")[0]
    reads, enough = 0, asyncio.Event()
    loop = asyncio.get_running_loop()

    def counted(file: Path) -> str:
        nonlocal reads
        content = read_config_text(file)
        reads += content == part
        if reads == 5:
            loop.call_soon_threadsafe(enough.set)
        return content

    monkeypatch.setattr("gateway.config.reload.read_config_text", counted)
    in_place(path, part)
    await asyncio.wait_for(enough.wait(), 20)
    with path.open("a") as file:
        file.write(whole.removeprefix(part))


async def test_half_written_file_waits_for_its_rest(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.config.reload._EQUAL_READS_OF_PART", 600)
    async with changed_since_start(path) as watched:
        await write_slowly(path, monkeypatch)
        assert rate((await watched.next()).config) == 200_000
    assert watched.applied == [(50_000, 100_000), (100_000, 200_000)]


async def test_half_of_a_file_that_was_away_waits_for_its_rest(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.config.reload._EQUAL_READS_OF_PART", 600)
    async with changed_since_start(path) as watched:
        await asyncio.to_thread(path.unlink)
        assert (await watched.next()).problems
        await write_slowly(path, monkeypatch)
        assert rate((await watched.next()).config) == 200_000
    assert watched.applied == [(50_000, 100_000), (100_000, 200_000)]


async def test_half_of_a_correction_at_the_start_waits(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker starts with the config in effect while the file is refused."""
    monkeypatch.setattr("gateway.config.reload._EQUAL_READS_OF_PART", 40)
    in_place(path, "a: [\n")
    async with watching(path, config(100_000)) as watched:
        await asyncio.sleep(0)
        os.kill(os.getpid(), signal.SIGHUP)
        assert not (await watched.next()).success
        await write_slowly(path, monkeypatch)
        assert rate((await watched.next()).config) == 200_000
    assert watched.applied == [(100_000, 200_000)]


async def test_half_written_file_at_the_start_waits(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.config.reload._EQUAL_READS_OF_PART", 40)
    async with watching(path, config(50_000)) as watched:
        await write_slowly(path, monkeypatch)
        assert rate((await watched.next()).config) == 200_000
    assert watched.applied == [(50_000, 200_000)]


async def test_shorter_file_is_applied_without_a_rest(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.config.reload._EQUAL_READS_OF_PART", 5)
    in_place(path, text(100_000) + "# a comment\n")
    async with changed_since_start(path) as watched:
        in_place(path, text(200_000))
        assert rate((await watched.next()).config) == 200_000


async def test_line_without_end_is_applied_later(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.config.reload._EQUAL_READS_OF_PART", 5)
    async with changed_since_start(path) as watched:
        in_place(path, f"{text(200_000)}# a comment")
        assert rate((await watched.next()).config) == 200_000


async def test_sighup_does_not_wait_for_a_rest(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.config.reload._EQUAL_READS_OF_PART", 600)
    in_place(path, text(100_000) + "# a comment\n")
    async with changed_since_start(path) as watched:
        in_place(path, text(200_000))
        os.kill(os.getpid(), signal.SIGHUP)
        assert rate((await watched.next()).config) == 200_000


async def test_sighup_reads_the_rest_before_it_applies(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.config.reload._EQUAL_READS_OF_PART", 600)
    async with changed_since_start(path) as watched:
        await write_slowly(path, monkeypatch)
        os.kill(os.getpid(), signal.SIGHUP)
        assert rate((await watched.next()).config) == 200_000
    assert watched.applied == [(50_000, 100_000), (100_000, 200_000)]


async def test_sighup_is_ignored_after_the_watch(path: Path) -> None:
    async with changed_since_start(path):
        assert signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


async def test_sighup_retries_a_refused_file(path: Path) -> None:
    async with changed_since_start(path) as watched:
        watched.failure = RuntimeError("for now")
        in_place(path, text(200_000))
        assert not (await watched.next()).success
        watched.failure = None
        os.kill(os.getpid(), signal.SIGHUP)
        assert rate((await watched.next()).config) == 200_000


def test_plan_names_every_change() -> None:
    old = parse_config(
        HEAD
        + """
quotas:
  entities:
    - {user: a, producer_byte_rate: 1, consumer_byte_rate: 2}
    - {user: b, exempt: true}
    - {user: c, client-id: "<default>", consumer_byte_rate: 5}
""",
        source="old",
    )
    new = parse_config(
        HEAD
        + """
quotas:
  enforce: false
  window: {samples: 5}
  entities:
    - {client-id: d, consumer_byte_rate: 5}
    - {user: b, producer_byte_rate: 3}
    - {user: c, client-id: "<default>", consumer_byte_rate: 5}
connections: {max_per_ip: 7}
""",
        source="new",
    )
    planned = plan(old, new)
    assert planned.problems == ()
    assert planned.changes == (
        "quotas.entities: added client-id=d (consumer_byte_rate 5)",
        "quotas.entities: changed user=b (exempt -> producer_byte_rate 3)",
        "quotas.entities: removed user=a (producer_byte_rate 1, consumer_byte_rate 2)",
        "quotas.enforce: true -> false",
        "quotas.window.samples: 11 -> 5",
        "connections.max_per_ip: 1000 -> 7",
    )
    assert plan(new, new).changes == ()


def test_added_listener_needs_a_restart() -> None:
    added = HEAD.replace("}]\n", "}, {name: b, bootstrap_port: 1000}]\n")
    planned = plan(parse_config(HEAD, source="old"), parse_config(added, source="new"))
    assert planned.changes == ()
    assert {problem.key.partition(".")[0] for problem in planned.problems} == {"listeners[1]"}


@pytest.mark.parametrize(
    ("old", "new", "restart", "live"),
    [
        ("sharing: {}", "sharing: {interval_ms: 300, when_unreachable: fair_share}", [], ["interval_ms", "when_unreachable"]),
        ("sharing: {}", "sharing: {topic: other, interval_ms: 300}", ["topic"], ["interval_ms"]),
        ("", "sharing: {}", ["topic", "quotas_topic"], ["interval_ms", "when_unreachable"]),
        ("ledger: {path: a}", "ledger: {path: b, gateway: c, topic: d}", ["path", "gateway", "topic"], []),
        (
            "ledger: {path: a}",
            "ledger: {path: a, flush_seconds: 1, rotate_seconds: 1, retention_days: 1, max_bytes: 1}",
            [],
            ["flush_seconds", "rotate_seconds", "retention_days", "max_bytes"],
        ),
    ],
)
def test_section_keys_are_live_or_need_a_restart(old: str, new: str, restart: list[str], live: list[str]) -> None:
    section = new.partition(":")[0]
    planned = plan(parse_config(HEAD + old, source="old"), parse_config(HEAD + new, source="new"))
    assert [problem.key for problem in planned.problems] == [f"{section}.{key}" for key in restart]
    assert [change.partition(":")[0] for change in planned.changes] == [f"{section}.{key}" for key in live]


def test_effective_config_follows_results() -> None:
    effective = EffectiveConfig(config(1), 10.0, Outlet())
    effective.record(ReloadResult(20.0, config(2), changes=("x",)))
    assert (effective.version, effective.loaded_at, rate(effective.config)) == (2, 20.0, 2)
    effective.record(ReloadResult(30.0, config(2), problems=(Problem("k", "m", "r"),)))
    effective.record(ReloadResult(40.0, config(2)))
    assert (effective.version, effective.loaded_at, effective.last_success_at) == (2, 20.0, 40.0)
    assert effective.reloads == {"success": 2, "failure": 1}


def test_replaced_worker_counts_on_from_the_version() -> None:
    supervisor, replaced = EffectiveConfig(config(1), 10.0, Outlet()), EffectiveConfig(config(2), 50.0, Outlet())
    supervisor.record(ReloadResult(20.0, config(2), changes=("x",)))
    supervisor.record(ReloadResult(30.0, config(2)))
    replaced.go_on_from(supervisor.history)
    for each in (supervisor, replaced):
        each.record(ReloadResult(60.0, config(3), changes=("x",)))
    assert replaced.history == supervisor.history == ConfigHistory(3, 60.0, 60.0, {"success": 3, "failure": 0})
