"""Reads the config file into a `WeirConfig`, or raises one `ConfigError` with all problems."""

import json
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from stat import S_ISFIFO
from typing import Final

from pydantic import ValidationError

from gateway.config.certificates import check_certificates, check_upstream_certificates
from gateway.config.checks import cross_check, split_unsupported
from gateway.config.document import Document, read_document
from gateway.config.model import WeirConfig
from gateway.config.paths import check_paths, check_paths_of_worker
from gateway.config.problems import ConfigError, KeyPath, Problem
from gateway.config.pydantic_errors import problem, problems_of
from gateway.features.notify.config import WITH_SECRETS
from gateway.files.path_faults import MAX_STREAM_BYTES, READABLE, open_now, read_remedy, rest_of
from gateway.files.secret_file import UnusableSecretError
from gateway.steps import drained

_ROWS: Final = ("entities", "groups")
"""The keys of `quotas` whose rows know their lines in the file."""

MAX_CONFIG_BYTES: Final = MAX_STREAM_BYTES
"""Half a million rows. The parser takes five times as much memory as the text, so a wrong file could end the gateway."""

Check = Callable[[WeirConfig, Document, Path], Iterable[Problem]]
"""A check of the files that a config names. The path is the config file's."""


def parse_config(text: str, *, source: str, directory: Path | None = None, reload: bool = False) -> WeirConfig:
    """Parse and validate a YAML text. `source` names the text in messages. Raises ConfigError with all problems.

    With `directory` (the config file's), the files that the config names are checked as well. With `reload`, only those are
    that a reload may change.
    """
    return _of_document(read_document(text, source=source), source, directory, _OF_RELOAD if reload else _CHECKS)


_STAND_INS: Mapping[str, object] = {
    "upstream": {"bootstrap_servers": ["127.0.0.1:9092"]},
    "listeners": [{"bootstrap_port": 29092}],
}


def load_quotas(path: Path, option: str) -> WeirConfig:
    """Read the section `quotas` of a file. Without `upstream` and `listeners` in the file, these have arbitrary values.

    The files that it names are not checked. `option` is as for `read_config_text`. Raises ConfigError.
    """
    source = str(path)
    document = read_document(read_config_text(path, option), source=source)
    if isinstance(document.data, dict):
        if document.data.get("quotas") is None:
            remedy = 'give the file the section quotas of weir.yaml, such as "quotas: {entities: [...]}"'
            raise ConfigError(source, [*document.problems, problem(document, ("quotas",), "is missing or empty", remedy)])
        document = replace(document, data={**_STAND_INS, **document.data})
    return _of_document(document, source, None, ())


def _of_document(document: Document, source: str, directory: Path | None, checks: Sequence[Check]) -> WeirConfig:
    try:
        return _validated(document, source, directory, checks)
    except RecursionError:  # the nesting of the text itself has been checked
        message, remedy = "has an alias (*) inside of its own anchor", "replace the alias by the values"
        raise ConfigError(source, [Problem("(file)", message, remedy)]) from None


def kept_config(config: WeirConfig) -> str:
    """The config as JSON, for `parse_kept_config`, with the lines of its entities and groups in the config file."""
    return json.dumps(
        {
            "config": config.model_dump(mode="json", by_alias=True, exclude_unset=True, context={WITH_SECRETS: True}),
            "lines": {name: [row.line for row in getattr(config.quotas, name)] for name in _ROWS},
        }
    )


def parse_kept_config(text: str, *, source: str, directory: Path) -> WeirConfig:
    """Read a config that was valid and has been saved by `kept_config`. The files that a worker uses are checked again.

    Raises ConfigError. It is not parsed as YAML, because YAML reads some of JSON differently, such as 5e-05 and an emoji.
    """
    kept = json.loads(text)
    lines: dict[KeyPath, int] = {
        ("quotas", name, index): line for name in _ROWS for index, line in enumerate(kept["lines"][name]) if line is not None
    }
    return _validated(Document(kept["config"], lines, [], []), source, directory, _OF_WORKER)


def _validated(document: Document, source: str, directory: Path | None, checks: Sequence[Check]) -> WeirConfig:
    data, unsupported = split_unsupported(document)
    try:
        return _config_of(document, data, unsupported, source, directory, checks)
    finally:
        _free(document, data)


def _free(document: Document, data: object) -> None:
    """Free rows and lines one by one: the event loop can't run while thousands of them are freed in one step."""
    for each in (document.data, data):
        quotas = each.get("quotas") if isinstance(each, Mapping) else None
        found = [quotas.get(name) for name in _ROWS] if isinstance(quotas, Mapping) else []
        for rows in found:
            if isinstance(rows, list):
                deque(drained(rows), maxlen=0)
    while document.lines:
        document.lines.popitem()


