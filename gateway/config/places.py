"""The places at which the quotas in effect are set: a line of the config file, a key of it, or the quota API."""

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Final

from gateway import clock
from gateway.config.model import WeirConfig
from gateway.config.problems import KeyPath, key_path
from gateway.quotas.entity import EntityQuota, Source
from gateway.quotas.schedule import moment_text
from gateway.quotas.snapshot import EXEMPT

QUOTA_API: Final = "quota API (kafka-configs.sh)"
DEFAULT_VALUE: Final = "Weir's default"


class Places:
    """The places of one config at one time. `lines` are those of the file's keys, if they are known; entities know their own.

    `quotas` has the rows that count at this time. The place of a row that counts for a time says until when.
    """

    def __init__(
        self, config: WeirConfig, file: str, lines: Mapping[KeyPath, int] | None = None, at: datetime | None = None
    ) -> None:
        """`at` None: now."""
        self.config = config
        self._at = clock.utc() if at is None else at
        self.quotas, self._change = config.quotas.at(self._at)
        self._file = file
        self._lines = lines or {}
        # Buckets have the entity with short names.
        self._entities = {str(quota.entity.shortened()): self._of_row(quota) for quota in self.quotas.rows}

    def hold(self, config: WeirConfig, at: datetime) -> bool:
        """True if these are the places of a config at a time as well."""
        return config is self.config and self._at <= at and (self._change is None or at < self._change)

    def _of_row(self, row: EntityQuota) -> str:
        end = None if row.when is None else row.when.state(self._at)[1]
        return self.of_line(row.line) + ("" if end is None else f", until {moment_text(end)}")

    def of_entity(self, level: str, source: str) -> str:
        """The place of the quota of the entity `level` (as `ClientQuotaEntity` is shown): `weir.yaml:12`. "": no quota."""
        if source == Source.API.value:
            return QUOTA_API
        if source != Source.FILE.value:
            return ""
        return self._entities.get(level.removesuffix(EXEMPT), self._file)

    def of_line(self, line: int | None) -> str:
        return self._file if line is None else f"{self._file}:{line}"

    def of_key(self, path: KeyPath, *, given: bool) -> str:
        """The place of another key: its line, or its path if lines are unknown. `given`: the file has the key."""
        if not given:
            return DEFAULT_VALUE
        line = self._lines.get(path)
        return f"{self._file}:{line}" if line is not None else f"{self._file}: {key_path(path)}"


class CurrentPlaces:
    """The `Places` of the config in effect, for all who ask. The event loop makes them only if no thread has prepared them."""

    def __init__(self, config: Callable[[], WeirConfig], file: str) -> None:
        self._config = config
        self._file = file
        self._places = self._prepared = Places(config(), file)

    def prepare(self, config: WeirConfig | None = None) -> None:
        """Make the places of a config that may take effect. None: other rows of the config in effect count from now on."""
        self._prepared = Places(self._config() if config is None else config, self._file)

    def __call__(self) -> Places:
        config, now = self._config(), clock.utc()
        if not self._places.hold(config, now):
            self._places = self._prepared if self._prepared.hold(config, now) else Places(config, self._file)
        return self._places
