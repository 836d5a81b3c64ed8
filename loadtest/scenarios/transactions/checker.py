"""Finds anomalies in a history. The names are those of Elle and of Jepsen's Kafka tests.

The final logs of the brokers decide the order of writes and the fate of transactions. They are read after all transactions
have ended.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from typing import Final

import networkx

from loadtest.scenarios.transactions.history import Entry, GroupOffset, Log, Outcome, Poll, Transaction, Write


class Kind(StrEnum):
    """Classes of anomalies."""

    LOST_WRITE = "lost write"
    ABORTED_READ = "aborted read (G1a)"
    TORN = "torn transaction"
    DUPLICATE = "duplicate"
    NONMONOTONIC_POLL = "nonmonotonic poll"
    SKIPPED_POLL = "skipped poll"
    INCONSISTENT_OFFSET = "inconsistent offset"
    REORDERED = "reordered writes"
    UNWRITTEN = "read of an unwritten value"
    HANGING = "hanging transaction"
    WRITE_CYCLE = "write cycle (G0)"
    CIRCULAR_FLOW = "circular information flow (G1c)"


ALLOWED: Final = frozenset({Kind.WRITE_CYCLE, Kind.CIRCULAR_FLOW})
"""Kafka permits these: it interleaves the records of concurrent transactions in each partition."""


@dataclass(frozen=True, slots=True)
class Anomaly:
    """One finding. `detail` names the values, and the partition."""

    kind: Kind
    detail: str


class HistoryError(ValueError):
    """The history itself is wrong, such as two writes of one value. The message names the value."""


def check(entries: Iterable[Entry]) -> list[Anomaly]:
    """All anomalies of a history. Raises `HistoryError`."""
    return list(_Checker(entries).anomalies())


class _Checker:
    def __init__(self, entries: Iterable[Entry]) -> None:
        self.transactions: list[Transaction] = []
        self.polls: list[Poll] = []
        self.logs: dict[str, Log] = {}
        self.group_offsets: dict[str, int] = {}
        for entry in entries:
            match entry:
                case Transaction():
                    self.transactions.append(entry)
                case Poll():
                    self.polls.append(entry)
                case Log():
                    self.logs[entry.partition] = entry
                case GroupOffset():
                    self.group_offsets[entry.partition] = entry.offset
        self.transactions.sort(key=lambda transaction: transaction.begin)
        self.written: dict[str, tuple[Transaction, Write]] = {}
        for transaction in self.transactions:
            for write in transaction.writes:
                if write.value in self.written:
                    raise HistoryError(f"two writes have the value {write.value}: the workload must not repeat values")
                if write.partition not in self.logs:
                    raise HistoryError(f"the history has no log of {write.partition}: read all partitions at the end of a run")
                self.written[write.value] = transaction, write
        self.stored = {(name, value): offset for name, log in self.logs.items() for offset, value in log.everything}
        self.visible = {(name, value) for name, log in self.logs.items() for _, value in log.committed}

    def anomalies(self) -> Iterator[Anomaly]:
        yield from self._outcomes()
        yield from self._logs()
        yield from self._acknowledged_offsets()
        yield from self._orders()
        yield from self._reads()
        yield from self._positions()
        yield from self._copies()
        yield from self._cycles()

    def _outcomes(self) -> Iterator[Anomaly]:
        for transaction in self.transactions:
            there = [write for write in transaction.writes if (write.partition, write.value) in self.visible]
            absent = [write for write in transaction.writes if (write.partition, write.value) not in self.visible]
            if transaction.outcome is Outcome.OK:
                for write in absent:
                    yield Anomaly(Kind.LOST_WRITE, f"{write.partition} lacks {write.value} of {transaction.process}")
            elif transaction.outcome is Outcome.FAIL:
                for write in there:
                    yield Anomaly(Kind.ABORTED_READ, f"{write.partition} shows {write.value} of {transaction.process}")
            if transaction.atomic and transaction.outcome is not Outcome.FAIL and there and absent:
                yield Anomaly(Kind.TORN, f"{there[0].value} of {transaction.process} is visible, {absent[0].value} is not")

    def _logs(self) -> Iterator[Anomaly]:
        for name, log in self.logs.items():
            if log.stable != log.end:
                yield Anomaly(Kind.HANGING, f"{name} is stable up to {log.stable}, but ends at {log.end}")
            for value, times in Counter(value for _, value in log.everything).items():
                if times > 1:
                    yield Anomaly(Kind.DUPLICATE, f"{name} has {value} {times} times")
            for offset, value in log.everything:
                found = self.written.get(value)
                if found is None:
                    yield Anomaly(Kind.UNWRITTEN, f"{name} has {value} at {offset}")
                elif found[1].partition != name:
                    yield Anomaly(Kind.INCONSISTENT_OFFSET, f"{name} has {value}, sent to {found[1].partition}")

    def _acknowledged_offsets(self) -> Iterator[Anomaly]:
        for _, write in self.written.values():
            stored = self.stored.get((write.partition, write.value))
            if stored is not None and write.offset is not None and stored != write.offset:
                told = f"{write.value} was acknowledged at {write.offset} of {write.partition}"
                yield Anomaly(Kind.INCONSISTENT_OFFSET, f"{told}, and is stored at {stored}")

    def _orders(self) -> Iterator[Anomaly]:
        """Each process sends one record after the other, so its records are in this order in each partition."""
        sent: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
        for value, (transaction, write) in self.written.items():
            if (write.partition, value) in self.stored:
                sent[transaction.process, write.partition].append(value)
        for (process, name), values in sent.items():
            for former, latter in pairwise(values):
                if self.stored[name, former] > self.stored[name, latter]:
                    yield Anomaly(Kind.REORDERED, f"{process} sent {former} to {name} before {latter}")

    def _reads(self) -> Iterator[Anomaly]:
        """Compares each record that a reader got with the writes and with the final log."""
        for poll in self.polls:
            for name, offset, value in poll.records:
                at = f"{poll.process} read {value} at {offset} of {name}"
                stored = self.stored.get((name, value))
                if value not in self.written:
                    yield Anomaly(Kind.UNWRITTEN, at)
                elif stored is None:
                    yield Anomaly(Kind.LOST_WRITE, f"{at}, and the final log lacks it")
                elif stored != offset:
                    yield Anomaly(Kind.INCONSISTENT_OFFSET, f"{at}, and the final log has it at {stored}")
                elif poll.committed and (name, value) not in self.visible:
                    yield Anomaly(Kind.ABORTED_READ, at)

    def _positions(self) -> Iterator[Anomaly]:
        """Each reader reads each partition from its beginning, without gaps."""
        reads: defaultdict[tuple[str, bool, str], list[int]] = defaultdict(list)
        for poll in self.polls:
            for name, offset, _ in poll.records:
                reads[poll.process, poll.committed, name].append(offset)
        for (process, committed, name), offsets in reads.items():
            for former, latter in pairwise(offsets):
                if latter <= former:
                    yield Anomaly(Kind.NONMONOTONIC_POLL, f"{process} read {name} at {former} and then at {latter}")
            if name in self.logs:
                log = self.logs[name].committed if committed else self.logs[name].everything
                seen, last = set(offsets), max(offsets)
                for offset, value in log:
                    if offset < last and offset not in seen:
                        yield Anomaly(Kind.SKIPPED_POLL, f"{process} read {name} up to {last} without {value} at {offset}")

    def _copies(self) -> Iterator[Anomaly]:
        """The group copies each committed record exactly once: the copy and the committed offset are one transaction."""
        copies = Counter(
            write.copy_of
            for _, write in self.written.values()
            if write.copy_of and (write.partition, write.value) in self.visible
        )
        for name, committed in self.group_offsets.items():
            for offset, value in self.logs[name].committed:
                count = copies.pop(value, 0)
                if count > 1:
                    yield Anomaly(Kind.DUPLICATE, f"{value} of {name} was copied {count} times")
                if offset < committed and not count:
                    yield Anomaly(Kind.TORN, f"the offset of {value} in {name} is committed, its copy is not")
                if offset >= committed and count:
                    yield Anomaly(Kind.TORN, f"the copy of {value} in {name} is committed, its offset is not")
        for value in copies:
            yield Anomaly(Kind.ABORTED_READ, f"{value} was copied, and is not committed")

    def _cycles(self) -> Iterator[Anomaly]:
        """Elle's cycles: ww edges follow each partition's order, wr edges lead from a write to the transaction that read it."""
        order: networkx.DiGraph[int] = networkx.DiGraph()
        place = {id(transaction): number for number, transaction in enumerate(self.transactions)}
        writers = {value: place[id(transaction)] for value, (transaction, _) in self.written.items() if transaction.atomic}
        for log in self.logs.values():
            values = [writers[value] for _, value in log.committed if value in writers]
            order.add_edges_from((former, latter) for former, latter in pairwise(values) if former != latter)
        for component in networkx.strongly_connected_components(order):
            if len(component) > 1:
                yield Anomaly(Kind.WRITE_CYCLE, f"{len(component)} transactions, such as {self._name(min(component))}")
        reads = {
            (writers[write.copy_of], writers[value])
            for value, (_, write) in self.written.items()
            if write.copy_of in writers and value in writers and (write.partition, value) in self.visible
        }
        both = networkx.compose(order, networkx.DiGraph(sorted(reads)))
        for component in networkx.strongly_connected_components(both):
            if any(source in component and reader in component for source, reader in reads):
                yield Anomaly(Kind.CIRCULAR_FLOW, f"{len(component)} transactions, such as {self._name(min(component))}")

    def _name(self, number: int) -> str:
        transaction = self.transactions[number]
        return f"{transaction.process} with {transaction.writes[0].value}"