def _config_of(
    document: Document,
    data: object,
    unsupported: list[Problem],
    source: str,
    directory: Path | None,
    checks: Sequence[Check],
) -> WeirConfig:
    problems = [*document.problems, *document.surprises, *unsupported, *cross_check(data, document)]
    try:
        config = WeirConfig.model_validate(data)
    except ValidationError as error:
        # An unsupported key was removed, so its section may lack something now. The problem of the key explains that.
        cut = [problem.key for problem in unsupported]
        found = [each for each in problems_of(error, document) if not any(key.startswith(f"{each.key}.") for key in cut)]
        explained = {each.key for each in found}
        problems = [each for each in problems if each not in document.surprises or each.key not in explained] + found
    else:
        if not problems and directory is not None:
            for check in checks:
                problems += check(config, document, directory / Path(source).name)
        if not problems:
            return _with_lines(config, document)
    raise ConfigError(source, sorted(problems, key=lambda problem: problem.line or 0))


def _with_lines(config: WeirConfig, document: Document) -> WeirConfig:
    """The config whose entities and groups know their lines, so that a throttle can be traced to the file."""
    rows = {
        name: tuple(
            replace(row, line=document.line(("quotas", name, index))) for index, row in enumerate(getattr(config.quotas, name))
        )
        for name in _ROWS
    }
    if not any(rows.values()):
        return config
    return config.model_copy(update={"quotas": config.quotas.model_copy(update=rows)})


def _check_password(config: WeirConfig, document: Document, file: Path) -> Iterator[Problem]:
    sasl = config.upstream.sasl
    if sasl is not None:
        try:
            sasl.secret(file.parent)
        except UnusableSecretError as error:
            yield problem(document, ("upstream", "sasl", sasl.secret_key), error.message, error.remedy)


def _check_webhooks(config: WeirConfig, document: Document, file: Path) -> Iterator[Problem]:
    for index, target in enumerate(() if config.notify is None else config.notify.targets):
        try:
            target.address(file.parent)
        except UnusableSecretError as error:
            yield problem(document, ("notify", "targets", index, "url_file"), error.message, error.remedy)


_OF_RELOAD: Final[Sequence[Check]] = (_check_webhooks,)
_CHECKS: Final[Sequence[Check]] = (check_certificates, check_paths, _check_password, *_OF_RELOAD)
# The supervisor alone sends notifications (decision 014), so no worker needs their files.
_OF_WORKER: Final[Sequence[Check]] = (check_certificates, check_paths_of_worker, _check_password)
_OF_CONNECTIONS: Final[Sequence[Check]] = (check_upstream_certificates, _check_password)


def load_config(path: Path) -> WeirConfig:
    """Read and validate a config file. Raises ConfigError, also if the file can't be read."""
    return parse_config(read_config_text(path), source=str(path), directory=path.parent)


def load_for_connections(path: Path) -> WeirConfig:
    """The same for a process that connects to brokers and serves no clients. It needs the files of `upstream` alone."""
    source = str(path)
    return _of_document(read_document(read_config_text(path), source=source), source, path.parent, _OF_CONNECTIONS)


def read_config_text(path: Path, option: str = "--config", *, most: float = MAX_CONFIG_BYTES) -> str:
    """Raises ConfigError if the file is missing, unreadable, above `most` bytes or not UTF-8.

    `option` names the file on the command line.
    """
    try:
        with open(path, "rb", opener=open_now) as file:
            status = os.fstat(file.fileno())
            size = status.st_size  # 0 of a pipe
            text = rest_of(file) if size <= most else b""
        if not text and S_ISFIFO(status.st_mode):
            raise ConfigError(
                str(path), [Problem("(file)", "is a pipe without a writer", f"name a regular file with {option}")]
            )
        if max(size, len(text)) <= most:
            return text.decode("utf-8-sig")
        most_mib = MAX_CONFIG_BYTES >> 20
        problem = Problem("(file)", f"has more than {most_mib} MiB", f"name the config file with {option}, or shorten it")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        problem = Problem("(file)", "is not UTF-8 text", "save it as UTF-8", line=line)
    except FileNotFoundError:
        problem = Problem("(file)", "does not exist", f"write one with `weir init`, or name another with {option}")
    except IsADirectoryError:
        problem = Problem("(file)", "is a directory", f"name the file in it with {option}")
    except OSError as error:
        problem = Problem("(file)", f"can't be read: {error.strerror}", read_remedy(error, READABLE))
    raise ConfigError(str(path), [problem])
