"""The config in effect on `/api/config` and on the live page, of a gateway or of the supervisor of several workers."""

import asyncio
from dataclasses import asdict
from itertools import chain, islice
from typing import Any, Final

from gateway.clock import iso
from gateway.config.effective import EffectiveConfig, ReloadResult
from gateway.config.model import WeirConfig

_SHOWN_LINES: Final = 6


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
    """The part `config` of the live page. It goes to each viewer each second, so it has the first lines of a reload only."""
    last = effective.last
    return {
        "version": effective.version,
        "loaded_at": iso(effective.loaded_at),
        "reloads": dict(effective.reloads),
        "last_reload": None
        if last is None
        else {
            "success": last.success,
            "at": iso(last.at),
            "lines": [str(line) for line in islice(chain(last.changes, last.problems), _SHOWN_LINES)],
            "line_count": len(last.changes) + len(last.problems),
        },
    }


def _described(config: WeirConfig) -> dict[str, Any]:
    return {"config": config.model_dump(mode="json", by_alias=True), "warnings": config.warnings()}


def _reload(result: ReloadResult) -> dict[str, Any]:
    return {
        "result": result.outcome,
        "at": iso(result.at),
        "changes": list(result.changes),
        "problems": [asdict(problem) for problem in result.problems],
    }
