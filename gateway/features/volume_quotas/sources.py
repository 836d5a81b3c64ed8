"""Sources of volume usage: the brokers by DescribeLogDirs, or the file systems of this machine."""

import asyncio
import errno
import logging
import os
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from typing import Protocol

from gateway import clock
from gateway.cluster.client import ClusterError, KafkaResponse, answer_of, check_error
from gateway.cluster.log_status import LoggedCauses
from gateway.cluster.metadata import REFRESH_SECONDS, OwnClient
from gateway.cluster.requests import describe_log_dirs
from gateway.features.volume_quotas.limits import Limit, Volume, VolumeUsage
from gateway.files.path_faults import read_remedy
from gateway.own_thread import in_own_thread

_log = logging.getLogger("weir.volumes")

_LOOK_AGE_SECONDS = 3 * REFRESH_SECONDS
"""The metadata loop asks more often, so a broker that answers it late does not hold this source up as well."""

_REMEDIES = {
    "ClusterAuthorizationFailedError": " — give Weir's user Describe on Cluster: docs/reference/acls.md",
    "IncompatibleBrokerVersion": (
        " — brokers before Kafka 3.3 do not support this: run `weir volumes publish` beside them and set source: topic"
    ),
}
"""By the cause of a broker's error."""

_PATH_REMEDIES = {
    errno.EACCES: "let the user that runs Weir enter the folders above it",
    errno.EIO: "check its disk and the kernel's log",
}
_OTHER_PATH = "mount it, or name the broker's log.dirs in quotas.volumes.agent.paths or --path"

_CLUSTER = -1
"""The key of a problem with the list of brokers."""


class VolumeSource(Protocol):
    """Reads the usage of volumes. `errors_total` counts failed brokers or paths."""

    errors_total: int
    problem: str

    def observe(self, hard: Limit, soft: Limit, seconds: float) -> AsyncGenerator[Sequence[VolumeUsage], None]:
        """The usage of each broker with these limits, as answers arrive. A failure is counted, not raised.

        Ends after `seconds`. A later answer is among those of the next call.
        """
        ...


class LogDirs:
    """The volumes of all active brokers, by DescribeLogDirs v4 (KIP-827, Kafka 3.3). Needs no agent.

    `wake` ends `observe` early, so that the next call asks new brokers beside those that have not answered yet.
    """

    def __init__(self, client: OwnClient, wake: asyncio.Event) -> None:
        self._client = client
        self._wake = wake
        self._asked: dict[asyncio.Task[VolumeUsage | ClusterError], int] = {}  # the brokers whose answers nobody has taken yet
        self._problems: dict[int, ClusterError] = {}  # by broker
        self._causes = LoggedCauses()
        self.errors_total = 0
        self.problem = ""

    async def close(self) -> None:
        for task in self._asked:
            task.cancel()
        self._asked.clear()
        await self._client.close()

    async def observe(self, hard: Limit, soft: Limit, seconds: float) -> AsyncGenerator[Sequence[VolumeUsage], None]:
        deadline = clock.monotonic() + seconds
        try:
            brokers = (await self._client.look(max_age=_LOOK_AGE_SECONDS)).brokers
        except ClusterError as error:
            self._note({_CLUSTER: error})
            return
        self._problems = {broker: problem for broker, problem in self._problems.items() if broker in brokers}
        for broker in brokers.keys() - self._asked.values():
            asked = asyncio.create_task(self._ask(broker, hard, soft), name=f"ask broker {broker} for its volumes")
            self._asked[asked] = broker
        # A broker with a hung disk answers late or never. The usage of the others must not become stale meanwhile.
        woken = asyncio.create_task(self._wake.wait(), name="end the question for volumes early")
        try:
            while self._asked and not woken.done() and (left := deadline - clock.monotonic()) > 0.0:
                done, _ = await asyncio.wait({*self._asked, woken}, timeout=left, return_when=asyncio.FIRST_COMPLETED)
                answers = {self._asked.pop(task): task.result() for task in list(self._asked) if task in done}
                self._note(answers)
                yield [answer for answer in answers.values() if not isinstance(answer, ClusterError)]
        finally:
            woken.cancel()

    async def _ask(self, broker: int, hard: Limit, soft: Limit) -> VolumeUsage | ClusterError:
        """A broker's usage, or the problem."""
        try:
            answer = await self._client.ask(broker, describe_log_dirs())
            check_error(answer.error_code, "DescribeLogDirs")
            with answer_of("DescribeLogDirs"):
                volumes = self._read(broker, answer)
        except ClusterError as error:
            remedy = _REMEDIES.get(error.cause, "")
            return ClusterError(f"broker {broker}: {error}{remedy}", error.cause)
        if not volumes:
            return ClusterError(f"broker {broker}: the size of no log directory is known", "unknown size")
        return VolumeUsage(broker, clock.wall(), hard, soft, volumes)

    @staticmethod
    def _read(broker: int, answer: KafkaResponse) -> tuple[Volume, ...]:
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
        return tuple(volumes)

    def _note(self, answers: Mapping[int, VolumeUsage | ClusterError]) -> None:
        for broker, answer in answers.items():
            self._problems.pop(broker, None)
            if isinstance(answer, ClusterError):
                self.errors_total += 1
                self._problems[broker] = answer
        self.problem = "; ".join(str(problem) for _, problem in sorted(self._problems.items()))
        if not self._problems:
            self._causes.clear()
        elif self._causes.is_news("; ".join(sorted({each.cause for each in self._problems.values()})), clock.monotonic()):
            _log.warning("volume usage is not known: %s", self.problem)


class LocalVolumes:
    """File systems of this machine by `statvfs`, as the volumes of one broker. The source of `weir volumes publish`."""

    def __init__(self, broker: int, paths: Iterable[str]) -> None:
        self._broker = broker
        self._paths = tuple(paths)
        self.errors_total = 0
        self.problem = ""

    async def observe(self, hard: Limit, soft: Limit, seconds: float) -> AsyncGenerator[Sequence[VolumeUsage], None]:  # noqa: ARG002
        """Yields nothing if one path fails, so that the gateways notice the failure. A hung disk answers late or never."""
        try:
            volumes = await in_own_thread(lambda: tuple(map(_statvfs, self._paths)), "look at the volumes")
        except OSError as error:
            self.errors_total += 1
            remedy = read_remedy(error, _PATH_REMEDIES.get(error.errno or 0, _OTHER_PATH))
            self.problem = f"log directory {error.filename}: {error.strerror} — {remedy}"
            reason = f"log dir {self._broker} {error.filename}"
            _log.warning("volume usage is not published: %s", self.problem, extra={"reason": reason})
            return
        self.problem = ""
        yield [VolumeUsage(self._broker, clock.wall(), hard, soft, volumes)]


def _statvfs(path: str) -> Volume:
    found = os.statvfs(path)
    capacity = found.f_blocks * found.f_frsize
    return Volume(path, capacity, min(max(capacity - found.f_bavail * found.f_frsize, 0), capacity))
