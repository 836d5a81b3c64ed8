"""Checks of the paths to which Weir writes: the files of `state`, and the folder of the ledger."""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from gateway.config.document import Document
from gateway.config.problems import Problem
from gateway.config.pydantic_errors import problem
from gateway.files.path_faults import mode_at, path_fault

if TYPE_CHECKING:
    from gateway.config.model import WeirConfig

_STATE = ("path", "usage_path")


def check_paths(config: "WeirConfig", document: Document, config_file: Path) -> Iterator[Problem]:
    """A problem for each key of `state` with a path at which no file can be, or another file is.

    The section `ledger` checks its folder itself, because that path does not depend on the config file's directory.
    """
    faults = list(_state_faults(config, document, config_file, _STATE))
    yield from faults
    if faults:
        return
    known = {config_file.resolve(): "the config file"}
    for key, path in config.state.files(config_file, config.workers):
        own = f"a file of state.{key}"
        other = known.setdefault(path.resolve(), own)
        if other != own:
            message = f"makes Weir overwrite {path}, which is {other}"
            yield problem(document, ("state", key), message, "give the path of another file", value=getattr(config.state, key))


def check_paths_of_worker(config: "WeirConfig", document: Document, config_file: Path) -> Iterator[Problem]:
    """The same for one of several workers, without the files of the supervisor alone.

    The file at `state.usage_path` itself is one of them, because each worker has a numbered one beside it. The supervisor has
    checked that no two paths are the same.
    """
    yield from _state_faults(config, document, config_file, ("path",))


def _state_faults(config: "WeirConfig", document: Document, config_file: Path, keys: Iterable[str]) -> Iterator[Problem]:
    for key in keys:
        given = getattr(config.state, key)
        if given is not None and (fault := path_fault(config_file.parent / given, folder=False)) is not None:
            yield problem(document, ("state", key), *fault, value=given)


def path_warnings(config: "WeirConfig", directory: Path, *, starts: bool = False) -> Iterator[str]:
    """One line for each folder of `state` and `ledger` that the present user can't write to.

    A missing folder of `state` counts if its path is relative, and so is below the config file's directory. An absolute one may
    belong to another machine or to a container, and systemd makes those of its unit. So it counts only if Weir `starts` now.
    Weir makes a missing folder of the ledger itself.
    """
    if config.state.path is None and _saves_by_default(config) and not _writable(directory):
        yield (
            "state.path: is absent, so Weir saves its state beside the config file. The present user can't write to the folder"
            f" {directory.absolute()} — give the path of a file in another folder"
        )
    for key in _STATE:
        given = getattr(config.state, key)
        if given is None:
            continue
        folder = (directory / given).parent
        if _is_there(folder):
            yield from _closed(f"state.{key}", folder)
        elif starts or not Path(given).is_absolute():
            yield (
                f"state.{key}: the folder {folder} does not exist, so nothing can be saved there"
                " — make it, writable for the user that runs Weir"
            )
    if config.ledger is not None:
        path = config.ledger.path.absolute()
        if starts or _is_there(path) or not config.ledger.path.is_absolute():
            yield from _closed("ledger.path", next(each for each in (path, *path.parents) if _is_there(each)))


def _saves_by_default(config: "WeirConfig") -> bool:
    """True if Weir saves quotas of the API, or the use of a limit, and no key names the file."""
    if config.quota_admins:
        return True
    rates = [section.connection_creation_rate for section in (config.connections, *config.listeners)]
    limits = config.quotas.rows or config.quotas.topics is not None or any(rate is not None for rate in rates)
    return config.state.usage_path is None and bool(limits)


def _is_there(folder: Path) -> bool:
    """True also if the present user can't look into a folder above."""
    try:
        return bool(mode_at(folder))
    except PermissionError:
        return True


def _writable(folder: Path) -> bool:
    return os.access(folder, os.W_OK | os.X_OK)


def _closed(key: str, folder: Path) -> Iterator[str]:
    if not _writable(folder):
        yield f"{key}: the present user can't write to the folder {folder} — make it writable for the user that runs Weir"
