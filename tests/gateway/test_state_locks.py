"""Locks of files that one gateway writes."""

import asyncio
from pathlib import Path

import pytest

from gateway import state_locks
from gateway.config.problems import ConfigError
from gateway.features.quota_api.config import StateConfig
from gateway.features.quota_api.state_file import NotSavedError, StateFile
from gateway.quotas.entity import ClientQuotaEntity
from gateway.state_locks import StateLocks

ALICE = {ClientQuotaEntity("alice"): {"producer_byte_rate": 1e6}}


async def test_lock_waits_for_an_ending_gateway(tmp_path: Path) -> None:
    config = StateConfig(path="a")
    one, other = (StateLocks(config, tmp_path / "weir.yaml") for _ in range(2))
    await one.take()
    waiting = asyncio.create_task(other.take())
    await asyncio.sleep(0)
    assert not waiting.done()
    one.release()
    await waiting


async def test_usage_file_of_another_gateway_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_locks, "WAIT_SECONDS", 0.0)
    await StateLocks(StateConfig(path="a", usage_path="u"), tmp_path / "weir.yaml").take()
    with pytest.raises(ConfigError, match=r"state\.usage_path: another gateway uses the file.* \(value .*/u\) — stop"):
        await StateLocks(StateConfig(path="b", usage_path="u"), tmp_path / "weir.yaml").take()


USAGE, WORKER_0 = StateConfig(path="a", usage_path="x.json"), StateConfig(path="b", usage_path="x.0.json")


async def test_file_of_another_gateways_worker_is_refused(tmp_path: Path) -> None:
    await StateLocks(USAGE, tmp_path / "weir.yaml", workers=2).take()
    with pytest.raises(
        ConfigError, match=r"usage_path: is the file of a worker of the gateway with .*/x\.json \(value .*/x\.0"
    ):
        await StateLocks(WORKER_0, tmp_path / "weir.yaml").take()


async def test_worker_with_the_file_of_another_gateway_is_refused(tmp_path: Path) -> None:
    await StateLocks(WORKER_0, tmp_path / "weir.yaml").take()
    with pytest.raises(ConfigError, match=r"gives a worker the file .*/x\.0\.json, and x\.0\.json\.lock says that"):
        await StateLocks(USAGE, tmp_path / "weir.yaml", workers=2).take()


@pytest.mark.parametrize(("name", "workers"), [("x.json", 2), ("x.0.json", 1)])
async def test_closed_folder_stops_no_start(closed_folder: Path, name: str, workers: int) -> None:
    config = StateConfig(path=f"{closed_folder}/a", usage_path=f"{closed_folder}/{name}")
    await StateLocks(config, closed_folder / "weir.yaml", workers).take()


async def test_numbered_files_without_workers_are_apart(tmp_path: Path) -> None:
    other = StateConfig(path="c", usage_path="x.1.json")
    for _ in range(2):  # the second round is that of a restart
        locks = [StateLocks(config, tmp_path / "weir.yaml") for config in (USAGE, WORKER_0, other)]
        for each in locks:
            await each.take()
        for name in ("x.json", "x.0.json", "x.1.json"):
            (tmp_path / name).write_text("a save")
        for each in locks:
            each.release()


async def test_folder_that_is_made_later_is_locked_by_the_save(tmp_path: Path) -> None:
    """Without the folder nothing can be saved, so both may start; once it is there, one of them saves."""
    config = StateConfig(path="later/a")
    locks = [StateLocks(config, tmp_path / "weir.yaml") for _ in range(2)]
    for each in locks:
        await each.take()
    one, other = (StateFile(tmp_path / "later" / "a", each.quotas) for each in locks)
    with pytest.raises(NotSavedError, match="No such file"):
        await one.save({}, ALICE)
    (tmp_path / "later").mkdir()
    assert await one.save({}, ALICE) == ALICE
    with pytest.raises(NotSavedError, match="another gateway uses the file"):
        await other.save({}, {})
    assert await one.load() == ALICE
