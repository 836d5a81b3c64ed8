"""Parses YAML to plain data with the line of every key. Duplicate keys are errors."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import yaml

from gateway.config.problems import ConfigError, KeyPath, Problem, key_path

_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""libyaml's loader, if PyYAML has it, is ten times faster. The difference is visible from a thousand entities on."""

_LONGEST_SHOWN = 40
_MAX_DEPTH = 64
_TOO_DEEP = "is nested too deeply"
_LIBYAML_TOO_DEEP = "exceeded maximum nesting depth"
_MAX_ALIASED = 100_000
_MERGE_TAG = "tag:yaml.org,2002:merge"
_NUMBERS = frozenset({"tag:yaml.org,2002:int", "tag:yaml.org,2002:float"})
_SURPRISING = re.compile(r"[-+]?(?:0[0-9xXoObB_].*|.*:.*)")
"""YAML 1.1 takes 0100 for octal, and 20:00:00 for a number of base 60."""


@dataclass(frozen=True, slots=True)
class Document:
    """A parsed YAML file: `data` as plain Python values, `lines` from a key's path to its line, counted from 1.

    `surprises` are numbers of another base. A key that has another problem as well needs only that one.
    """

    data: Any
    lines: dict[KeyPath, int]
    problems: list[Problem]
    surprises: list[Problem]

    def line(self, path: KeyPath) -> int | None:
        """The line of the key at `path`, or of the nearest enclosing key. None if there is neither."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path)


def read_document(text: str, *, source: str) -> Document:
    """Parse YAML. Duplicate keys become the document's `problems`. Raises ConfigError for invalid YAML."""
    try:
        excess = _excess(text)
        if excess is not None:
            raise ConfigError(source, [_not_yaml(excess, None)])
        loader = _Loader(text)
        try:
            node = loader.get_single_node()
            if node is None:
                raise ConfigError(source, [_empty()])
            lines: dict[KeyPath, int] = {}
            problems, surprises = _index(node, lines)
            try:
                data = loader.construct_document(node)
            except yaml.YAMLError:
                raise
            except Exception as error:  # the constructor of a tag may raise anything, such as KeyError for !!bool maybe
                raise ConfigError(source, [_unreadable(loader, node, error)]) from None
        finally:
            loader.dispose()
        _free(node)
    except yaml.YAMLError as error:
        raise ConfigError(source, [_syntax(error, text)]) from None
    if data is None:
        raise ConfigError(source, [_empty()])
    return Document(data, lines, problems, surprises)


def _free(root: yaml.Node) -> None:
    """Free the nodes one by one: the event loop can't run while a whole tree of them is freed in one step."""
    pending = [root]
    while pending:
        node = pending.pop()
        if isinstance(node, yaml.CollectionNode):
            for child in node.value:
                pending += child if isinstance(child, tuple) else (child,)
            node.value = []


def _excess(text: str) -> str | None:
    """The problem of a text that would cost too much: deep nesting, or aliases that stand for many values.

    libyaml's composer is recursive and crashes the process on deep nesting. Its parser is not, and refuses 1 000 levels from
    libyaml 0.2.6 on. Aliases of aliases may stand for a billion values in 400 bytes, and the checks look at each of them.
    """
    try:
        return _excess_of(yaml.parse(text, Loader=_Loader))
    except yaml.MarkedYAMLError as error:
        if error.problem == _LIBYAML_TOO_DEEP:
            return _TOO_DEEP
        raise


def _excess_of(events: Iterable[yaml.Event]) -> str | None:
    sizes: dict[str | None, int] = {}
    nested: list[tuple[str | None, int]] = []  # the anchor and the values of each open list or mapping
    aliased = values = 0
    for event in events:
        if isinstance(event, yaml.CollectionStartEvent):
            if len(nested) == _MAX_DEPTH:
                return _TOO_DEEP
            nested.append((event.anchor, values))
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before = nested.pop()
            sizes[anchor] = values - before
        elif isinstance(event, yaml.AliasEvent):
            size = sizes.get(event.anchor, 1)
            aliased += size
            values += size
            if aliased > _MAX_ALIASED:
                return f"has aliases (*) that stand for more than {_MAX_ALIASED} values"
        elif isinstance(event, yaml.ScalarEvent):
            sizes[event.anchor] = 1
            values += 1
    return None


