"""The places at which the quotas in effect are set: a line of the config file, a key of it, or the quota API."""

from collections.abc import Mapping
from typing import Final

from gateway.config.model import WeirConfig
from gateway.config.problems import KeyPath, key_path
from gateway.quotas.entity import Source

QUOTA_API: Final = "quota API (kafka-configs.sh)"
DEFAULT_VALUE: Final = "Weir's default"


class Places:
    """The places of one config. `lines` are those of the file's keys, where they are known; entities know their own."""

    def __init__(self, config: WeirConfig, file: str, lines: Mapping[KeyPath, int] | None = None) -> None:
        self.config = config
        self._file = file
        self._lines = lines or {}
        # Buckets have the entity with short names.
        self._entities = {str(quota.entity.shortened()): quota.line for quota in config.quotas.rows}

    def of_entity(self, level: str, source: str) -> str:
        """The place of the quota of the entity `level` (as `ClientQuotaEntity` is shown): `weir.yaml:12`. "": no quota."""
        if source == Source.API.value:
            return QUOTA_API
        if source != Source.FILE.value:
            return ""
        return self.of_line(self._entities.get(level.removesuffix(" (exempt)")))

    def of_line(self, line: int | None) -> str:
        return self._file if line is None else f"{self._file}:{line}"

    def of_key(self, path: KeyPath, *, given: bool) -> str:
        """The place of another key: its line, or its path if lines are unknown. `given`: the file has the key."""
        if not given:
            return DEFAULT_VALUE
        line = self._lines.get(path)
        return f"{self._file}:{line}" if line is not None else f"{self._file}: {key_path(path)}"
