"""The reload of the config file while the gateway serves: detect, plan, apply. A bad file changes nothing."""

import asyncio
import logging
import math
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from watchfiles import awatch

from gateway import clock, service_manager
from gateway.config.effective import ReloadResult
from gateway.config.foreign_names import may_hold_secret
from gateway.config.keys import changes_by
from gateway.config.load import parse_config, read_config_text
from gateway.config.model import WeirConfig
from gateway.config.problems import ConfigError, KeyPath, Problem, key_path
from gateway.config.timed_rows import past_warnings
from gateway.log import first_lines
from gateway.quotas.entity import EntityQuota
from gateway.quotas.groups import Group
from gateway.quotas.schedule import When
from gateway.steps import Steps, drained
from gateway.time_slices import in_slices

_log = logging.getLogger("weir.reload")

_LOOK_EVERY_MS = 1_000
RETRY_SECONDS = 60.0
"""A refused text is tried again then: the cause may be outside, such as a file that the text names. The time doubles up to
`LONGEST_RETRY_SECONDS`, because a large text takes seconds."""

LONGEST_RETRY_SECONDS = 3600.0

_SETTLE_SECONDS = 0.05
_EQUAL_READS = 1
_EQUAL_READS_OF_PART = 60
_MOST_READS = 600
"""A text is read again every `_SETTLE_SECONDS` until it stays equal. For a text that may be a part, this takes 3 s.

Such a text lacks rows at its end: their clients would have no quotas until the writer goes on.
"""

RowT = TypeVar("RowT")

_Content = str | tuple[Problem, ...]
"""The file's text, or the problems that kept Weir from reading the file."""

Apply = Callable[[WeirConfig, WeirConfig], list[str]]
"""Puts the second config into effect in place of the first, and returns notes for the log. Raises ConfigError, having changed
nothing, for a change that it can't make."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The changes of a new config: lines for the log, and the keys that need a restart."""

    changes: tuple[str, ...]
    problems: tuple[Problem, ...]


def plan(old: WeirConfig, new: WeirConfig) -> Plan:
    """The difference between two configs, entity by entity and key by key."""
    changes = list(_entity_changes(old.quotas.entities, new.quotas.entities))
    changes += _group_changes(old.quotas.groups, new.quotas.groups)
    problems = []
    before, after = dict(_leaves(old)), dict(_leaves(new))
    for path in [*before, *(path for path in after if path not in before)]:
        one, two = before.get(path, "nothing"), after.get(path, "nothing")
        if one == two:
            continue
        key = key_path(path)
        if changes_by(path) == "restart":
            # The files that such keys name have not been looked for: a value may be the secret itself.
            change = "changes" if may_hold_secret(key) else f"changes from {one} to {two}"
            problems.append(Problem(key, f"{change}, which needs a restart", "restart Weir, or put the old value back"))
        else:
            changes.append(f"{key}: {one} -> {two}")
    return Plan(tuple(changes), tuple(problems))


def _leaves(config: WeirConfig) -> Iterator[tuple[KeyPath, Any]]:
    """Every key of a config but its entities and groups, as a path and a plain value, with true and false as in YAML.

    A key without a value, and without a default, is not there.
    """

    def walk(path: KeyPath, value: object) -> Iterator[tuple[KeyPath, Any]]:
        if isinstance(value, dict):
            for name, inner in value.items():
                yield from walk((*path, name), inner)
        elif isinstance(value, list):
            for index, inner in enumerate(value):
                yield from walk((*path, index), inner)
        elif value is not None:
            yield path, str(value).lower() if isinstance(value, bool) else value

    yield from walk((), config.model_dump(mode="json", by_alias=True, exclude={"quotas": {"entities", "groups"}}))


def _entity_changes(old: tuple[EntityQuota, ...], new: tuple[EntityQuota, ...]) -> Iterator[str]:
    before, after = ({_label(row, row.when): row for row in rows} for rows in (old, new))
    yield from _row_changes("quotas.entities", before, after, _settings)


def _group_changes(old: tuple[Group, ...], new: tuple[Group, ...]) -> Iterator[str]:
    before, after = ({_label(group.name, group.when): group for group in groups} for groups in (old, new))
    yield from _row_changes("quotas.groups", before, after, _terms)
    kept = [name for name in after if name in before]
    if kept != [name for name in before if name in after]:
        yield f"quotas.groups: the order is now {', '.join(after)}"


def _row_changes(key: str, before: Mapping[str, RowT], after: Mapping[str, RowT], text: Callable[[RowT], str]) -> Iterator[str]:
    for name, row in after.items():
        if name not in before:
            yield f"{key}: added {name} ({text(row)})"
        elif before[name] != row:
            yield f"{key}: changed {name} ({text(before[name])} -> {text(row)})"
    for name, row in before.items():
        if name not in after:
            yield f"{key}: removed {name} ({text(row)})"


def _label(name: object, when: When | None) -> str:
    return str(name) if when is None else f"{name} ({when})"


