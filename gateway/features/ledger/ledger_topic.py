"""`ledger.topic`: the ledger's lines, in a Kafka topic as well. Never in the way of the files, nor of the clients."""

import asyncio
import logging
import secrets
from collections import deque
from collections.abc import Callable

from gateway.cluster.client import ClusterError, OwnClient
from gateway.cluster.topic_log import RETRY_SECONDS, Record, TopicLog, TopicSpec
from gateway.events import LINE_HEADER
from gateway.features.ledger.config import LedgerConfig

MAX_WAITING_BYTES = 32 * 1024 * 1024
"""Of lines that the brokers have not confirmed yet; what comes beyond is dropped."""

MAX_LINE_BYTES = 512 * 1024
"""Brokers refuse records above 1 MiB, unless their config says otherwise. A line is that long only where a config file is."""

_AT_ONCE_BYTES = 256 * 1024
_LAST_SECONDS = 3.0
_DAY_MS = 86_400_000

_log = logging.getLogger("weir.ledger")


class LedgerTopic:
    """Takes lines with `publish` and sends them with `run`, again and again until all replicas in sync have confirmed them.

    A line whose confirmation was lost stands in the topic twice; readers find it by its `LINE_HEADER`. `gateway` is the key
    of the records, so that its lines stay in order.
    """

    def __init__(self, connect: Callable[[], OwnClient], spec: TopicSpec, gateway: str) -> None:
        # Nothing is read of it, so nothing is done with a record.
        self._log = TopicLog(connect, spec, lambda key, value: None)  # noqa: ARG005
        self._key = gateway.encode()
        self._source = secrets.token_hex(8)
        self._accepted = 0
        self._waiting: deque[tuple[bytes, bytes]] = deque()  # lines and their headers' values
        self._waiting_bytes = 0
        self._dropping = False
        self._arrived = asyncio.Event()

    @property
    def connected(self) -> bool:
        """False where the last attempt to write to the topic has failed."""
        return not self._log.status.publisher_problem

    def publish(self, lines: list[str]) -> int:
        """Take lines without waiting; returns how many were dropped, for want of room or because they are too long."""
        dropped = 0
        for line in lines:
            value = line.encode()
            if len(value) > MAX_LINE_BYTES or self._waiting_bytes + len(value) > MAX_WAITING_BYTES:
                dropped += 1
            else:
                self._accepted += 1
                self._waiting.append((value, f"{self._source}-{self._accepted}".encode()))
                self._waiting_bytes += len(value)
        self._arrived.set()
        if dropped and not self._dropping:
            _log.warning(
                "ledger.topic %s lacks %d lines, and those that follow without room: %d bytes wait for its brokers; "
                "the files below ledger.path have all of them",
                self._log.spec.name,
                dropped,
                self._waiting_bytes,
            )
        self._dropping = dropped > 0
        return dropped

    async def run(self) -> None:
        """Send until cancelled, then what is left, for at most three seconds."""
        try:
            while True:
                await self._arrived.wait()
                try:
                    await self._send()
                except ClusterError:  # TopicLog has logged it
                    await asyncio.sleep(RETRY_SECONDS)
        finally:
            try:
                async with asyncio.timeout(_LAST_SECONDS):
                    await self._send()
            except (ClusterError, TimeoutError):
                pass
            await self._log.close()

    async def _send(self) -> None:
        """Send what is waiting. Raises ClusterError; what was not confirmed is still waiting then."""
        while self._waiting:
            some: list[Record] = []
            size = 0
            for value, line in self._waiting:
                if some and size + len(value) > _AT_ONCE_BYTES:
                    break
                some.append((self._key, value, (LINE_HEADER, line)))
                size += len(value)
            await self._log.publish(some)
            for _ in some:
                self._waiting.popleft()
            self._waiting_bytes -= size
        self._arrived.clear()


def ledger_topic(config: LedgerConfig | None, gateway: str, connect: Callable[[], OwnClient]) -> LedgerTopic | None:
    """The topic that the config names, None where it names none. If it has to be made, lines are deleted when the files are."""
    if config is None or config.topic is None:
        return None
    kept = round(config.retention_days * _DAY_MS)
    spec = TopicSpec(config.topic, configs={"cleanup.policy": "delete", "retention.ms": str(kept)})
    return LedgerTopic(connect, spec, gateway)
