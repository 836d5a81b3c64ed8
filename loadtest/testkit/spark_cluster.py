"""A Spark standalone cluster of one master and some workers on this machine, from the jars of the installed PySpark."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from loadtest.testkit.kafka import free_port, spawn

HOST: Final = "127.0.0.1"
_DAEMON_JAVA: Final = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Dspark.worker.timeout=600"
"""The master notices a killed worker by its connection. On a busy machine, heartbeats may be late."""
_LOOK_EVERY_SECONDS: Final = 0.1
_WAIT_SECONDS: Final = 300.0


class SparkClusterError(RuntimeError):
    """A master or worker does not run as it should. The message has the end of its log."""


class SparkCluster:
    """A context manager. Each of the two workers has one core, and 512 MiB for executors."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.workers = ["worker-0", "worker-1"]
        self._processes: dict[str, subprocess.Popen[str]] = {}
        self._web_port = free_port()
        self.url = f"spark://{HOST}:{free_port()}"

    def __enter__(self) -> Self:
        try:
            self._start_all()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.stop()

    def _start_all(self) -> None:
        address = ("--host", HOST, "--port")
        port = self.url.rpartition(":")[2]
        web = ("--webui-port", str(self._web_port))
        self._spawn("master", ["spark-class", "org.apache.spark.deploy.master.Master", *address, port, *web])
        # A worker that finds no master waits for 6 s or more before it tries again.
        self.wait_until(self._master_answers, "a master that answers")
        for name in self.workers:
            size = ("--cores", "1", "--memory", "512m", "--work-dir", str(self._directory / name))
            options = (*address, "0", "--webui-port", "0", *size, self.url)
            self._spawn(name, ["spark-class", "org.apache.spark.deploy.worker.Worker", *options])
        self.wait_until(lambda: self.state()["aliveworkers"] == len(self.workers), f"{len(self.workers)} registered workers")

    def submit(self, script: Path, options: Sequence[str], settings: Mapping[str, str]) -> "subprocess.Popen[str]":
        """Start `spark-submit` of a script with its options. The log `driver` gets its output."""
        conf = [each for key, value in settings.items() for each in ("--conf", f"{key}={value}")]
        return self._spawn("driver", ["spark-submit", "--master", self.url, *conf, str(script), *options])

    def stop(self) -> None:
        """Kill every process of the cluster, executors too."""
        for name in self._processes:
            self.kill(name)

    def kill(self, name: str) -> None:
        """Send SIGKILL to the process group of a worker: the worker and its executors."""
        process = self._processes[name]
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def state(self) -> Mapping[str, Any]:
        """The master's answer to GET /json/. Raises `OSError` if there is none."""
        with urllib.request.urlopen(f"http://{HOST}:{self._web_port}/json/", timeout=30) as answer:
            found: dict[str, Any] = json.load(answer)
        return found

    def finished_tasks(self, name: str) -> int:
        """The number of tasks that the executors of a worker have finished."""
        logs = (self._directory / name).glob("*/*/stderr")
        return sum(log.read_text(errors="replace").count("Finished task ") for log in logs)

    def wait_until(self, condition: Callable[[], bool], words: str) -> None:
        """Raises `SparkClusterError` if `condition` stays false."""
        deadline = time.monotonic() + _WAIT_SECONDS
        while not condition():
            for name, process in self._processes.items():
                if process.poll() is not None and process.returncode != -signal.SIGKILL:
                    raise SparkClusterError(f"{name} has ended with exit code {process.returncode}: {self.log(name)[-3000:]}")
            if time.monotonic() > deadline:
                ends = "".join(f"\n{name}: {self.log(name)[-1000:]}" for name in self._processes)
                raise SparkClusterError(f"no {words} after {_WAIT_SECONDS:.0f} s:{ends}")
            time.sleep(_LOOK_EVERY_SECONDS)

    def log(self, name: str) -> str:
        return self._log_file(name).read_text(errors="replace")

    def _log_file(self, name: str) -> Path:
        return self._directory / f"{name}.log"

    def _master_answers(self) -> bool:
        try:
            return bool(self.state())
        except (OSError, ValueError):  # it does not listen yet, or its web server has other pages before this one
            return False

    def _spawn(self, name: str, command: Sequence[str]) -> "subprocess.Popen[str]":
        self._directory.mkdir(parents=True, exist_ok=True)
        program, *arguments = command
        with self._log_file(name).open("w") as log:
            process = spawn(
                [str(spark_home() / "bin" / program), *arguments], stdout=log, stderr=subprocess.STDOUT, env=_environment()
            )
        self._processes[name] = process
        return process


def _environment() -> Mapping[str, str]:
    own = {"SPARK_HOME": str(spark_home()), "SPARK_LOCAL_IP": HOST, "PYSPARK_PYTHON": sys.executable}
    return {**os.environ, **own, "SPARK_DAEMON_MEMORY": "128m", "SPARK_DAEMON_JAVA_OPTS": _DAEMON_JAVA}


def spark_home() -> Path:
    """The folder of the installed PySpark, with the jars and scripts of Spark."""
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise SparkClusterError("pyspark is not installed: run `make setup`")
    return Path(spec.origin).parent
