"""The directory of the workers: it is private, and made again if somebody removes it."""

import os
import shutil
import tempfile
from pathlib import Path

import pytest

from gateway.config.load import load_config
from gateway.workers.supervisor import PrivateDirectory, Supervisor
from tests.gateway.workers.test_supervisor import alive, gateway, pids, private_directory, workers
from tests.weir_process import wait_until


def test_only_this_user_may_enter() -> None:
    with PrivateDirectory() as directory:
        assert directory.path.stat().st_mode & 0o777 == 0o700
        assert directory.intact
        shutil.rmtree(directory.path)
        assert not directory.intact
        directory.make_again()
        assert directory.path.stat().st_mode & 0o777 == 0o700
        assert directory.intact
    assert not directory.path.exists()


def test_directory_of_another_party_is_not_taken_over() -> None:
    with PrivateDirectory() as directory:
        shutil.rmtree(directory.path)
        directory.path.mkdir()
        assert not directory.intact
        with pytest.raises(FileExistsError, match="remove it"):
            directory.make_again()


@pytest.mark.process
def test_workers_are_replaced_after_their_directory_was_removed(tmp_path: Path) -> None:
    with gateway(tmp_path) as weir:
        before = pids(weir)
        shutil.rmtree(private_directory(before[0]))
        wait_until(lambda: not any(map(alive, before)), "the workers have ended")
        after = pids(weir)
        assert not set(before) & set(after)
        assert [worker["restarts"] for worker in workers(weir)] == [1, 1]
        assert "was removed, so the workers drain" in weir.log()
        assert "is killed" not in weir.log()


@pytest.mark.process
async def test_supervisor_without_its_directory_is_not_ready(tmp_path: Path) -> None:
    """Its workers drain, although nobody can ask them."""
    weir = gateway(tmp_path)
    with PrivateDirectory() as directory:
        supervisor = Supervisor(weir.config_file, load_config(weir.config_file), directory, ())
        for place in supervisor._places:
            place.not_ready = None
        assert supervisor.not_ready() is None
        shutil.rmtree(directory.path)
        assert "was removed" in (supervisor.not_ready() or "")


@pytest.mark.process
def test_removed_config_is_saved_again_for_the_next_worker(tmp_path: Path) -> None:
    with gateway(tmp_path) as weir:
        first, _ = pids(weir)
        kept = private_directory(first) / "config.json"
        kept.unlink()
        os.kill(first, 9)
        wait_until(lambda: [worker["restarts"] for worker in workers(weir)] == [1, 0], "a worker is replaced")
        pids(weir)
        assert kept.exists()


@pytest.mark.process
async def test_directory_that_cannot_be_made_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    weir = gateway(tmp_path)
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    with PrivateDirectory() as directory:
        shutil.rmtree(tmp_path / "temporary")
        assert await Supervisor(weir.config_file, load_config(weir.config_file), directory, ()).run() == 1
        assert f"{directory.path} can't be written" in caplog.text
