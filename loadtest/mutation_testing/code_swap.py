"""Puts a mutant into a process that has imported the module: the functions get other code, and keep their identity.

Code outside of functions has run at the import already, so a mutant of such code needs a new import.
"""

import gc
import inspect
from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Final

_AT_IMPORT: Final = ("<genexpr>", "<listcomp>", "<dictcomp>", "<setcomp>")

FunctionKey = tuple[str, str, int]
"""The file, the qualified name and the first line of a function outside of other functions."""


class CodeSwap:
    """The functions of some modules that have been imported. `files` are their sources by path."""

    def __init__(self, files: dict[str, str]) -> None:
        self._codes = {file: compile(source, file, "exec", dont_inherit=True) for file, source in files.items()}
        self._starts: dict[tuple[str, str], list[int]] = {}
        for file, code in self._codes.items():
            for leaf in _functions(code):
                self._starts.setdefault((file, leaf.co_qualname), []).append(leaf.co_firstlineno)
        gc.unfreeze()  # the collector does not list frozen objects
        self._functions: dict[FunctionKey, list[FunctionType]] = {}
        for each in gc.get_objects():
            if isinstance(each, FunctionType) and each.__code__.co_filename in files:
                key = self.key(each.__code__)
                if key is not None:
                    self._functions.setdefault(key, []).append(each)

    def key(self, code: CodeType) -> FunctionKey | None:
        """The function to which this code belongs. None for other files, and for code that runs at the import."""
        name = code.co_qualname.split(".<locals>")[0]
        starts = [line for line in self._starts.get((code.co_filename, name), ()) if line <= code.co_firstlineno]
        return (code.co_filename, name, max(starts)) if starts else None

    def changed(self, file: str, source: str) -> tuple[FunctionKey, CodeType] | None:
        """The only function that differs from the original, and its code. None if the module has to be imported again."""
        before = self._codes[file]
        after = compile(source, file, "exec", dont_inherit=True)
        if _frame(before) != _frame(after):
            return None
        pairs = zip(_functions(before), _functions(after), strict=True)
        found = [(self.key(old), new) for old, new in pairs if old != new]
        if len(found) != 1 or (key := found[0][0]) is None:
            return None
        functions = self._functions.get(key, [])
        new = found[0][1]
        return (key, new) if functions and all(_fits(each, new) for each in functions) else None

    def put(self, key: FunctionKey, code: CodeType) -> None:
        for function in self._functions[key]:
            function.__code__ = code


def _fits(function: FunctionType, code: CodeType) -> bool:
    return function.__code__.co_firstlineno == code.co_firstlineno and function.__code__.co_freevars == code.co_freevars


def _is_function(code: CodeType) -> bool:
    return bool(code.co_flags & inspect.CO_OPTIMIZED) and code.co_name not in _AT_IMPORT


def _functions(code: CodeType) -> Iterator[CodeType]:
    """The functions of a module and its classes, without those inside of functions."""
    for const in code.co_consts:
        if isinstance(const, CodeType):
            if _is_function(const):
                yield const
            else:
                yield from _functions(const)


def _frame(code: CodeType) -> tuple[object, ...]:
    """The code of a module and its classes, without the code of functions."""
    consts = [
        each.co_qualname if isinstance(each, CodeType) and _is_function(each)
        else _frame(each) if isinstance(each, CodeType)
        else (type(each), repr(each))
        for each in code.co_consts
    ]  # fmt: skip
    return code.co_code, code.co_names, code.co_varnames, code.co_freevars, *consts
