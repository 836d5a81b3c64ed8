"""Requests and answers that are collected until they are whole, and the bytes that all of them may hold in one gateway."""

from typing import Final

from gateway.proxy.handler import EndConnection

MAX_COLLECTED_BYTES: Final = 16 * 1024 * 1024
"""The bytes of unfinished requests without records that all connections of a gateway may hold, above `UNCOUNTED_BYTES` each."""

MAX_RECORDS_BYTES: Final = 256 * 1024 * 1024
"""The limit for Produce requests, which have a budget of their own. One may have `connections.max_frame_bytes`."""

MAX_ANSWER_BYTES: Final = 64 * 1024 * 1024
"""The limit for collected answers, and for Weir's own. They count until the client has read them: otherwise a client that
reads nothing could hold any number of bytes."""

UNCOUNTED_BYTES: Final = 16 * 1024
"""The bytes that each connection may always hold, so that no client can keep others from small requests and answers."""


class Budget:
    """The bytes, above `UNCOUNTED_BYTES` each, that several connections hold together. `holders` are those that hold any.

    `contents` names the bytes in error messages.
    """

    __slots__ = ("contents", "held", "holders", "maximum")

    def __init__(self, maximum: int, contents: str) -> None:
        self.maximum = maximum
        self.contents = contents
        self.held = 0
        self.holders = 0

    def count(self, before: int, after: int) -> None:
        """A connection holds `after` bytes in place of `before`."""
        self.held += after - before
        self.holders += (after > 0) - (before > 0)

    def check(self, held: int) -> None:
        """Raise EndConnection if all hold too many bytes, and a connection with `held` of them has more than its share.

        The others may go on. Otherwise a client with long requests could end the connections of those with short ones.
        """
        if self.held > self.maximum and held * self.holders >= self.held:
            raise EndConnection(
                f"the gateway holds {self.held} bytes of {self.contents}, more than {self.maximum}:"
                " send smaller requests of this kind, or fewer at a time",
                limit="collected_bytes",
            )


class CollectBudget:
    """The bytes that all connections of one gateway hold now, of requests with records and without, and of answers."""

    __slots__ = ("answers", "records", "requests")

    def __init__(self) -> None:
        self.requests = Budget(MAX_COLLECTED_BYTES, "unfinished requests")
        self.records = Budget(MAX_RECORDS_BYTES, "unfinished requests")
        self.answers = Budget(MAX_ANSWER_BYTES, "answers that it collects or makes")


class Collected:
    """The beginning of one connection's request, until the rest has come."""

    __slots__ = ("_budget", "_budgets", "_counted", "_data")

    def __init__(self, budgets: CollectBudget) -> None:
        self._budgets = budgets
        self._budget = budgets.requests
        self._counted = 0
        self._data = bytearray()

    def __len__(self) -> int:
        return len(self._data)

    def __bool__(self) -> bool:
        return len(self._data) > 0

    def begin(self, piece: memoryview, *, records: bool) -> None:
        """Keep the first bytes of a request. Raises EndConnection."""
        # The bytes of the request before may still count for the other budget.
        self._count(0)
        self._budget = self._budgets.records if records else self._budgets.requests
        self.add(piece)

    def add(self, piece: memoryview) -> None:
        """Keep the next bytes of the request. Raises EndConnection if all connections together hold too many."""
        self._data += piece
        self._count(max(0, len(self._data) - UNCOUNTED_BYTES))
        self._budget.check(self._counted)

    @property
    def counted(self) -> bool:
        """True while the budget counts bytes of this connection."""
        return self._counted > 0

    def take(self, rest: memoryview) -> bytes:
        """Return the bytes so far and those of `rest` behind them, and keep none. A request may have 100 MB: it is copied once.

        The bytes count until `drop`, as the caller may have to hold them.
        """
        data, self._data = self._data, bytearray()
        data += rest
        return bytes(data)

    def drop(self) -> None:
        """Keep and count nothing any more."""
        self._data = bytearray()
        self._count(0)

    def _count(self, count: int) -> None:
        self._budget.count(self._counted, count)
        self._counted = count


class HeldAnswers:
    """The bytes of answers that one connection holds whole, collected ones and Weir's own.

    One answer arrives, own answers wait for their turn, and the client has not read others. The client may get more bytes than
    have arrived: Weir adds the results of refused partitions. `counted` are those that the budget counts.
    """

    __slots__ = ("_arriving", "_budget", "_closed", "_unread", "_waiting", "counted")

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._arriving = 0
        self._waiting = 0
        self._unread = 0
        self._closed = False
        self.counted = 0

    def begin(self, size: int) -> None:
        """An answer of `size` bytes begins to arrive."""
        self._arriving = size
        self._count()

    def end(self, size: int) -> None:
        """The answer has arrived, and its client gets `size` bytes for it."""
        self._arriving = 0
        self.add(size)

    def add(self, size: int) -> None:
        """The client gets an answer of `size` bytes that has arrived at once."""
        self._unread += size
        self._count()

    def wait(self, size: int) -> None:
        """An answer of Weir's own, of `size` bytes, waits for its turn."""
        self._waiting += size
        self._count()

    def written(self, size: int) -> None:
        """The turn of that answer has come."""
        self._waiting -= size
        self._unread += size

    def read(self) -> None:
        """The client has read all answers that were written."""
        self._unread = 0
        self._count()

    def settle(self, *, unread: bool) -> None:
        """Note if the client leaves bytes unread, or has read all.

        Raise EndConnection, once, if all connections together hold too many bytes and this one more than its share.
        """
        if not unread:
            self.read()
        try:
            self._budget.check(self.counted)
        except EndConnection:
            self.close()
            raise

    def close(self) -> None:
        """Count nothing any more, as the client has gone or is to go: the broker's last answers wait for nobody."""
        self._closed = True
        self._count()

    def _count(self) -> None:
        count = 0 if self._closed else max(0, self._arriving + self._waiting + self._unread - UNCOUNTED_BYTES)
        self._budget.count(self.counted, count)
        self.counted = count
