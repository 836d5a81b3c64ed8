"""The config in effect on `/api/config` and on the live page, of a gateway or of the supervisor of several workers."""

import asyncio
from dataclasses import asdict
from typing import Any

from gateway.config.effective import EffectiveConfig, ReloadResult
from gateway.config.model import WeirConfig
from gateway.log import iso


async def config_answer(effective: EffectiveConfig) -> dict[str, Any]:
    """The answer of `/api/config` without its time."""
    config = effective.config
    answer = {
        "version": effective.version,
        "loaded_at": iso(effective.loaded_at),
        "config": {},
        "warnings": [],
        "reloads": dict(effective.reloads),
        "last_reload": None if effective.last is None else _reload(effective.last),
    }
    # Thousands of entities take long, so a thread describes them. No config ever changes.
    return answer | await asyncio.to_thread(_described, config)


def config_facts(effective: EffectiveConfig) -> dict[str, Any]:
    """The part `config` of the live page."""
    last = effective.last
    return {
        "version": effective.version,
        "loaded_at": iso(effective.loaded_at),
        "reloads": dict(effective.reloads),
        "last_reload": None
        if last is None
        else {"success": last.success, "at": iso(last.at), "lines": [*last.changes, *map(str, last.problems)]},
    }


def _described(config: WeirConfig) -> dict[str, Any]:
    return {"config": config.model_dump(mode="json", by_alias=True), "warnings": config.warnings()}


def _reload(result: ReloadResult) -> dict[str, Any]:
    return {
        "result": "success" if result.success else "failure",
        "at": iso(result.at),
        "changes": list(result.changes),
        "problems": [asdict(problem) for problem in result.problems],
    }
