"""The config in effect and the results of its reloads, for metrics, the admin API and events."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from gateway.config.model import WeirConfig
from gateway.config.places import CurrentPlaces
from gateway.config.problems import Problem
from gateway.events import ConfigApplied
from gateway.observer import Outlet


@dataclass(frozen=True, slots=True)
class ReloadResult:
    """One reload of a changed config file, at `at` (wall clock, seconds).

    `config` is in effect after it. A refused file has `problems` and changes nothing. An accepted file has no problems; its
    `changes` has one line for each changed key (no line if only comments or layout differ).
    """

    at: float
    config: WeirConfig
    changes: tuple[str, ...] = ()
    problems: tuple[Problem, ...] = ()

    @property
    def success(self) -> bool:
        return not self.problems

    @property
    def outcome(self) -> str:
        """The value of the metrics' label `result`."""
        return "success" if self.success else "failure"


@dataclass(frozen=True, slots=True)
class ConfigHistory:
    """The files that were read before a worker starts. Times are wall clock seconds."""

    version: int
    loaded_at: float
    last_success_at: float
    reloads: Mapping[str, int]


class EffectiveConfig:
    """The config in effect. `version` counts from 1, and grows with each accepted file that changes a key."""

    def __init__(self, config: WeirConfig, loaded_at: float, outlet: Outlet, file: str = "weir.yaml") -> None:
        """`file` is the file's name in the places of quotas."""
        self.config = config
        self.places = CurrentPlaces(lambda: self.config, file)
        self.loaded_at = loaded_at
        self.last_success_at = loaded_at
        self.version = 1
        self.last: ReloadResult | None = None
        self.reloads: Counter[str] = Counter(success=0, failure=0)
        self._outlet = outlet

    @property
    def history(self) -> ConfigHistory:
        return ConfigHistory(self.version, self.loaded_at, self.last_success_at, dict(self.reloads))

    def go_on_from(self, history: ConfigHistory) -> None:
        """Count from the supervisor's version on, so that a replaced worker has the version of the other workers."""
        self.version, self.loaded_at, self.last_success_at = history.version, history.loaded_at, history.last_success_at
        self.reloads.update(history.reloads)

    @property
    def refused(self) -> bool:
        """True if the last changed file was refused."""
        return self.last is not None and not self.last.success

    def record(self, result: ReloadResult) -> None:
        self.last = result
        self.reloads[result.outcome] += 1
        if result.success:
            self.last_success_at = result.at
            self.config = result.config  # also without a change: entities may be on other lines of the file
            self.places()  # nothing keeps the config before
        if result.changes:
            self.loaded_at = result.at
            self.version += 1
        self._outlet.notify(
            ConfigApplied(
                time_ms=int(result.at * 1000),
                gateway=self._outlet.gateway,
                result=result.outcome,
                config_version=str(self.version),
                changes=result.changes or tuple(map(str, result.problems)),
            )
        )
