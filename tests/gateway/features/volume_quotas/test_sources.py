"""Failures of the sources of volume usage in the log. tests/broker/test_volumes.py has real brokers."""

import asyncio
import errno
import os
from types import SimpleNamespace
from typing import Any

import pytest

from gateway import clock
from gateway.cluster.client import ClusterError
from gateway.cluster.metadata import ClusterLook
from gateway.features.volume_quotas.sources import LocalVolumes, LogDirs
from gateway.log import OncePerPeer

LIMIT: Any = None


class Brokers:
    """Brokers with an error code or an exception for each DescribeLogDirs."""

    def __init__(self, **answers: Any) -> None:
        self.answers = {int(name[1:]): answer for name, answer in answers.items()}

    async def look(self, *, max_age: float) -> ClusterLook:
        return ClusterLook(dict.fromkeys(self.answers, ("kafka", 9092)))

    async def ask(self, broker: int, request: Any) -> Any:
        answer = self.answers[broker]
        if isinstance(answer, Exception):
            raise answer
        disk = SimpleNamespace(error_code=0, log_dir="/data", total_bytes=1_000, usable_bytes=400)
        return SimpleNamespace(error_code=answer, results=[disk])


async def observe(source: LogDirs | LocalVolumes) -> list[Any]:
    return [usage async for usages in source.observe(LIMIT, LIMIT, 20.0) for usage in usages]


async def test_other_cause_of_unknown_usage_is_logged(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clock, "monotonic", lambda: 0.0)
    brokers = Brokers(b1=ClusterError("kafka:9092: lost 1"), b2=0)
    source = LogDirs(brokers, asyncio.Event())
    for lost in range(3):
        brokers.answers[1] = ClusterError(f"kafka:9092: lost {lost}")
        await observe(source)
    brokers.answers[1] = 31
    for _ in range(3):
        await observe(source)
    lost, refused = caplog.messages
    assert lost == "volume usage is not known: broker 1: kafka:9092: lost 0"
    assert refused == (
        "volume usage is not known: broker 1: DescribeLogDirs: ClusterAuthorizationFailedError (31)"
        " — give Weir's user Describe on Cluster: docs/reference/acls.md"
    )
    assert source.problem in refused


async def test_advice_on_old_brokers_is_for_old_brokers(caplog: pytest.LogCaptureFixture) -> None:
    old = ClusterError("kafka:9092: DescribeLogDirs needs v4 to v4", "IncompatibleBrokerVersion")
    await observe(LogDirs(Brokers(b1=old), asyncio.Event()))
    (message,) = caplog.messages
    assert message.endswith("do not support this: run `weir volumes publish` beside them and set source: topic")


@pytest.mark.parametrize(
    ("code", "remedy"),
    [
        (errno.EACCES, "let the user that runs Weir enter the folders above it"),
        (errno.EIO, "check its disk and the kernel's log"),
        (errno.ENOENT, "mount it, or name the broker's log.dirs in quotas.volumes.agent.paths or --path"),
        (errno.ENOTDIR, "give a path below a folder"),
    ],
)
async def test_unreadable_path_is_one_warning_with_a_remedy(
    code: int, remedy: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(path: str) -> None:
        raise OSError(code, os.strerror(code), path)

    monkeypatch.setattr(os, "statvfs", fail)
    source, once = LocalVolumes(3, ["/data/a", "/data/b"]), OncePerPeer(now=lambda: 0.0)
    for _ in range(3):
        assert await observe(source) == []
    (warning,) = filter(once.filter, caplog.records)
    assert (warning.levelname, warning.exc_info) == ("WARNING", None)
    text = f"volume usage is not published: log directory /data/a: {os.strerror(code)} — {remedy}"
    assert (warning.getMessage(), source.errors_total) == (text, 3)
    assert source.problem in text
