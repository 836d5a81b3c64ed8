"""`python -m loadtest.scenarios.soak.crowd JOB` (a `CrowdJob` as JSON): all clients of the soak, in one process.

It reads lines from stdin: `epoch N` makes the clients use the topics of another epoch, and the end of the input lets them
leave. It prints a line of JSON every few seconds: open connections and counts.
"""

import asyncio
import json
import ssl
import sys
import time
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import uvloop

from loadtest.scenarios.soak import raw_requests as raw
from loadtest.scenarios.soak.journal import Journal
from loadtest.scenarios.soak.visitor import CALM, CAPPED_TOPIC, Surroundings, Visitor, send

_REPORT_SECONDS: Final = 10.0
_REFRESH_SECONDS: Final = 5.0
_ASK_SECONDS: Final = 20.0


@dataclass(frozen=True)
class CrowdJob:
    """`plain` and `tls` are the ports of the gateway's listeners; `ca` and `journal` are paths. Clients come over `ramp`
    seconds."""

    plain: int
    tls: int
    ca: str
    journal: str
    clients: int
    seed: int
    ramp: float
    shortest: float
    longest: float


async def see_cluster(port: int, tls: ssl.SSLContext | None, topics: list[str]) -> raw.Cluster:
    """Ask the gateway for the leaders. Raises OSError, EOFError or TimeoutError."""
    async with asyncio.timeout(_ASK_SECONDS):
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=tls)
        try:
            send(writer, raw.metadata("leaders", 1, topics))
            length = int.from_bytes(await reader.readexactly(4), "big")
            return raw.read_metadata(await reader.readexactly(length))
        finally:
            writer.close()


async def refresh(job: CrowdJob, around: Surroundings) -> None:
    """Look for new leaders once. The old ones stay if the gateway does not answer."""
    topics = [CAPPED_TOPIC, *(f"{name}-{around.epoch:02}" for name in (CALM, "rough"))]
    for encrypted, port in ((False, job.plain), (True, job.tls)):
        try:
            seen = await see_cluster(port, around.tls if encrypted else None, topics)
        except (OSError, EOFError, TimeoutError) as error:
            around.counts[f"no leaders: {type(error).__name__}"] += 1
        else:
            if seen.brokers:
                around.clusters[encrypted] = seen


async def listen(around: Surroundings, job: CrowdJob) -> None:
    """Obey stdin."""
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        around.epoch = int(line.split()[1])
        await refresh(job, around)
    around.leaving.set()


async def repeat_refresh(job: CrowdJob, around: Surroundings) -> None:
    while True:
        await asyncio.sleep(_REFRESH_SECONDS)
        await refresh(job, around)


async def report(around: Surroundings) -> None:
    while True:
        await asyncio.sleep(_REPORT_SECONDS)
        around.journal.flush()
        show(around)


def show(around: Surroundings) -> None:
    line = {"connected": around.connected, "visits": around.visits, "epoch": around.epoch, "cpu": time.process_time()}
    print(json.dumps({**line, "counts": dict(sorted(around.counts.items()))}), flush=True)


async def run(job: CrowdJob) -> None:
    """Raises an error of the gateway's protocol, which ends the soak."""
    with Journal(Path(job.journal)) as journal:
        around = Surroundings(journal, ssl.create_default_context(cafile=job.ca), time.monotonic, {}, counts=Counter())
        while len(around.clusters) < 2:
            await refresh(job, around)
        stay = (job.shortest, job.longest)
        async with asyncio.TaskGroup() as others:
            tasks = (listen(around, job), repeat_refresh(job, around), report(around))
            background = [others.create_task(task) for task in tasks]
            async with asyncio.TaskGroup() as visitors:
                for place in range(job.clients):
                    visitor = Visitor(place, job.clients, job.seed, around, stay)
                    visitors.create_task(visitor.run(place * job.ramp / job.clients))
            for task in background:
                task.cancel()
        show(around)


def command(job: CrowdJob) -> list[str]:
    return [sys.executable, "-m", "loadtest.scenarios.soak.crowd", json.dumps(asdict(job))]


if __name__ == "__main__":
    uvloop.run(run(CrowdJob(**json.loads(sys.argv[1]))))
