"""The interface of the store for the API's quotas, and the store of a single gateway: a JSON file that each change replaces.

    {"version": 1, "client_quotas": [{"entity": {"user": "alice", "client-id": null}, "quotas": {"producer_byte_rate": 1e6}}]}

As in Kafka's protocol, null is the default entity.
"""

import asyncio
import json
import logging
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Annotated, Final, Literal, Protocol, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gateway.alterations import Parts, QuotaApiError
from gateway.config.problems import ConfigError, Problem
from gateway.features.quota_api.config import GROUPS, POSITION, TOPICS, beside
from gateway.features.quota_api.rules import AskedKeys, checked_entity, quota_fault
from gateway.files.flock import HELD_MESSAGE, FileLock
from gateway.files.path_faults import write_remedy
from gateway.files.whole_file import UnsyncedError, replace_file, replace_files
from gateway.quotas.entity import ClientQuotaEntity, DynamicQuotas

VERSION = 1

NOT_CHANGED = "so nothing is changed"

_NAMED: Final = 5
"""The maximum number of unusual quotas of a file that the log names."""

_log = logging.getLogger("weir.quota_api")


class NotSavedError(Exception):
    """A change can't be saved. The message and `outcome` are for the client, `remedy` is for the operator."""

    def __init__(self, reason: str, remedy: str, outcome: str = NOT_CHANGED) -> None:
        super().__init__(reason)
        self.remedy = remedy
        self.outcome = outcome


@dataclass(frozen=True, slots=True)
class HistoryPosition:
    """The point in the history of quotas up to which a gateway knows them all.

    `history` is the id of the first topic. `offset` counts the records of the topic `topic_id` and of deleted topics before it.
    A new topic goes on at the history and offset of the gateway that filled it. Offsets of two histories can't be compared.
    `late`: the quotas are later ones than those at `offset`, but nobody knows by how many records.
    """

    history: str
    topic_id: str
    offset: int
    late: bool = False


class QuotaStore(Protocol):
    """Stores the quotas of the API, for one gateway or several."""

    async def load(self) -> DynamicQuotas:
        """The quotas of the last `save`, if any. Raises ConfigError if they can't be read."""
        ...

    async def catch_up(self) -> None:
        """Read every change that another gateway has answered until now. Raises NotSavedError."""
        ...

    async def confirm(self, asked: AskedKeys) -> None:
        """Keep the quotas that a request names and does not change. Raises NotSavedError."""
        ...

    async def save(self, before: DynamicQuotas, after: DynamicQuotas) -> DynamicQuotas:
        """Save the difference durably. Returns all saved quotas, with the changes of other gateways. Raises NotSavedError."""
        ...


class QuotaCopy(QuotaStore, Protocol):
    """Stores the quotas of a topic, and the position up to which they were read."""

    async def load_position(self, quotas: DynamicQuotas) -> HistoryPosition | None:
        """The position of the loaded quotas, None if it is unknown."""
        ...

    async def save_position(self, position: HistoryPosition, quotas: DynamicQuotas) -> None:
        """Called after these quotas are saved. Raises NotSavedError."""
        ...


class _Saved(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)


class _Row(_Saved):
    """One entity: its names by type (None for the default), and its limits by quota key."""

    entity: dict[Literal["user", "client-id", "ip", "topic", "group"], str | None]
    quotas: Annotated[dict[str, Annotated[float, Field(gt=0)]], Field(min_length=1)]


class _State(_Saved):
    version: int
    client_quotas: list[_Row]


class _Position(_Saved):
    version: int
    history: str
    topic_id: str
    offset: Annotated[int, Field(ge=0)]
    quotas: str  # their digest


