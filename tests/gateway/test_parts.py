"""The parts of a gateway know the same config, also after a reload."""

import asyncio
import logging
from contextlib import suppress
from pathlib import Path

import pytest

from gateway.features.groups.feature import Groups
from gateway.features.ledger.feature import Ledger
from gateway.features.quota_api.feature import QuotaApi
from gateway.parts import InstalledFeatures, SharedParts
from gateway.proxy.handlers.registry import registry
from gateway.quotas.kinds import KINDS
from protocol.bodies.client_quotas import AlterEntry, AlterRequest, EntityPart, Op
from tests.gateway.config.texts import MINIMAL, parsed
from tests.gateway.quotas.kinds.test_contract import CHARGED_BY_HANDLERS

ROW = '{{name: {name}, match: [{{client-id: "{name}-*"}}], producer_byte_rate: 1000, until: 2020-01-01T00:00Z}}'


async def test_quota_api_takes_groups_that_do_not_count_now(tmp_path: Path) -> None:
    first, second = (
        parsed(MINIMAL + f"quotas: {{groups: [{ROW.format(name=name)}]}}\n").model_copy(update={"quota_admins": ("User:root",)})
        for name in ("night", "day")
    )
    path = tmp_path / "weir.yaml"
    features = InstalledFeatures(SharedParts(path, first, None), path, first, None)
    (api,) = (feature for feature in features if isinstance(feature, QuotaApi))
    running = asyncio.create_task(api.admin.run())

    async def code(group: str) -> int:
        done = asyncio.Event()
        entry = AlterEntry((EntityPart("group", group),), (Op("producer_byte_rate", 1e3),))
        request = AlterRequest((entry,), validate_only=True)
        task = api._queue.alter(request, "root", done.set)
        await done.wait()
        assert task.alteration is not None
        (result,) = task.alteration.results.values()
        return result.error_code

    assert [await code("night"), await code("day")] == [0, 42]
    features.apply(second)
    assert [await code("night"), await code("day")] == [42, 0]
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running


async def test_other_features_stop_after_one_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    config = parsed(MINIMAL + f"ledger: {{path: {tmp_path / 'ledger.jsonl'}}}\n")
    path = tmp_path / "weir.yaml"
    features = InstalledFeatures(SharedParts(path, config, None), path, config, None)
    stopped = []

    async def stop(ledger: Ledger) -> None:
        stopped.append(ledger)

    async def fail(groups: Groups) -> None:
        raise OSError("no space")

    monkeypatch.setattr(Groups, "stop", fail)
    monkeypatch.setattr(Ledger, "stop", stop)
    with caplog.at_level(logging.ERROR):
        await features.stop()
    assert stopped == [features.ledger]
    assert caplog.messages == ["feature failed while it stopped: Groups"]


async def test_each_api_has_the_handler_of_one_part(tmp_path: Path) -> None:
    config, path = parsed(MINIMAL), tmp_path / "weir.yaml"
    features = InstalledFeatures(SharedParts(path, config, None), path, config, None)
    handlers = registry(features.handlers())
    assert sorted(handlers) == sorted([*registry({}), *(api for feature in features for api in feature.handlers())])
    for name in CHARGED_BY_HANDLERS:
        charge = KINDS[name].charge
        assert charge is not None
        assert charge.apis <= handlers.keys(), f"{name}: no handler charges {charge.apis - handlers.keys()}"