def _index(root: yaml.Node, lines: dict[KeyPath, int]) -> tuple[list[Problem], list[Problem]]:
    """Record the line of every key and item, and return `problems` and `surprises`. A node with aliases is visited once."""
    problems: list[Problem] = []
    surprises: list[Problem] = []
    entered: set[int] = set()
    pending: list[tuple[KeyPath, yaml.Node]] = [((), root)]
    while pending:
        path, node = pending.pop()
        lines.setdefault(path, node.start_mark.line + 1)
        if id(node) in entered:
            continue
        entered.add(id(node))
        if isinstance(node, yaml.ScalarNode) and node.tag in _NUMBERS and _SURPRISING.fullmatch(node.value):
            surprises.append(_surprising(node, path))
        if isinstance(node, yaml.SequenceNode):
            pending.extend(((*path, index), item) for index, item in enumerate(node.value))
        elif isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                if not isinstance(key, yaml.ScalarNode) or key.tag == _MERGE_TAG:
                    continue
                child, line = (*path, key.value), key.start_mark.line + 1
                if child in lines:
                    problems.append(
                        Problem(
                            key_path(child),
                            f"is given twice, first on line {lines[child]}",
                            "keep one of them",
                            line=line,
                        )
                    )
                else:
                    lines[child] = line
                    pending.append((child, value))
    return problems, surprises


def _surprising(node: yaml.ScalarNode, path: KeyPath) -> Problem:
    written = node.value[:_LONGEST_SHOWN]
    return Problem(
        key_path(path),
        f"is {written}, which YAML takes for a number of another base",
        "write a number in plain digits, or anything else in quotes",
        line=node.start_mark.line + 1,
    )


def _unreadable(loader: yaml.constructor.SafeConstructor, root: yaml.Node, error: Exception) -> Problem:
    """The first value that its constructor refuses, such as the date 2026-13-45 or `!!timestamp soon`."""
    entered: set[int] = set()
    pending = [root]
    while pending:
        node = pending.pop()
        if isinstance(node, yaml.ScalarNode):
            try:
                loader.construct_object(node)
            except Exception:  # as above
                # The value may be a secret.
                kind = node.tag.rpartition(":")[2]
                return _not_yaml(f"has a value that YAML can't read as its type, {kind}", node.start_mark.line + 1)
        elif id(node) not in entered:
            entered.add(id(node))
            pending += reversed([each for child in node.value for each in (child if isinstance(child, tuple) else (child,))])
    return _not_yaml(f"has a value that YAML can't read: {error}", None)


def _syntax(error: yaml.YAMLError, text: str) -> Problem:
    """A parser's error as a problem. Tabs and repeated document marks have their own messages."""
    if isinstance(error, yaml.reader.ReaderError):
        return _not_yaml(f"holds the character #x{int(error.character):04x}, which YAML does not allow", None)
    if not isinstance(error, yaml.MarkedYAMLError):
        return _not_yaml(f"is not valid YAML: {error}", None)
    mark = error.problem_mark or error.context_mark
    line = mark.line + 1 if mark else None
    what = error.problem or error.context or "it can't be parsed"
    if mark and "\t" in _indent(text, mark.line):
        return Problem("(file)", "is indented with a tab, which YAML does not allow", "use spaces", line=line)
    if "single document" in (error.context or ""):
        return Problem("(file)", "holds more than one YAML document", "keep one, without '---' in between", line=line)
    context = f" {error.context}," if error.context and error.context != what else ""
    return _not_yaml(f"is not valid YAML:{context} {what}", line)


def _indent(text: str, line: int) -> str:
    content = [*text.splitlines(), ""][line]
    return content[: len(content) - len(content.lstrip())]


def _not_yaml(message: str, line: int | None) -> Problem:
    return Problem("(file)", message, "correct it at or just above that line" if line else "correct it", line=line)


def _empty() -> Problem:
    return Problem("(file)", "is empty", "give it at least upstream.bootstrap_servers and one of listeners")
