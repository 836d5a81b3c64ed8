"""Without `sharing`, each gateway gives every client its whole limit, and a lift must not hide that."""

import asyncio
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from types import SimpleNamespace

import pytest
from aiohttp import web

from gateway.commands import main
from gateway.migration.lift_command import _confirm
from tests.gateway.admin.test_table import answering
from tests.gateway.migration.stub_cluster import StubCluster

ENTITIES = [{"user": "alice", "producer_byte_rate": 1000}]
CONFIG = """\
upstream: {{bootstrap_servers: ["{servers}"]}}
listeners: [{{bootstrap_port: 1024}}]
quotas: {{entities: [{{user: alice, producer_byte_rate: 1000}}]}}
{more}
"""


async def lift(folder: Path, more: str, *running: dict[str, object]) -> int:
    """The exit code of a dry run with these lines in the config, and these keys in the configs of running gateways."""
    path = folder / "weir.yaml"
    async with AsyncExitStack() as stack:
        cluster = stack.enter_context(StubCluster())
        path.write_text(CONFIG.format(servers=cluster.bootstrap_servers, more=more))
        admins = []
        for keys in running:
            config = {"quotas": {"enforce": True, "entities": ENTITIES}, **keys}
            answer = web.json_response({"config": config, "version": 1, "warnings": []})
            admins += ["--admin", await stack.enter_async_context(answering(answer))]
        arguments = ["quotas", "lift", "--config", str(path), "--restore-file", str(folder / "restore.json"), "--dry-run"]
        return await asyncio.to_thread(main, [*arguments, *admins])


SHARING: dict[str, object] = {"sharing": {}, "workers": 1}
ALONE: dict[str, object] = {"sharing": None, "workers": 1}


@pytest.mark.parametrize(
    ("more", "running", "refused"),
    [
        ("", [ALONE, ALONE], "weir.yaml: sharing is missing or empty, so each of 2 processes"),
        ("workers: 4\nsharing:", [ALONE, ALONE], "weir.yaml: sharing is missing or empty, so each of 8 processes"),
        ("sharing: {}", [SHARING, ALONE], "(config version 1): sharing is missing or empty, so each of 2 processes"),
        ("sharing: {}", [{"sharing": None, "workers": 4}], "(config version 1): sharing is missing or empty, so each of 4"),
        ("sharing: {}", [SHARING, SHARING], None),
        ("sharing: {}", [ALONE], None),
        ("", [ALONE], None),
    ],
)
async def test_lift_counts_processes_without_sharing(
    more: str, running: list[dict[str, object]], refused: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = await lift(tmp_path, more, *running)
    out, err = capsys.readouterr()
    assert ("N gateways give each client N times its limit" in out) == ("{}" not in more)
    if refused is None:
        assert (code, err) == (0, "")
    else:
        assert (code, refused in err, err.count("whole limit"), "1 reason:" in err) == (1, True, 1, True)


@pytest.mark.parametrize("shared", [True, False])
def test_question_is_about_other_gateways(shared: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: True))
    questions: list[str] = []

    def answered(question: str) -> str:
        questions.append(question)
        return "yes"

    _confirm(3, shared=shared, ask=answered)
    (question,) = questions
    assert question.endswith("Remove these 3 quotas from the brokers? Type yes: ")
    assert question.startswith("Do all clients use one gateway? Without `sharing`, N gateways give") == (not shared)
