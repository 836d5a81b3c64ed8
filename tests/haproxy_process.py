"""HAProxy in front of a gateway."""

import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from loadtest.bench.proxies import ProxyUnavailableError, find
from loadtest.testkit.kafka import spawn
from tests.weir_process import wait_until

BALANCER = "127.0.0.9"
"""The address from which HAProxy connects to gateways."""


@dataclass(frozen=True)
class Frontend:
    """HAProxy listens on `bind` (`host:port` or `host:first-last`, and options), and connects to `server`, in the same form."""

    bind: str
    server: str


@contextmanager
def haproxy(directory: Path, frontends: Mapping[str, Frontend]) -> Iterator[None]:
    """Run HAProxy with these frontends. Skips the test if there is no HAProxy."""
    try:
        program = find("haproxy")
    except ProxyUnavailableError:
        pytest.skip("haproxy is not on the PATH and `make setup` could not fetch it: install Debian's package haproxy")
    directory.mkdir(parents=True, exist_ok=True)
    config, log = directory / "haproxy.cfg", directory / "haproxy.log"
    sections = ["global\n    nbthread 1\n"]
    sections += ["defaults\n    mode tcp\n    timeout connect 5s\n    timeout client 1h\n    timeout server 1h\n"]
    for name, each in frontends.items():
        sections += [f"frontend {name}\n    bind {each.bind}\n    default_backend {name}\n"]
        sections += [f"backend {name}\n    source {BALANCER}\n    server weir {each.server}\n"]
    config.write_text("".join(sections))
    with log.open("w") as out:
        process = spawn([program, "-db", "-f", str(config)], stdout=out, stderr=out)
    try:
        for each in frontends.values():
            wait_until(lambda each=each: process.poll() is not None or _listens(each.bind), "HAProxy listens or has ended")
        assert process.poll() is None, log.read_text()
        yield
    finally:
        process.kill()  # on SIGTERM it waits for its clients
        process.wait()


def _listens(bind: str) -> bool:
    host, _, ports = bind.split()[0].rpartition(":")
    try:
        socket.create_connection((host, int(ports.partition("-")[0])), timeout=1.0).close()
    except OSError:
        return False
    return True
