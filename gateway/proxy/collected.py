"""Requests and answers that are collected until they are whole, and the bytes that connections may hold in one gateway."""

from collections.abc import Callable
from typing import Final

from gateway.proxy.handler import EndConnection

MAX_COLLECTED_BYTES: Final = 16 * 1024 * 1024
"""The bytes of unfinished requests without records that all connections of a gateway may hold, above `UNCOUNTED_BYTES` each."""

MAX_RECORDS_BYTES: Final = 256 * 1024 * 1024
"""The limit for Produce requests, which have a budget of their own. One may have `connections.max_frame_bytes`."""

MAX_ANSWER_BYTES: Final = 64 * 1024 * 1024
"""The limit for collected answers, and for Weir's own. They count until the client has read them: otherwise a client that
reads nothing could hold any number of bytes. The topics that handlers keep of requests until their answers count as well."""

MAX_GAPS_BYTES: Final = 64 * 1024 * 1024
"""The limit for the refused batches that have to come again (`SequenceGaps`)."""

UNCOUNTED_BYTES: Final = 16 * 1024
"""The bytes that each connection may always hold, so that no client can keep others from small requests and answers."""

_SIZES: Final = 64
"""The classes of holders by size, each up to twice as large as the one before."""


class Budget:
    """The bytes, above `UNCOUNTED_BYTES` each, that several connections hold together.

    `contents` names the bytes in error messages. `_added` are all bytes that have been counted so far, and serve as a clock.

    If the connections hold more than `maximum`, the heaviest is ended. Its weight is its bytes times its age. The age is the
    number of bytes that have been added since it began to hold any, at most `maximum`. So connections that hold bytes and send
    nothing go before one whose request is just arriving. A small connection stays while larger ones of that age are there.

    Sizes are rounded down to a power of two, and of equal ones only the first counts. So no search visits all connections.
    """

    __slots__ = ("_added", "_by_size", "contents", "held", "maximum")

    def __init__(self, maximum: int, contents: str) -> None:
        self.maximum = maximum
        self.contents = contents
        self.held = 0
        self._added = 0
        self._by_size: list[dict[Holder, None]] = [{} for _ in range(_SIZES)]  # each in the order in which they got that size

    @property
    def holders(self) -> int:
        """The connections that hold any bytes."""
        return sum([len(holders) for holders in self._by_size])

    def count(self, holder: "Holder", after: int) -> None:
        """A connection holds `after` bytes in place of those that are counted."""
        before = holder.counted
        old, new = before.bit_length(), after.bit_length()
        if old != new:
            if before == 0:
                holder.since = self._added
            else:
                del self._by_size[old][holder]
            if after > 0:
                self._by_size[new][holder] = None
        self.held += after - before
        self._added += max(0, after - before)
        holder.counted = after

    def check(self, current: "Holder") -> None:
        """End the heaviest connections until the bytes of the others fit. Raises EndConnection to end the `current` one."""
        while self.held > self.maximum:
            heaviest = self._heaviest()
            why = (
                f"the gateway holds {self.held} bytes of {self.contents}, more than {self.maximum}:"
                " send smaller requests of this kind, or fewer at a time"
            )
            error = EndConnection(why, limit="collected_bytes")
            evict = heaviest.evict
            heaviest.close()
            if heaviest is current:
                raise error
            evict(error)

    def _heaviest(self) -> "Holder":
        return max([next(iter(holders)) for holders in reversed(self._by_size) if holders], key=self._weight)

    def _weight(self, holder: "Holder") -> int:
        return min(self._added - holder.since, self.maximum) << holder.counted.bit_length()


