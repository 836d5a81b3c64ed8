"""The mutants of a module: every small change that an operator makes at one place of its source.

The operators are mutmut's, with two more. mutmut's own run leaves out tables, constants, dataclasses and properties.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import libcst as cst
from libcst.metadata import MetadataWrapper, PositionProvider
from mutmut.mutation.mutators import mutation_operators

_UNCHANGED: Final = (cst.Annotation, cst.Decorator, cst.Import, cst.ImportFrom)
"""Types and decorators: an error there is mypy's to find."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """One changed place. `key` is its line before and after, so that the key bears changes of other lines."""

    key: str
    line: int
    source: str


def mutants_of(source: str) -> list[Mutant]:
    """All mutants of a module that compile, in the order of its lines."""
    wrapper = MetadataWrapper(cst.parse_module(source))
    visitor = _Changes()
    wrapper.visit(visitor)
    offsets = [0]
    for line in source.splitlines(keepends=True):
        offsets.append(offsets[-1] + len(line))
    seen: Counter[str] = Counter()
    texts = {source}
    found: list[Mutant] = []
    for original, mutated in visitor.changes:
        place = wrapper.resolve(PositionProvider)[original]
        start = offsets[place.start.line - 1] + place.start.column
        end = offsets[place.end.line - 1] + place.end.column
        code = wrapper.module.code_for_node(mutated)
        code += "\\\n" * (source[start:end].count("\n") - code.count("\n"))  # the lines below keep their numbers
        text = source[:start] + code + source[end:]
        if text in texts or not _compiles(text):
            continue
        texts.add(text)
        before, after = _difference(source, text)
        change = f"{before} -> {after}"
        seen[change] += 1
        key = change if seen[change] == 1 else f"{change} (place {seen[change]})"
        found.append(Mutant(key, place.start.line, text))
    return sorted(found, key=lambda mutant: mutant.line)


def _compiles(text: str) -> bool:
    try:
        compile(text, "mutant", "exec", dont_inherit=True)
    except (SyntaxError, ValueError):
        return False
    return True


def _difference(source: str, text: str) -> tuple[str, str]:
    """The lines that differ, joined."""
    old, new = source.splitlines(), text.splitlines()
    first = next(index for index in range(len(old)) if index >= len(new) or old[index] != new[index])
    last = next(index for index in range(1, len(old) + 1) if old[-index] != new[-index])
    before, after = (_code(each[first : len(each) - last + 1]) for each in (old, new))
    return before, after


def _code(lines: list[str]) -> str:
    """The lines as one, without comments."""
    return " ".join(" ".join(line.split("  #")[0].removesuffix("\\").split()) for line in lines).strip()


class _Changes(cst.CSTVisitor):
    """Collects pairs of a node and its changed form."""

    def __init__(self) -> None:
        super().__init__()
        self.changes: list[tuple[cst.CSTNode, cst.CSTNode]] = []
        self._in_message = 0

    def on_visit(self, node: cst.CSTNode) -> bool:
        if isinstance(node, _UNCHANGED) or _is_slots(node):
            return False
        self._in_message += isinstance(node, cst.Raise)
        for kind, operator in _OPERATORS:
            if isinstance(node, kind):
                self.changes += [(original, mutated) for original, mutated in operator(node) if not self._is_text(original)]
        return True

    def on_leave(self, original_node: cst.CSTNode) -> None:
        self._in_message -= isinstance(original_node, cst.Raise)

    def _is_text(self, node: cst.CSTNode) -> bool:
        """The wording of an error message is no behaviour."""
        return self._in_message > 0 and isinstance(node, cst.BaseString)


def _is_slots(node: cst.CSTNode) -> bool:
    return isinstance(node, cst.Assign) and isinstance(name := node.targets[0].target, cst.Name) and name.value == "__slots__"


Changes = Iterator[tuple[cst.CSTNode, cst.CSTNode]]


def _adapted(operator: Callable[[Any], Iterable[cst.CSTNode]]) -> Callable[[Any], Changes]:
    def changes(node: cst.CSTNode) -> Changes:
        for mutated in operator(node):
            yield node, mutated
            if isinstance(node, cst.BaseString):  # one other text is enough
                return

    return changes


def _arguments(call: cst.Call) -> Changes:
    """Each keyword argument left out, and each positional one replaced by None."""
    if isinstance(call.func, cst.Name) and call.func.value in ("len", "isinstance", "TypeVar", "super"):
        return
    for index, argument in enumerate(call.args):
        if argument.keyword is not None:
            yield call, call.with_changes(args=[*call.args[:index], *call.args[index + 1 :]])
        elif argument.star == "" and not (isinstance(argument.value, cst.Name) and argument.value.value == "None"):
            yield argument.value, cst.Name("None")


def _negated_condition(node: cst.If | cst.While) -> Changes:
    yield node.test, cst.UnaryOperation(cst.Not(), node.test.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()]))


def _removed_call(node: cst.Expr) -> Changes:
    if isinstance(node.value, cst.Call):
        yield node.value, cst.Name("None")


def _removed_entry(node: cst.Dict) -> Changes:
    """A table without one of its rows."""
    for index in range(len(node.elements)):
        yield node, node.with_changes(elements=[*node.elements[:index], *node.elements[index + 1 :]])


_OPERATORS: Final[list[tuple[Any, Callable[[Any], Changes]]]] = [
    *[(kind, _adapted(operator)) for kind, operator in mutation_operators if operator.__name__ != "operator_arg_removal"],
    (cst.Call, _arguments),
    ((cst.If, cst.While), _negated_condition),
    (cst.Expr, _removed_call),
    (cst.Dict, _removed_entry),
]