def _terms(group: Group) -> str:
    parts = [] if group.parent is None else [f"below {group.parent}"]
    parts += [*map(str, group.rules), *(f"{key} {limit}" for key, limit in group.limits.items())]
    for name, numbers in (("guarantee", group.guarantees), ("weight", group.weights)):
        parts += [f"{key} {name} {number:.16g}" for key, number in numbers.items()]
    return "; ".join([*parts, *_shadow(group.shadow)])


def _settings(row: EntityQuota) -> str:
    exempt = f"exempt from {', '.join(row.exempt_from)}" if row.exempt_from else "exempt"
    limits = [f"{key} {limit}" for key, limit in row.limits.items()]
    return ", ".join([*([exempt] if row.exempt or row.exempt_from else []), *limits, *_shadow(row.shadow)])


def _shadow(limits: Mapping[str, float]) -> list[str]:
    return [f"shadow {key} {limit}" for key, limit in limits.items()]


@dataclass(frozen=True, slots=True)
class _NewConfig:
    """A config that may take effect: its changes to the one before, and its `warnings`."""

    config: WeirConfig
    changes: tuple[str, ...]
    warnings: tuple[str, ...]
    characters: int


class Reloader:
    """Watches a config file and puts its changes into effect.

    The reloader reads the file at SIGHUP and when its directory changes. Such a change is an edit in place, a rename over the
    file, or the swap of a ConfigMap's `..data` link. It also reads the file every second, for file systems without
    notifications. Someone may be writing the file in place, so a text must stay the same for a moment. A text must
    stay the same for 3 s if it is shorter than the one in effect, or its last line has no end. SIGHUP ends each wait.

    If the first look finds another text than that of the config in effect, each text must stay the same for 3 s.

    A refused text is tried again, at first after a minute, as the cause may be a file that it names.

    `prepare` is called before `apply`, in a thread. `on_result` is called in the event loop: for each changed content, accepted
    or not, and if another try ends otherwise. `on_hangup` is called at each SIGHUP.
    """

    def __init__(
        self,
        path: Path,
        current: WeirConfig,
        apply: Apply,
        on_result: Callable[[ReloadResult], None],
        on_hangup: Callable[[], None] = lambda: None,
        prepare: Callable[[WeirConfig], None] = lambda _: None,
    ) -> None:
        self._path = path
        self._current = current
        self._apply = apply
        self._on_result = on_result
        self._on_hangup = on_hangup
        self._prepare = prepare
        self._seen: _Content | None = None
        self._characters: float = 0  # of the text in effect; infinite if the first look finds another text
        self._refusal: tuple[Problem, ...] = ()
        self._retry_seconds, self._retry_at = 0.0, math.inf
        self._asked = False
        self._wake = asyncio.Event()

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGHUP, self._ask)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._watch(), name="watch the config file")
                await self._follow()
        finally:
            loop.remove_signal_handler(signal.SIGHUP)
            signal.signal(signal.SIGHUP, signal.SIG_IGN)  # the default action would kill the process while it stops

    def _ask(self) -> None:
        self._asked = True
        service_manager.reloading()
        self._wake.set()
        self._on_hangup()

    async def _watch(self) -> None:
        """Wake the reloader when the file may have changed."""
        failing = False
        while True:
            here, there = self._directories()
            try:
                async for _ in awatch(
                    here,
                    there,
                    watch_filter=None,
                    debounce=200,
                    recursive=False,
                    rust_timeout=_LOOK_EVERY_MS,
                    yield_on_timeout=True,
                ):
                    failing = False
                    self._wake.set()
                    if (here, there) != self._directories():
                        break
            except (FileNotFoundError, PermissionError):
                # The directory is gone, such as between an unmount and the next mount.
                pass
            except (OSError, RuntimeError) as error:  # watchfiles raises RuntimeError for most errors
                if not failing:
                    _log.warning(
                        "%s can't be watched, it is looked at every %g s instead: %s — if it is about inotify, raise "
                        "fs.inotify.max_user_instances or max_user_watches", here, _LOOK_EVERY_MS / 1000, error,
                    )  # fmt: skip
                failing = True
            else:
                continue
            self._wake.set()
            await asyncio.sleep(_LOOK_EVERY_MS / 1000)

    def _directories(self) -> tuple[Path, Path]:
        """The directory of the file's name, and the directory of the file that the name links to."""
        try:
            return self._path.absolute().parent, self._path.resolve(strict=True).parent
        except (OSError, RuntimeError):  # missing, or a loop of links
            return self._path.absolute().parent, self._path.absolute().parent

    async def _follow(self) -> None:
        """Read the file whenever it may have changed, first of all for a change since the start."""
        if self._characters == 0:
            await self._first_look()
        self._wake.set()
        while True:
            await self._wake.wait()
            self._wake.clear()
            asked, self._asked = self._asked, False
            content = await self._read(settle=not asked)
            if self._asked and not asked:
                continue  # the content may be older than the SIGHUP
            again = not asked and content == self._seen
            rows: list[EntityQuota] = []
            if content != self._seen or (asked and self._refusal) or clock.monotonic() >= self._retry_at:
                # The thread may fail to start. This task is then started again, and has not seen the content yet.
                found = await asyncio.to_thread(self._parse, content)
                self._seen = content
                self._retry_at = math.inf
                rows += self._current.quotas.rows  # otherwise a new config would free those of the old one in one step
                self._take_over(found, again=again)
            elif asked:
                _log.info("%s is unchanged, nothing to reload", self._path)
            if asked:
                service_manager.ready()
            await in_slices(_freed(rows))

    async def _first_look(self) -> None:
        """Compare the file with the config of the start, and take every other text for a part.

        A worker may start while somebody writes. It has the config in effect, but nobody has its text.
        """
        content = await asyncio.to_thread(self._look)
        if await asyncio.to_thread(self._is_in_effect, content):
            self._seen, self._characters = content, len(content)
        else:
            self._characters = math.inf

    def _is_in_effect(self, content: _Content) -> bool:
        """As a rule, the text is that of the start. Then a worker needs none of the files of a reload."""
        try:
            return isinstance(content, str) and parse_config(content, source=str(self._path)) == self._current
        except Exception:  # the parser of the change reports it
            return False

    async def _read(self, *, settle: bool) -> _Content:
        """Read the file. With `settle`, wait until the content stays equal, or SIGHUP comes."""
        content = await asyncio.to_thread(self._look)
        equal = 0
        for _ in range(_MOST_READS if settle else 0):
            enough = _EQUAL_READS_OF_PART if self._may_be_part(content) else _EQUAL_READS
            if content == self._seen or equal >= enough or self._asked:
                break
            await asyncio.sleep(_SETTLE_SECONDS)
            before, content = content, await asyncio.to_thread(self._look)
            equal = equal + 1 if content == before else 0
        return content

    def _may_be_part(self, content: _Content) -> bool:
        """True for a text that a slow writer may have begun in place of the one in effect."""
        if not isinstance(content, str):
            return False
        return len(content) < self._characters or not content.endswith("\n")

    def _look(self) -> _Content:
        try:
            return read_config_text(self._path)
        except ConfigError as error:
            return tuple(error.problems)

    def _parse(self, content: _Content) -> _NewConfig | Sequence[Problem]:
        """Thousands of entities take seconds to parse, so this runs in a thread."""
        if not isinstance(content, str):
            return content
        try:
            new = parse_config(content, source=str(self._path), directory=self._path.parent, reload=True)
            planned = plan(self._current, new)
            warnings = (*new.warnings(), *past_warnings(new.quotas.row_lists, clock.utc()))
            if planned.problems:
                return planned.problems
            self._prepare(new)
            return _NewConfig(new, planned.changes, warnings, len(content))
        except ConfigError as error:
            return error.problems
        except Exception as error:
            _log.exception("%s could not be read", self._path)
            remedy = "report the traceback in Weir's log, and try the file without what was changed last"
            return [Problem("(file)", f"could not be read: {error!r}", remedy)]

    def _take_over(self, new: _NewConfig | Sequence[Problem], *, again: bool) -> None:
        """`again`: a refused text is tried once more."""
        if not isinstance(new, _NewConfig):
            self._refuse(new, again=again)
            return
        try:
            notes = self._apply(self._current, new.config)
        except ConfigError as error:
            self._refuse(error.problems, again=again)
        except Exception as error:
            _log.exception("%s could not be applied", self._path)
            remedy = "restart Weir to be sure of its state, and report the traceback in its log"
            self._refuse([Problem("(file)", f"could not be applied: {error!r}", remedy)], again=again)
            self._retry_at = math.inf
        else:
            self._accept(new, notes)

    def _accept(self, new: _NewConfig, notes: list[str]) -> None:
        self._current, self._refusal, self._characters = new.config, (), new.characters
        lines = [*first_lines(new.changes), *first_lines(notes)]
        _log.info("%s reloaded: %s", self._path, "; ".join(lines) or "no setting changed")
        for warning in first_lines(new.warnings):  # `weir check` has all
            _log.warning("%s: %s", self._path, warning)
        self._on_result(ReloadResult(clock.wall(), new.config, new.changes))

    def _refuse(self, problems: Sequence[Problem], *, again: bool) -> None:
        """Keep the config in effect, and log the problems of the file if they are new."""
        known = again and tuple(problems) == self._refusal
        self._retry_seconds = min(2.0 * self._retry_seconds, LONGEST_RETRY_SECONDS) if known else RETRY_SECONDS
        self._retry_at = clock.monotonic() + self._retry_seconds
        if known:
            return
        self._refusal = tuple(problems)
        for problem in problems:
            _log.error("%s refused, the config in effect stays: %s", self._path, problem, extra={"key": problem.key})
        self._on_result(ReloadResult(clock.wall(), self._current, problems=tuple(problems)))


def _freed(rows: list[EntityQuota]) -> Steps[None]:
    for _ in drained(rows):
        yield