class StateFile:
    """A `QuotaCopy` in a file, with files for topics and groups beside it. The folder of `path` must exist.

    `save` takes `lock` first. None: the owner guarantees that there is no other writer.
    """

    def __init__(self, path: Path, lock: FileLock | None = None) -> None:
        self.path = path
        # Weir 0.1 does not know topics, and Weir 0.2 does not know groups. They would read the rows as quotas of a client
        # without a name.
        self._topics = beside(path, TOPICS)
        self._groups = beside(path, GROUPS)
        self._position = beside(path, POSITION)
        self._lock = lock

    async def load(self) -> DynamicQuotas:
        """Raises ConfigError if the file is damaged, has another version or is unreadable."""
        return await asyncio.to_thread(self._load)

    async def catch_up(self) -> None:
        """Returns at once, because no other gateway writes the file."""

    async def confirm(self, asked: AskedKeys) -> None:
        """Returns at once, because no other gateway writes the file."""

    async def save(self, before: DynamicQuotas, after: DynamicQuotas) -> DynamicQuotas:
        """Replace the file whole. Raises NotSavedError."""
        try:
            if self._lock is not None and not self._lock.take():
                raise NotSavedError(HELD_MESSAGE, self._lock.remedy)
            await asyncio.to_thread(self._save, dict(before), dict(after))
        except (OSError, RuntimeError) as error:
            raise self._unsaved(error) from error
        return after

    async def load_position(self, quotas: DynamicQuotas) -> HistoryPosition | None:
        """None without a usable file: Weir then follows the topic, as it does for a file of Weir 0.1."""
        try:
            saved = _Position.model_validate_json(await asyncio.to_thread(self._position.read_bytes))
        except (OSError, ValueError):
            return None
        # Usually Weir was killed after it had saved later quotas, and before their position.
        late = saved.quotas != await asyncio.to_thread(_digest, dict(quotas))
        return HistoryPosition(saved.history, saved.topic_id, saved.offset, late) if saved.version == VERSION else None

    async def save_position(self, position: HistoryPosition, quotas: DynamicQuotas) -> None:
        try:
            await asyncio.to_thread(self._save_position, position, dict(quotas))
        except (OSError, RuntimeError) as error:
            raise self._unsaved(error) from error

    def _save_position(self, position: HistoryPosition, quotas: DynamicQuotas) -> None:
        saved = _Position(
            version=VERSION,
            history=position.history,
            topic_id=position.topic_id,
            offset=position.offset,
            quotas=_digest(quotas),
        )
        replace_file(self._position, [saved.model_dump_json()], durable=True)

    def _load(self) -> DynamicQuotas:
        return {**self._read(self.path), **self._read(self._topics), **self._read(self._groups)}

    def _read(self, path: Path) -> DynamicQuotas:
        try:
            text = path.read_bytes()
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise self._refused(f"{path} can't be read: {error.strerror}", "let the user that runs Weir read it") from None
        try:
            version = json.loads(text)["version"]
            if version != VERSION:
                remedy = "run the version of Weir that wrote it, or move it away and set the quotas again"
                raise self._refused(f"{path} has version {version}, this Weir reads version {VERSION}", remedy)
            state = _State.model_validate_json(text)
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            remedy = "restore it from a backup, or move it away and set the quotas again with kafka-configs"
            raise self._refused(f"{path} is damaged{_fault(error)}", remedy) from None
        rows: dict[ClientQuotaEntity, int] = {}
        for number, row in enumerate(state.client_quotas, 1):
            if not row.entity:  # Weir 0.2 has read a group's row and saved it again
                _log.warning(
                    "row %d of %s names no entity, as Weir 0.2 saves a group's: its quotas %.200s are skipped — set them again",
                    number,
                    path,
                    json.dumps(row.quotas),
                )
                continue
            named = f"row {number} of {path} names {json.dumps(row.entity):.200}"
            try:
                entity = checked_entity(cast(Parts, row.entity))
            except QuotaApiError as error:
                raise self._refused(f"{named}: {error.message}", "correct the row, or remove it") from None
            if entity in rows:  # the quotas of one of them would be lost
                raise self._refused(f"{named}, as row {rows[entity]} does", "put the quotas of both rows into one") from None
            rows[entity] = number
        quotas = {entity: state.client_quotas[number - 1].quotas for entity, number in rows.items()}
        self._warn_of_unusual(path, rows, quotas)
        return quotas

    def _warn_of_unusual(self, path: Path, rows: Mapping[ClientQuotaEntity, int], quotas: DynamicQuotas) -> None:
        """Name quotas that no request can set. They stay: a newer Weir may have set them, also through the quota topic."""
        unusual = [
            (rows[entity], entity, key, value, fault)
            for entity, limits in quotas.items()
            for key, value in limits.items()
            if (fault := quota_fault(entity, key, value)) is not None
        ]
        for number, entity, key, value, fault in unusual[:_NAMED]:
            _log.warning(
                "row %d of %s has %.100s %.16g of %.200s: %s It is kept for a newer Weir — otherwise, delete it with"
                " alterClientQuotas",
                number, path, key, value, entity, fault if fault.endswith(".") else f"{fault}.",
            )  # fmt: skip
        if len(unusual) > _NAMED:
            _log.warning("%s has %d more such quotas", path, len(unusual) - _NAMED)

    def _unsaved(self, error: OSError | RuntimeError) -> NotSavedError:
        if isinstance(error, RuntimeError):  # no thread can be started
            return NotSavedError(str(error), "raise the limit of processes and threads, such as pids of a container")
        outcome = "but it may take effect at the next start" if isinstance(error, UnsyncedError) else NOT_CHANGED
        return NotSavedError(error.strerror or str(error), write_remedy(error, self.path), outcome)

    @staticmethod
    def _refused(message: str, remedy: str) -> ConfigError:
        return ConfigError("quotas set through the API", [Problem("state.path", message, remedy)])

    def _save(self, before: DynamicQuotas, after: DynamicQuotas) -> None:
        """Requests of several clients may change quotas and thresholds at once: if a write fails, no file has a change."""
        contents = {path: _text(quotas) for path, quotas in self._by_file(after).items() if quotas or path.exists()}
        contents.setdefault(self.path, _text({}))
        # A file does not have the rows of `before` if an earlier save has failed after its rename.
        changed = {path: text for path, text in contents.items() if path == self.path or not _holds(path, text)}
        try:
            replace_files(changed, durable=True)
        except UnsyncedError:
            earlier = self._by_file(before)
            with suppress(OSError):  # the next save writes them again
                replace_files({path: _text(earlier[path]) for path in changed}, durable=True)
            raise

    def _by_file(self, quotas: DynamicQuotas) -> dict[Path, dict[ClientQuotaEntity, Mapping[str, float]]]:
        # Rows leave the common file last: a kill between two renames loses none.
        found: dict[Path, dict[ClientQuotaEntity, Mapping[str, float]]] = {self._topics: {}, self._groups: {}, self.path: {}}
        for entity, limits in quotas.items():
            path = self._topics if entity.topic is not None else self._groups if entity.group is not None else self.path
            found[path][entity] = limits
        return found


def _fault(error: Exception) -> str:
    if not isinstance(error, ValidationError):
        return f": {error!s}"
    first = error.errors(include_url=False)[0]
    value = first["input"]  # a list or a section may have thousands of rows
    shown = f" (value {value!r:.80})" if isinstance(value, str | int | float) else ""
    return f" at {'.'.join(map(str, first['loc']))}: {first['msg']}{shown}"


def _holds(path: Path, text: list[str]) -> bool:
    try:
        return path.read_bytes() == "".join(text).encode()
    except OSError:
        return False


def _text(quotas: DynamicQuotas) -> list[str]:
    rows = [{"entity": entity.kafka_names(), "quotas": dict(limits)} for entity, limits in quotas.items()]
    return [json.dumps({"version": VERSION, "client_quotas": rows}, indent=1, allow_nan=False)]


def _digest(quotas: DynamicQuotas) -> str:
    rows = sorted(json.dumps([entity.kafka_names(), dict(limits)], sort_keys=True) for entity, limits in quotas.items())
    return blake2b("\n".join(rows).encode(), digest_size=16).hexdigest()
