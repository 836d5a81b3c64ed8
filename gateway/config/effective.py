"""The config in effect and how it came to be, for metrics, the admin API and logs."""

from collections import Counter
from dataclasses import dataclass

from gateway.config.model import WeirConfig
from gateway.config.problems import Problem


@dataclass(frozen=True, slots=True)
class ReloadResult:
    """One attempt to take over a changed config file, at `at` (wall clock, seconds).

    `config` is what is in effect after it. A refused file has `problems` and changes nothing; an accepted one has none, and
    `changes` says what it changed, one line each (none where only comments or layout differ).
    """

    at: float
    config: WeirConfig
    changes: tuple[str, ...] = ()
    problems: tuple[Problem, ...] = ()

    @property
    def success(self) -> bool:
        """Whether the file was accepted."""
        return not self.problems


class EffectiveConfig:
    """What is in effect now. `version` counts from 1 and grows with each accepted file that changed something."""

    def __init__(self, config: WeirConfig, loaded_at: float) -> None:
        self.config = config
        self.loaded_at = loaded_at
        self.last_success_at = loaded_at
        self.version = 1
        self.last: ReloadResult | None = None
        self.reloads: Counter[str] = Counter(success=0, failure=0)

    def record(self, result: ReloadResult) -> None:
        """Take over the outcome of a reload."""
        self.last = result
        self.reloads["success" if result.success else "failure"] += 1
        if result.success:
            self.last_success_at = result.at
        if result.changes:
            self.config = result.config
            self.loaded_at = result.at
            self.version += 1