class Holder:
    """The bytes that one connection holds of a budget. `counted` are those that the budget counts.

    `evict` ends the connection with an error: another one needs the bytes.
    """

    __slots__ = ("_budget", "_closed", "counted", "evict", "since")

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._closed = False
        self.since = 0  # the budget's `_added` when it began to count bytes of this connection
        self.evict: Callable[[EndConnection], None] = _evict_nobody
        self.counted = 0

    def close(self) -> None:
        """Count nothing any more, as the connection has gone or is to go, and do not refer to it."""
        self._closed = True
        self.evict = _evict_nobody
        self._count(0)

    def _count(self, held: int) -> None:
        self._budget.count(self, 0 if self._closed else max(0, held - UNCOUNTED_BYTES))


def _evict_nobody(error: EndConnection) -> None:
    """There is no connection."""


class CollectBudget:
    """The bytes that all connections of one gateway hold now, of requests with records and without, of answers and of gaps."""

    __slots__ = ("answers", "gaps", "records", "requests")

    def __init__(self) -> None:
        self.requests = Budget(MAX_COLLECTED_BYTES, "unfinished requests")
        self.records = Budget(MAX_RECORDS_BYTES, "unfinished requests")
        self.answers = Budget(MAX_ANSWER_BYTES, "answers that it collects or makes, and of requests without an answer")
        self.gaps = Budget(MAX_GAPS_BYTES, "refused batches that have to come again")


class Collected(Holder):
    """The beginning of one connection's request, until the rest has come."""

    __slots__ = ("_budgets", "_data")

    def __init__(self, budgets: CollectBudget) -> None:
        super().__init__(budgets.requests)
        self._budgets = budgets
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
        self._count(len(self._data))
        self._budget.check(self)

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


class HeldAnswers(Holder):
    """The bytes of answers that one connection holds whole, collected ones and Weir's own.

    One answer arrives, own answers wait for their turn, and the client has not read others. The client may get more bytes than
    have arrived: Weir adds the results of refused partitions. `close`: the broker's last answers wait for nobody. The memory
    that handlers keep of requests until their answers counts as well.
    """

    __slots__ = ("_arriving", "_kept", "_unread", "waiting")

    def __init__(self, budget: Budget) -> None:
        super().__init__(budget)
        self.waiting = 0  # bytes of Weir's own answers that wait for their turn
        self._arriving = 0
        self._kept = 0
        self._unread = 0

    def keep(self, size: int) -> None:
        """A handler keeps so many bytes more (negative: fewer). Raises EndConnection as `settle`."""
        self._kept += size
        self._hold()
        self._budget.check(self)

    def begin(self, size: int) -> None:
        """An answer of `size` bytes begins to arrive."""
        self._arriving = size
        self._hold()

    def end(self, size: int) -> None:
        """The answer has arrived, and its client gets `size` bytes for it."""
        self._arriving = 0
        self.add(size)

    def add(self, size: int) -> None:
        """The client gets an answer of `size` bytes that has arrived at once."""
        self._unread += size
        self._hold()

    def wait(self, size: int) -> None:
        """An answer of Weir's own, of `size` bytes, waits for its turn."""
        self.waiting += size
        self._hold()

    def written(self, size: int) -> None:
        """The turn of that answer has come."""
        self.waiting -= size
        self._unread += size

    def read(self) -> None:
        """The client has read all answers that were written."""
        self._unread = 0
        self._hold()

    def settle(self, *, unread: bool) -> None:
        """Note if the client leaves bytes unread, or has read all.

        Raise EndConnection, once, if all connections together hold too many bytes and this one is the heaviest.
        """
        if not unread:
            self.read()
        self._budget.check(self)

    def _hold(self) -> None:
        self._count(self._arriving + self.waiting + self._unread + self._kept)


class KeptBytes:
    """The memory that a handler keeps of one request. `keep` is the connection's (`Connection.keep`)."""

    __slots__ = ("_keep", "_size")

    def __init__(self, keep: Callable[[int], None]) -> None:
        self._keep = keep
        self._size = 0

    def are(self, size: int) -> None:
        """It keeps so many bytes now. Raises EndConnection."""
        before, self._size = self._size, size
        self._keep(size - before)
