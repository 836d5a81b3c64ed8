"""`ledger.topic`: a Kafka topic with the ledger's lines. A slow topic delays neither the files nor the clients."""

import asyncio
import logging
import secrets
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from gateway import clock
from gateway.cluster.client import ClusterError, TooLargeError
from gateway.cluster.metadata import OwnClient
from gateway.cluster.record_batches import Record
from gateway.cluster.topic_log import RETRY_SECONDS, TopicLog, TopicSpec
from gateway.events import LINE_HEADER
from gateway.features.ledger.config import LedgerConfig

MAX_WAITING_BYTES = 32 * 1024 * 1024
"""The maximum number of bytes that wait for confirmation. Further lines are dropped."""

MAX_LINE_BYTES = 512 * 1024
"""Brokers refuse records above 1 MiB by default. Only a line that contains a config file can be so long."""

_BATCH_BYTES = 256 * 1024
_SMALL_SECONDS = 600.0
"""After a refused batch, batches stay smaller for this time. By then an operator may have raised the topic's limit."""

_FINAL_SEND_SECONDS = 3.0
_DAY_MS = 86_400_000

_log = logging.getLogger("weir.ledger")


class LedgerTopic:
    """Takes lines with `publish`. `run` sends each line until all in-sync replicas have confirmed it.

    `dropped` counts the lines without room, and those that are too long for Weir or for the broker.
    If a confirmation is lost, the line is in the topic twice; readers recognise it by its `LINE_HEADER`. All records have the
    key `gateway`, so that the gateway's lines stay in order.
    """

    def __init__(self, connect: Callable[[], OwnClient], spec: TopicSpec, gateway: str) -> None:
        # This class only writes to the topic.
        self._log = TopicLog(connect, spec, lambda key, value: None)  # noqa: ARG005
        self._key = gateway.encode()
        self._source = secrets.token_hex(8)  # random per process, so that the ids of lines are unique
        self._accepted = 0
        self._waiting: deque[tuple[bytes, bytes]] = deque()  # lines and their headers' values
        self._waiting_bytes = 0
        self._batch_bytes = _BATCH_BYTES
        self._small_until = 0.0  # monotonic seconds
        self.dropped = 0
        self._dropping = False
        self._arrived = asyncio.Event()

    @property
    def connected(self) -> bool:
        """False if the last attempt to write to the topic failed."""
        return not self._log.status.publisher.problem

    def publish(self, line: str) -> None:
        """Queue a line, or drop it: the queue is full, or the line is too long."""
        value = line.encode()
        if len(value) > MAX_LINE_BYTES:
            self._drop(f"a line of {len(value)} bytes is dropped, because {MAX_LINE_BYTES} is the maximum")
            return
        if self._waiting_bytes + len(value) > MAX_WAITING_BYTES:
            self._drop(f"lines are dropped while the queue is full ({self._waiting_bytes} bytes wait for the brokers)")
            return
        self._accepted += 1
        self._waiting.append((value, f"{self._source}-{self._accepted}".encode()))
        self._waiting_bytes += len(value)
        self._arrived.set()

    def _drop(self, problem: str) -> None:
        """Count a line. Log the first problem since the queue was empty."""
        self.dropped += 1
        if not self._dropping:
            _log.warning("ledger.topic %s: %s; the files below ledger.path have all lines", self._log.spec.name, problem)
        self._dropping = True

    async def run(self) -> None:
        """Send until cancelled, then send the remaining lines within `_FINAL_SEND_SECONDS`."""
        try:
            while True:
                await self._arrived.wait()
                try:
                    await self._send()
                except ClusterError:  # TopicLog has logged it
                    await asyncio.sleep(RETRY_SECONDS)
        finally:
            with suppress(ClusterError, TimeoutError):
                async with asyncio.timeout(_FINAL_SEND_SECONDS):
                    await self._send()
            await self._log.close()

    async def _send(self) -> None:
        """Send all waiting lines. Raises ClusterError; unconfirmed lines wait on.

        If the topic's `max.message.bytes` is too small for a batch, batches get smaller for `_SMALL_SECONDS`. A line that is
        too long is dropped.
        """
        while self._waiting:
            if clock.monotonic() >= self._small_until:
                self._batch_bytes = _BATCH_BYTES
            some: list[Record] = []
            size = 0
            for value, line_id in self._waiting:
                if some and size + len(value) > self._batch_bytes:
                    break
                some.append((self._key, value, (LINE_HEADER, line_id)))
                size += len(value)
            try:
                await self._log.publish(some)
            except TooLargeError as error:
                if len(some) > 1:
                    self._batch_bytes = size // 2
                    self._small_until = clock.monotonic() + _SMALL_SECONDS
                    continue
                self._drop(
                    f"a line of {size} bytes is dropped, because the broker refuses it ({error}): raise the topic's"
                    " max.message.bytes"
                )
            for _ in some:
                self._waiting.popleft()
            self._waiting_bytes -= size
        self._dropping = False
        self._arrived.clear()


def ledger_topic(config: LedgerConfig, gateway: str, connect: Callable[[], OwnClient]) -> LedgerTopic | None:
    """None if the config names no topic. A topic that Weir creates keeps lines for `ledger.retention_days`, as the files do."""
    if config.topic is None:
        return None
    kept = round(config.retention_days * _DAY_MS)
    configs = {"cleanup.policy": "delete", "retention.ms": str(kept), "message.timestamp.type": "LogAppendTime"}
    return LedgerTopic(connect, TopicSpec(config.topic, configs=configs, timed=True), gateway)
