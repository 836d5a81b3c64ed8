"""Runs one KRaft node, which is both broker and controller, as a child process."""

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from loadtest.testkit.kafka.jars import broker_libs, java
from loadtest.testkit.kafka.ports import free_port
from loadtest.testkit.kafka.processes import spawn, stop
from loadtest.testkit.kafka.readiness import live_brokers

HOST = "127.0.0.1"
_STOP_TIMEOUT = 30.0
_HEAP = ("-Xmx512m", "-Xms256m", "-Djava.awt.headless=true")
_PERFORMANCE = "-XX:+UseG1GC -XX:MaxGCPauseMillis=20"
"""The JVM options that KAFKA_JVM_PERFORMANCE_OPTS replaces, as in Kafka's own scripts."""
QUICK_START = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
"""Options that halve the CPU time of a start, for nodes that are not measured."""


class NodeError(RuntimeError):
    """A node did not format, start or answer in time. The message has the end of its log."""


@dataclass(frozen=True, slots=True)
class KafkaListener:
    """An additional listener of every node, besides the plaintext listener between the nodes.

    `security_protocol` is PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL. `properties` apply to this listener only and have no
    prefix: `ssl.keystore.location`, `plain.sasl.jaas.config`. `host` is the advertised host.
    """

    name: str
    security_protocol: str
    properties: Mapping[str, str] = field(default_factory=dict)
    host: str = HOST


class KafkaNode:
    """A node of a `KafkaCluster`. Its id, controller port and log directory never change; its client port may.

    `format_arguments` go to StorageTool, such as `--add-scram`.
    """

    def __init__(
        self,
        node_id: int,
        directory: Path,
        properties: Mapping[str, str],
        listeners: Sequence[KafkaListener] = (),
        format_arguments: Sequence[str] = (),
    ) -> None:
        self.id = node_id
        self.directory = directory
        self.port = free_port()
        self.controller_port = free_port()
        self.voters = ""
        self._properties = dict(properties)
        self._listeners = {listener.name: listener for listener in listeners}
        self._listener_ports = {listener.name: free_port() for listener in listeners}
        self._format_arguments = tuple(format_arguments)
        self._process: subprocess.Popen[str] | None = None

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    def address_of(self, listener: str) -> str:
        """`host:port` of an additional listener. Raises `KeyError` for an unknown name."""
        return f"{self._listeners[listener].host}:{self._listener_ports[listener]}"

    @property
    def log(self) -> Path:
        return self.directory / "node.log"

    @property
    def pid(self) -> int:
        """Raises `NodeError` if the node does not run."""
        return self._alive().pid

    @property
    def running(self) -> bool:
        """True if the process exists, even while frozen."""
        return self._process is not None and self._process.poll() is None

    def format(self, cluster_id: str) -> "subprocess.Popen[str]":
        """Start to format the log directory; `finish_format` waits for it. `voters` must be set first."""
        self.directory.mkdir(parents=True, exist_ok=True)
        tool = [*java(*QUICK_START.split(), logging="tool", jars=broker_libs()), "kafka.tools.StorageTool"]
        command = [*tool, "format", f"--cluster-id={cluster_id}", "--config", str(self._write_properties())]
        return spawn([*command, *self._format_arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    def finish_format(self, formatting: "subprocess.Popen[str]") -> None:
        """Wait until the log directory is formatted. Raises `NodeError` with the tool's output."""
        output, _ = formatting.communicate(timeout=120)
        if formatting.returncode != 0:
            raise NodeError(f"node {self.id} does not format {self.directory}: {output}")

    def start(self, wait: float = 90.0) -> None:
        """Start the node. With `wait` above 0, return when it serves clients. Raises `NodeError`."""
        if self.running:
            raise NodeError(f"node {self.id} runs already")
        performance = os.environ.get("KAFKA_JVM_PERFORMANCE_OPTS", _PERFORMANCE).split()
        options = java(*_HEAP, *performance, f"-Dweir.log={self.log}", logging="node", jars=broker_libs())
        with (self.directory / "stdout.log").open("a") as out:
            self._process = spawn([*options, "kafka.Kafka", str(self._write_properties())], stdout=out, stderr=out)
        if wait > 0:
            self.wait_until_ready(wait)

    def wait_until_ready(self, timeout: float = 90.0, together: frozenset[int] = frozenset()) -> None:
        """Wait until the node answers, and sees itself and all of `together` as alive. Raises `NodeError`."""
        wanted = together | {self.id}
        deadline = time.monotonic() + timeout
        while True:
            self._alive()
            try:
                if wanted <= live_brokers(HOST, self.port):
                    return
            except OSError:
                pass  # not listening yet
            if time.monotonic() > deadline:
                silence = f"node {self.id} is not ready on {self.address} after {timeout:.0f} s"
                raise NodeError(f"{silence}: {self._log_end()}")
            time.sleep(0.1)

    def kill(self) -> None:
        """Send SIGKILL, and wait until the process has ended."""
        process = self._alive()
        process.kill()
        process.wait()

    def freeze(self) -> None:
        """Send SIGSTOP: connections stay open, but nothing answers."""
        self._alive().send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Send SIGCONT."""
        self._alive().send_signal(signal.SIGCONT)

    def move(self, port: int | None = None, wait: float = 90.0) -> None:
        """Stop cleanly, and start the same node with the same logs on another client port (None: a free one)."""
        self.stop()
        self.port = free_port() if port is None else port
        self.start(wait)

    def stop(self) -> None:
        """Shut down cleanly, or kill after 30 s. Does nothing if the node does not run."""
        if self._process is not None:
            stop(self._process, _STOP_TIMEOUT)

    def _alive(self) -> "subprocess.Popen[str]":
        if self._process is None:
            raise NodeError(f"node {self.id} was not started: call start()")
        if self._process.poll() is not None:
            raise NodeError(f"node {self.id} has ended with exit code {self._process.returncode}: {self._log_end()}")
        return self._process

    def _log_end(self) -> str:
        logs = (self.directory / "stdout.log", self.log)
        return "".join(path.read_text(errors="replace") for path in logs if path.exists())[-3000:]

    def _write_properties(self) -> Path:
        further = [(listener, self._listener_ports[name]) for name, listener in self._listeners.items()]
        controller = f"CONTROLLER://{HOST}:{self.controller_port}"
        bound = [f"PLAINTEXT://{self.address}", controller, *(f"{own.name}://{HOST}:{port}" for own, port in further)]
        # Kafka before 3.9 refuses the controller here, and later versions take it from `listeners`.
        told = [f"PLAINTEXT://{self.address}", *(f"{own.name}://{own.host}:{port}" for own, port in further)]
        secured = [(own.name, own.security_protocol) for own, _ in further]
        lines = {
            "process.roles": "broker,controller",
            "node.id": str(self.id),
            "controller.quorum.voters": self.voters,
            "listeners": ",".join(bound),
            "advertised.listeners": ",".join(told),
            "listener.security.protocol.map": ",".join(
                f"{name}:{protocol}" for name, protocol in [("PLAINTEXT", "PLAINTEXT"), ("CONTROLLER", "PLAINTEXT"), *secured]
            ),
            "controller.listener.names": "CONTROLLER",
            "log.dirs": str(self.directory / "data"),
            **{f"listener.name.{own.name.lower()}.{key}": value for own, _ in further for key, value in own.properties.items()},
            **self._properties,
        }
        path = self.directory / "node.properties"
        path.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
        return path
