"""A real Prometheus that scrapes gateways every second, and queries to it."""

import json
import shutil
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest
import yaml

from loadtest.testkit.kafka import free_port, spawn, stop
from tests.weir_process import wait_until

HOST = "127.0.0.1"
TIMEOUT = 60.0


def program(name: str) -> str:
    """Return the path of `prometheus` or `promtool`, or skip the test."""
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"{name} is not on the PATH and `make setup` could not fetch it: install Debian's package prometheus")
    return path


class Prometheus:
    """A context manager: started on entry, once it answers, and stopped on exit. Scrapes and evaluates every second."""

    def __init__(self, directory: Path, targets: Sequence[str], rules: Path) -> None:
        self._directory = directory
        self._port = free_port()
        config = {
            "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(rules)],
            "scrape_configs": [{"job_name": "kafka-gateways", "static_configs": [{"targets": list(targets)}]}],
        }
        (directory / "prometheus.yml").write_text(yaml.safe_dump(config))

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Return the current samples of an expression. Fails with Prometheus's message if Prometheus refuses it."""
        return list(self._get("query", query=expression)["result"])

    def label_values(self, label: str, matching: str) -> list[str]:
        """Return the values of a label, as Grafana queries them for a variable."""
        return list(self._get(f"label/{label}/values", **{"match[]": matching}))

    def rules(self) -> list[dict[str, Any]]:
        """Return the rules of all groups, with `health` and `lastError`."""
        return [rule for group in self._get("rules")["groups"] for rule in group["rules"]]

    def alerts(self) -> list[dict[str, Any]]:
        """Return the pending and firing alerts."""
        return list(self._get("alerts")["alerts"])

    def _get(self, path: str, **parameters: str) -> Any:
        url = f"http://{HOST}:{self._port}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=TIMEOUT) as response:
                answer = json.load(response)
        except urllib.error.HTTPError as error:
            with error:
                pytest.fail(f"{parameters or path}: {error.read().decode()}")
        assert answer["status"] == "success"
        return answer["data"]

    def _ready(self) -> bool:
        assert self._process.poll() is None, (self._directory / "prometheus.log").read_text()
        try:
            with urllib.request.urlopen(f"http://{HOST}:{self._port}/-/ready", timeout=TIMEOUT) as response:
                return response.status == 200
        except urllib.error.HTTPError as error:
            error.close()
            return False
        except OSError:  # Prometheus does not listen yet or is too busy to answer
            return False

    def __enter__(self) -> Self:
        command = [
            program("prometheus"),
            f"--config.file={self._directory / 'prometheus.yml'}",
            f"--storage.tsdb.path={self._directory / 'data'}",
            f"--web.listen-address={HOST}:{self._port}",
            "--log.level=warn",
        ]
        with (self._directory / "prometheus.log").open("w") as log:
            self._process = spawn(command, stdout=log, stderr=log)
        try:
            wait_until(self._ready, "Prometheus answers", TIMEOUT)
        except BaseException:
            stop(self._process, timeout=TIMEOUT)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        stop(self._process, timeout=TIMEOUT)
