"""`ledger.topic`: a Kafka topic with the ledger's lines. A slow topic delays neither the files nor the clients."""

import asyncio
import json
import logging
import secrets
from collections.abc import Callable
from contextlib import closing, suppress
from itertools import islice
from pathlib import Path

from gateway import clock
from gateway.cluster.client import ClusterError, TooLargeError
from gateway.cluster.metadata import OwnClient
from gateway.cluster.topic_log import RETRY_SECONDS, TopicLog
from gateway.cluster.topic_spec import TopicSpec
from gateway.features.ledger.config import LedgerConfig
from gateway.features.ledger.unsent_lines import Backlog, DamagedUnsentFileError, UnsentFile, save_unsent, unsent_files

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
    """Takes lines with `publish`. `run` sends each line until all in-sync replicas have confirmed it, `end` saves the rest.

    `dropped` counts the lines without room, those that are too long for Weir or for the broker, and those that can't be saved.
    If a confirmation is lost, the line is in the topic twice; readers recognise it by its `LINE_HEADER`. `folder` has the
    unsent lines of processes that have ended.
    """

    def __init__(self, connect: Callable[[], OwnClient], spec: TopicSpec, gateway: str, folder: Path) -> None:
        # This class only writes to the topic.
        self._log = TopicLog(connect, spec, lambda key, value, headers: None)  # noqa: ARG005
        self._folder = folder
        self._waiting = Backlog(gateway, secrets.token_hex(8))  # random per process, so that the ids of lines are unique
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
        if self._waiting.size + len(value) > MAX_WAITING_BYTES:
            self._drop(f"lines are dropped while the queue is full ({self._waiting.size} bytes wait for the brokers)")
            return
        self._waiting.add(value)
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
            for path in await asyncio.to_thread(unsent_files, self._folder):
                await self._send_file(path)
            while True:
                await self._arrived.wait()
                await self._send_all(self._waiting)
                self._arrived.clear()
        finally:
            with suppress(ClusterError, TimeoutError):
                async with asyncio.timeout(_FINAL_SEND_SECONDS):
                    await self._send(self._waiting)
            await self._log.close()

    def end(self) -> None:
        """Save the lines that still wait, after the last `run`. The next start sends them. Blocks until the disk has them."""
        waiting, topic = self._waiting, self._log.spec.name
        if not waiting.lines:
            return
        first = clock.iso(json.loads(waiting.lines[0])["time_ms"] / 1000)
        unsent = f"{len(waiting.lines)} lines ({waiting.size} bytes, the first of {first})"
        try:
            path = save_unsent(self._folder, topic, waiting)
        except OSError as error:
            self.dropped += len(waiting.lines)
            _log.warning(
                "ledger.topic %s lacks %s, because they can't be saved: %s; the files below ledger.path have all lines",
                topic, unsent, error,
            )  # fmt: skip
        else:
            _log.warning("ledger.topic %s lacks %s; the next start sends them from %s", topic, unsent, path)
        waiting.remove(len(waiting.lines))

    async def _send_file(self, path: Path) -> None:
        """Send the lines of a process that has ended, and delete their file. Lines without confirmation stay there."""
        topic = self._log.spec.name
        try:
            file = await asyncio.to_thread(UnsentFile.open, path, topic)
            if file is None:
                return
            with closing(file):
                while await asyncio.to_thread(file.read, _BATCH_BYTES):
                    await self._send_all(file.backlog)
                await asyncio.to_thread(file.delete)
        except FileNotFoundError:  # another gateway was faster
            return
        except (OSError, DamagedUnsentFileError) as error:
            _log.warning("ledger.topic %s: %s can't be sent: %s — make it readable, or delete it", topic, path, error)
            return
        _log.info("ledger.topic %s: %d lines that an earlier process could not send are sent", topic, file.lines)

    async def _send_all(self, backlog: Backlog) -> None:
        """Send all lines, however long the brokers are away."""
        while backlog.lines:
            try:
                await self._send(backlog)
            except ClusterError:  # TopicLog has logged it
                await asyncio.sleep(RETRY_SECONDS)

    async def _send(self, backlog: Backlog) -> None:
        """Send all lines. Raises ClusterError; unconfirmed lines wait on.

        If the topic's `max.message.bytes` is too small for a batch, batches get smaller for `_SMALL_SECONDS`. A line that is
        too long is dropped.
        """
        while backlog.lines:
            if clock.monotonic() >= self._small_until:
                self._batch_bytes = _BATCH_BYTES
            some = backlog.batch(self._batch_bytes)
            try:
                await self._log.publish(some)
            except TooLargeError as error:
                size = sum(len(line) for line in islice(backlog.lines, len(some)))
                if len(some) > 1:
                    self._batch_bytes = size // 2
                    self._small_until = clock.monotonic() + _SMALL_SECONDS
                    continue
                self._drop(
                    f"a line of {size} bytes is dropped, because the broker refuses it ({error}): raise the topic's"
                    " max.message.bytes"
                )
            backlog.remove(len(some))
        self._dropping = False


def ledger_topic(config: LedgerConfig, gateway: str, connect: Callable[[], OwnClient]) -> LedgerTopic | None:
    """None if the config names no topic. A topic that Weir creates keeps lines for `ledger.retention_days`, as the files do."""
    if config.topic is None:
        return None
    kept = round(config.retention_days * _DAY_MS)
    configs = {"cleanup.policy": "delete", "retention.ms": str(kept), "message.timestamp.type": "LogAppendTime"}
    return LedgerTopic(connect, TopicSpec(config.topic, configs=configs, timed=True), gateway, config.path)
