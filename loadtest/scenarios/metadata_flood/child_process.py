"""A process of the experiment, beside the one that leads it."""

import multiprocessing
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Self

PATIENCE_SECONDS = 60.0


class ChildError(RuntimeError):
    """The process ended early, gave no answer in `PATIENCE_SECONDS`, or sent this error itself."""


class ChildProcess:
    """A context manager. `target` gets the arguments and the other end of `pipe`."""

    def __init__(self, target: object, *arguments: object) -> None:
        self.pipe: Connection
        self.pipe, theirs = multiprocessing.Pipe()
        context = multiprocessing.get_context("spawn")
        self._process = context.Process(target=target, args=(*arguments, theirs), daemon=True)  # type: ignore[arg-type]
        self._theirs = theirs

    def __enter__(self) -> Self:
        self._process.start()
        self._theirs.close()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self._process.kill()
        self._process.join()

    def answer(self) -> object:
        """Raises `ChildError`."""
        name = f"the process {self._process.name}"
        if not self.pipe.poll(PATIENCE_SECONDS):
            raise ChildError(f"{name} does not answer")
        try:
            found: object = self.pipe.recv()
        except EOFError:
            raise ChildError(f"{name} has ended") from None
        if isinstance(found, ChildError):
            raise found
        return found
