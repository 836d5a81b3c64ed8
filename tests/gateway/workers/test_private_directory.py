"""The directory of the workers: it is private, and another is made if somebody removes it."""

import errno
import os
import shutil
import socket
import tempfile
from pathlib import Path

import pytest

from gateway.config.load import load_config
from gateway.drain import Stopping
from gateway.workers.supervisor import PrivateDirectory, Supervisor
from tests.gateway.workers.test_supervisor import gateway, pids, private_directory, reload
from tests.hostile.stub_broker import StubBroker
from tests.weir_process import Weir, wait_until


def test_only_this_user_may_enter() -> None:
    with PrivateDirectory() as directory:
        assert directory.name.stat().st_mode & 0o777 == 0o700
        assert directory.intact
        shutil.rmtree(directory.name)
        assert not directory.intact
        directory.make_again()
        assert directory.name.stat().st_mode & 0o777 == 0o700
        assert directory.intact
    assert not directory.name.exists()


@pytest.mark.parametrize("failing", ["tempfile.TemporaryFile", "fcntl.flock"])
def test_failed_start_leaves_no_directory(failing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise, each restart on a full disk would add one."""

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(failing, full)
    before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(OSError, match="No space left"):
        PrivateDirectory()
    assert list(tmp_path.iterdir()) == []
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_directory_of_another_party_is_not_used(tmp_path: Path) -> None:
    with PrivateDirectory() as directory:
        removed = directory.name
        shutil.rmtree(removed)
        removed.mkdir()
        (removed / "theirs").touch()
        assert not directory.intact
        with pytest.raises(FileNotFoundError):
            (directory.path / "ours").touch()
        path = directory.path
        directory.make_again()
        (path / "ours").touch()
        assert (directory.name / "ours").exists()
    assert [file.name for file in removed.iterdir()] == ["theirs"]
    shutil.rmtree(removed)


@pytest.mark.process
def test_workers_stay_when_their_directory_is_removed(tmp_path: Path) -> None:
    with gateway(tmp_path) as weir:
        first, other = pids(weir)
        directory = private_directory(first)
        shutil.rmtree(directory)
        wait_until(lambda: f"{directory} was removed, so workers start with" in weir.log(), "the removal is logged")
        assert pids(weir) == [first, other]
        replace(weir, first)
        assert pids(weir)[1] == other
        assert [worker["restarts"] for worker in weir.workers()] == [1, 0]


@pytest.mark.process
def test_secrets_and_questions_go_to_no_other_directory(tmp_path: Path) -> None:
    """Another user may take the name of a removed directory, with a link and sockets in it."""
    with gateway(tmp_path) as weir:
        first, other = pids(weir)
        directory = private_directory(first)
        shutil.rmtree(directory)
        directory.mkdir()
        (tmp_path / "ours").write_text("stays")
        (directory / "config.json").symlink_to(tmp_path / "ours")
        with socket.socket(socket.AF_UNIX) as theirs:
            theirs.bind(str(directory / "worker-1"))
            reload(weir, {**weir.config, "quotas": {"entities": []}})
            replace(weir, first)
            assert pids(weir)[1] == other
        assert (tmp_path / "ours").read_text() == "stays"
        assert sorted(file.name for file in directory.iterdir()) == ["config.json", "worker-1"]
        assert private_directory(weir.workers()[0]["pid"]) != directory
    shutil.rmtree(directory)


@pytest.mark.process
def test_removed_config_is_saved_again_for_the_next_worker(tmp_path: Path) -> None:
    with gateway(tmp_path) as weir:
        first, _ = pids(weir)
        kept = private_directory(first) / "config.json"
        kept.unlink()
        os.kill(first, 9)
        wait_until(lambda: [worker["restarts"] for worker in weir.workers()] == [1, 0], "a worker is replaced")
        pids(weir)
        assert kept.exists()


@pytest.mark.process
def test_brokers_keep_ports_after_a_cleaner_of_temporary_files(tmp_path: Path) -> None:
    """The range has a port for each broker and no more, so the other worker's port would leave a new worker none."""
    with StubBroker() as broker:
        weir = gateway(tmp_path, broker.bootstrap_servers)
        (listener,) = weir.config["listeners"]
        weir.write_config({**weir.config, "listeners": [{**listener, "broker_ports": f"{weir.ports[1]}-{weir.ports[1]}"}]})
        with weir:
            first, _ = pids(weir)
            ready_workers(weir)
            for path in private_directory(first).rglob("*"):
                path.unlink()
            replace(weir, first)
            ready_workers(weir)


def replace(weir: Weir, first: int) -> None:
    """Kill the first worker, and wait for the next one."""
    os.kill(first, 9)
    wait_until(lambda: weir.workers()[0]["pid"] not in {first, None}, "a worker is replaced")


def ready_workers(weir: Weir) -> None:
    def reasons() -> list[str | None]:
        return [worker["not_ready"] for worker in weir.workers()]

    wait_until(lambda: reasons() == [None, None], "both workers are ready")


@pytest.mark.process
async def test_directory_that_cannot_be_made_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    weir = gateway(tmp_path)
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    with PrivateDirectory() as directory:
        shutil.rmtree(tmp_path / "temporary")
        assert await Supervisor(weir.config_file, load_config(weir.config_file), directory, (), Stopping()).run() == 1
        assert f"{directory.name} can't be written" in caplog.text
