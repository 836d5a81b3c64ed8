"""One KRaft node, broker and controller at once, as a child process."""

import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

from loadtest.kafka.jars import java
from loadtest.kafka.ports import free_port
from loadtest.kafka.processes import spawn, stop
from loadtest.kafka.readiness import live_brokers

HOST = "127.0.0.1"
_STOP_TIMEOUT = 30.0
_JVM = ("-Xmx512m", "-Xms256m", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-Djava.awt.headless=true")


class NodeError(RuntimeError):
    """A node did not format, start or answer in time; the message holds the end of its log."""


class KafkaNode:
    """A node of a `KafkaCluster`. Its id, controller port and log directory stay; its client port may change."""

    def __init__(self, node_id: int, directory: Path, properties: Mapping[str, str]) -> None:
        self.id = node_id
        self.directory = directory
        self.port = free_port()
        self.controller_port = free_port()
        self.voters = ""
        self._properties = dict(properties)
        self._process: subprocess.Popen[str] | None = None

    @property
    def address(self) -> str:
        """`host:port` for clients."""
        return f"{HOST}:{self.port}"

    @property
    def log(self) -> Path:
        """The node's own log file."""
        return self.directory / "node.log"

    @property
    def pid(self) -> int:
        """The process id. Raises NodeError where the node does not run."""
        return self._alive().pid

    @property
    def running(self) -> bool:
        """Whether the process exists, frozen or not."""
        return self._process is not None and self._process.poll() is None

    def format(self, cluster_id: str) -> "subprocess.Popen[str]":
        """Start formatting the log directory; `finish_format` waits for it. `voters` must be set by then."""
        self.directory.mkdir(parents=True, exist_ok=True)
        tool = [*java("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", logging="tool"), "kafka.tools.StorageTool"]
        command = [*tool, "format", "--cluster-id", cluster_id, "--config", str(self._write_properties())]
        return spawn(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    def finish_format(self, formatting: "subprocess.Popen[str]") -> None:
        """Wait until the log directory is formatted. Raises NodeError with the tool's output where it can't be."""
        output, _ = formatting.communicate(timeout=60)
        if formatting.returncode != 0:
            raise NodeError(f"node {self.id} does not format {self.directory}: {output}")

    def start(self, wait: float = 60.0) -> None:
        """Start the node on its port; with `wait` above 0 return when it serves clients. Raises NodeError."""
        if self.running:
            raise NodeError(f"node {self.id} runs already")
        options = java(*_JVM, f"-Dweir.log={self.log}", logging="node")
        with (self.directory / "stdout.log").open("a") as out:
            self._process = spawn([*options, "kafka.Kafka", str(self._write_properties())], stdout=out, stderr=out)
        if wait > 0:
            self.wait_until_ready(wait)

    def wait_until_ready(self, timeout: float = 60.0, together: frozenset[int] = frozenset()) -> None:
        """Wait until the node answers and knows itself, and all of `together`, to be alive. Raises NodeError."""
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
        """SIGKILL: no goodbye to clients, no clean shutdown. Returns when the process is gone."""
        process = self._alive()
        process.kill()
        process.wait()

    def freeze(self) -> None:
        """SIGSTOP: connections stay open and nothing answers."""
        self._alive().send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """SIGCONT: go on after `freeze`."""
        self._alive().send_signal(signal.SIGCONT)

    def move(self, port: int | None = None, wait: float = 60.0) -> None:
        """Stop cleanly, start again as the same node with the same logs on another client port (None: a free one)."""
        self.stop()
        self.port = free_port() if port is None else port
        self.start(wait)

    def stop(self) -> None:
        """Shut down cleanly, or kill after 30 s. Harmless where it does not run."""
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
        lines = {
            "process.roles": "broker,controller",
            "node.id": str(self.id),
            "controller.quorum.voters": self.voters,
            "listeners": f"PLAINTEXT://{HOST}:{self.port},CONTROLLER://{HOST}:{self.controller_port}",
            "advertised.listeners": f"PLAINTEXT://{self.address},CONTROLLER://{HOST}:{self.controller_port}",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": str(self.directory / "data"),
            **self._properties,
        }
        path = self.directory / "node.properties"
        path.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
        return path
