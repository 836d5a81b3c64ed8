"""One run of the soak: starts everything, follows the schedule, and leaves files for the checks."""

import json
import os
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from loadtest.scenarios.idle_memory import allow_files
from loadtest.scenarios.soak.crowd import CrowdJob, command
from loadtest.scenarios.soak.disturbances import EVENT_ERRORS, Disturbances, Places
from loadtest.scenarios.soak.mutator import Mutator
from loadtest.scenarios.soak.observation import Observer
from loadtest.scenarios.soak.schedule import KILL_WORKER, schedule_of
from loadtest.scenarios.soak.setting import (
    BROKER_PROPERTIES,
    BROKERS,
    HOST,
    JVM_OPTIONS,
    WORKERS,
    config,
    create_topics,
    listeners,
    new_certificate,
)
from loadtest.scenarios.soak.stored_batches import log_bytes, stored_numbers
from loadtest.testkit.certificates import Authority
from loadtest.testkit.gateway_process import BROKER_PORTS, GatewayProcess, MakeGateway
from loadtest.testkit.kafka import KafkaCluster, spawn

_FILES_FOR_EACH_CLIENT: Final = 3
_SPARE_FILES: Final = 1000
_START_SECONDS: Final = 300.0
_LEAVE_SECONDS: Final = 300.0
_EMPTY_SECONDS: Final = 30.0
_PROGRESS_SECONDS: Final = 60.0


@dataclass(frozen=True)
class Plan:
    """The length of a run, of its ramp and of the periods between events is in seconds. A client's connections live between
    `shortest` and `longest` seconds."""

    seconds: float
    every: float
    clients: int
    seed: int
    ramp: float = 60.0
    shortest: float = 10.0
    longest: float = 120.0


