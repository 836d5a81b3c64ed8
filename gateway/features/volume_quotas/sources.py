"""Sources of volume usage: the brokers by DescribeLogDirs, or the file systems of this machine."""

import asyncio
import logging
import os
from collections.abc import Iterable, Sequence
from typing import Protocol

from gateway import clock
from gateway.cluster.client import Answer, ClusterError, answer_of, check_error
from gateway.cluster.metadata import REFRESH_SECONDS, OwnClient
from gateway.cluster.requests import describe_log_dirs
from gateway.features.volume_quotas.limits import Limit, Volume, VolumeUsage

_log = logging.getLogger("weir.volumes")


class VolumeSource(Protocol):
    """Reads the usage of volumes. `errors_total` counts failed brokers or paths."""

    errors_total: int
    problem: str

    async def observe(self, hard: Limit, soft: Limit) -> Sequence[VolumeUsage]:
        """The usage of each broker that answers, with these limits. A failure is counted, not raised."""
        ...


class LogDirs:
    """The volumes of all active brokers, by DescribeLogDirs v4 (KIP-827, Kafka 3.3). Needs no agent."""

    def __init__(self, client: OwnClient) -> None:
        self._client = client
        self.errors_total = 0
        self.problem = ""

    async def close(self) -> None:
        await self._client.close()

    async def observe(self, hard: Limit, soft: Limit) -> Sequence[VolumeUsage]:
        try:
            brokers = (await self._client.look(max_age=REFRESH_SECONDS)).brokers
        except ClusterError as error:
            self._note([str(error)])
            return []
        results = await asyncio.gather(*(self._volumes(broker) for broker in brokers))
        self._note([result for result in results if isinstance(result, str)])
        return [
            VolumeUsage(broker, clock.wall(), hard, soft, result)
            for broker, result in zip(brokers, results, strict=True)
            if not isinstance(result, str)
        ]

    async def _volumes(self, broker: int) -> tuple[Volume, ...] | str:
        """A broker's volumes, or the problem."""
        try:
            answer = await self._client.ask(broker, describe_log_dirs())
            check_error(answer.error_code, f"broker {broker}: DescribeLogDirs")
            with answer_of("DescribeLogDirs"):
                return self._read(broker, answer)
        except ClusterError as error:
            return f"broker {broker}: {error}"

    @staticmethod
    def _read(broker: int, answer: Answer) -> tuple[Volume, ...] | str:
        volumes = []
        for found in answer.results:
            code, log_dir, total = found.error_code, found.log_dir, found.total_bytes
            if code != 0 or total < 0:  # an offline directory can't fill up
                _log.warning(
                    "broker %d: the size of log directory %s is not known (error %d)", broker, log_dir, code,
                    extra={"reason": f"log dir {broker} {log_dir}", "broker": broker},
                )  # fmt: skip
                continue
            volumes.append(Volume(log_dir, total, min(max(total - found.usable_bytes, 0), total)))
        return tuple(volumes) if volumes else f"broker {broker}: the size of no log directory is known"

    def _note(self, problems: list[str]) -> None:
        self.errors_total += len(problems)
        problem = "; ".join(problems)
        if problem and not self.problem:
            hint = (
                " — brokers before Kafka 3.3 do not support this: run `weir volumes publish` beside them and set source: topic"
            )
            _log.warning("volume usage is not known: %s%s", problem, hint if "DescribeLogDirs" in problem else "")
        self.problem = problem


class LocalVolumes:
    """File systems of this machine by `statvfs`, as the volumes of one broker. The source of `weir volumes publish`."""

    def __init__(self, broker: int, paths: Iterable[str]) -> None:
        self._broker = broker
        self._paths = tuple(paths)
        self.errors_total = 0
        self.problem = ""

    async def observe(self, hard: Limit, soft: Limit) -> Sequence[VolumeUsage]:
        """Returns nothing if one path fails, so that the gateways notice the failure."""
        try:
            volumes = await asyncio.to_thread(lambda: tuple(map(_statvfs, self._paths)))
        except OSError as error:
            self.errors_total += 1
            self.problem = str(error)
            _log.exception("volume usage is not published", extra={"reason": "statvfs"})
            return []
        self.problem = ""
        return [VolumeUsage(self._broker, clock.wall(), hard, soft, volumes)]


def _statvfs(path: str) -> Volume:
    found = os.statvfs(path)
    capacity = found.f_blocks * found.f_frsize
    return Volume(path, capacity, min(max(capacity - found.f_bavail * found.f_frsize, 0), capacity))