class Crowd:
    """The process of the clients. `last` is its last report."""

    def __init__(self, job: CrowdJob, directory: Path) -> None:
        self._lines = directory / "crowd.jsonl"
        with self._lines.open("a") as out, (directory / "crowd.log").open("a") as errors:
            self._process = spawn(command(job), stdin=subprocess.PIPE, stdout=out, stderr=errors)

    @property
    def last(self) -> dict[str, Any]:
        lines = self._lines.read_text().splitlines()
        return json.loads(lines[-1]) if lines else {}

    def check(self) -> None:
        """Raises RuntimeError if the process has ended."""
        if self._process.poll() is not None:
            raise RuntimeError(f"the clients ended with exit code {self._process.returncode}: see crowd.log")

    def use_epoch(self, number: int) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"epoch {number}\n")
        self._process.stdin.flush()

    def leave(self) -> int:
        """Wait until all clients have left. Returns the exit code; raises TimeoutExpired."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        return self._process.wait(_LEAVE_SECONDS)


def run(plan: Plan, directory: Path, make: MakeGateway, tell: Callable[[str], None]) -> None:
    """Raises an error if the run has no result. `directory` gets all files; `evaluation.evaluate` reads them."""
    directory.mkdir(parents=True)
    allow_files(_FILES_FOR_EACH_CLIENT * plan.clients + _SPARE_FILES)
    os.environ["KAFKA_JVM_PERFORMANCE_OPTS"] = JVM_OPTIONS
    schedule = schedule_of(plan.seed, plan.seconds, plan.every)
    epochs = 1 + 2 * sum(event.kind == KILL_WORKER for event in schedule)
    with ExitStack() as stack:
        cluster = KafkaCluster(directory / "kafka", BROKERS, BROKER_PROPERTIES)
        stack.callback(cluster.stop)
        cluster.start(_START_SECONDS)
        topics = create_topics(cluster, epochs)
        authority = Authority(directory / "certificates")
        certificate = new_certificate(authority, 0)
        ports = listeners(certificate)
        gateway = make(directory / "weir", cluster.bootstrap_servers, config(ports, directory))
        stack.callback(gateway.stop)
        gateway.start(_START_SECONDS)
        plain, tls = (each["bootstrap_port"] for each in ports)
        _wait_for_workers(gateway)
        client_ports = {port + offset for port in (plain, tls) for offset in range(1 + BROKER_PORTS)}
        observer = Observer(gateway, directory / "samples.jsonl", client_ports, {node.port for node in cluster.brokers})
        time.sleep(_EMPTY_SECONDS)
        _note(directory, "empty before", asdict(observer.look()))
        began = time.monotonic()
        observer.start()
        job = CrowdJob(
            plain, tls, str(authority.cert), str(directory / "journal"), plan.clients, plan.seed, plan.ramp, plan.shortest,
            plan.longest,
        )  # fmt: skip
        crowd = Crowd(job, directory)
        mutator = Mutator(f"{HOST}:{plain}")
        epoch = 0

        def next_epoch() -> int:
            nonlocal epoch
            epoch += 1
            crowd.use_epoch(epoch)
            return epoch

        disturbances = Disturbances(Places(cluster, gateway, authority, certificate, plain, tls), next_epoch)
        _note(directory, "began", {"at": began, "plan": asdict(plan), "workers": WORKERS, "brokers": BROKERS})
        due, told = list(schedule), 0.0
        while (now := time.monotonic() - began) < plan.seconds:
            crowd.check()
            if due and now >= due[0].at:
                event = due.pop(0)
                name = "event"
                try:
                    target = disturbances.cause(event)
                except EVENT_ERRORS as error:  # the other checks still have a result
                    name, target = "failed event", f"{type(error).__name__}: {error}"[:1000]
                over = time.monotonic() - began
                _note(directory, name, {"at": now, "over": over, "kind": event.kind, "target": target})
                tell(f"{over / 60:6.1f} min: {event.kind}: {target} ({over - now:.0f} s)")
            if now - told >= _PROGRESS_SECONDS:
                told = now
                tell(_progress(now, observer, crowd))
            time.sleep(0.5)
        code = crowd.leave()
        mutator.close()
        _note(directory, "left", {"exit code": code, "crowd": crowd.last, "mutator": dict(mutator.counts)})
        tell(f"the clients have left: {crowd.last}")
        time.sleep(_EMPTY_SECONDS)
        observer.stop()
        _note(directory, "empty after", asdict(observer.look()))
        _note(directory, "stopped", {"exit code": gateway.stop()})
        tell("the brokers' logs are read")
        _write_stored(directory, stored_numbers(cluster.bootstrap_servers, topics))
        _note(directory, "logs", {"bytes": log_bytes(cluster, topics)})


def _wait_for_workers(gateway: GatewayProcess) -> None:
    while any(f'weir_worker_up{{worker="{number}"}} 1.0' not in gateway.get("/metrics") for number in range(WORKERS)):
        time.sleep(0.5)


def _note(directory: Path, name: str, content: dict[str, Any]) -> None:
    with (directory / "events.jsonl").open("a") as file:
        file.write(json.dumps({"name": name, **content}) + "\n")


def _progress(now: float, observer: Observer, crowd: Crowd) -> str:
    seen = observer.last
    processes = [] if seen is None else seen.processes
    memory = ", ".join(
        f"{one.role} {one.pss / 2**20:.1f} MiB {sum(one.descriptors.values())} fds {one.cpu:.0f} s" for one in processes
    )
    said = crowd.last
    return f"{now / 60:6.1f} min: {said.get('connected')} clients, {memory}; {said.get('counts')}"


def _write_stored(directory: Path, stored: dict[str, Counter[int]]) -> None:
    """A line of JSON for each topic: numbers that are in its log once, and the others with their count."""
    with (directory / "stored.jsonl").open("w") as file:
        for topic, numbers in stored.items():
            again = {number: count for number, count in numbers.items() if count > 1}
            file.write(json.dumps({"topic": topic, "numbers": list(numbers), "again": again}) + "\n")
