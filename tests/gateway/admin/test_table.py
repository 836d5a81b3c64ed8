"""`weir quotas`: the table of the admin API's answer."""

import asyncio
import io
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from aiohttp import web
from rich.console import Console
from rich.text import Text

from gateway.admin.admin_client import AdminUnreachableError, ask
from gateway.admin.group_table import show_groups
from gateway.admin.json_text import JsonObject
from gateway.admin.rows import described
from gateway.admin.server import AdminServer
from gateway.admin.table import forgive_debts, quota_table, show, show_quotas
from gateway.admin.view import AdminView
from gateway.config.places import Places
from gateway.quotas.entity import ClientQuotaEntity
from gateway.quotas.groups import Group
from gateway.quotas.kinds import BYTES, KINDS
from gateway.quotas.snapshot import wait_text
from gateway.steps import at_once
from gateway.terminal_text import printable
from gateway.version import weir_version
from loadtest.testkit.kafka import free_port
from tests.gateway.admin.serving import served
from tests.gateway.features.notify.rows import used


class Screen(io.StringIO):
    """A console that records its output. `drawn_twice` is set as soon as the table is drawn a second time."""

    def __init__(self, *, terminal: bool = False) -> None:
        super().__init__()
        self.drawn_twice = asyncio.Event()
        self.console = Console(file=self, width=180, force_terminal=terminal, color_system=None)

    def write(self, text: str) -> int:
        written = super().write(text)
        if self.text.count("Quotas at") >= 2:
            self.drawn_twice.set()
        return written

    @property
    def text(self) -> str:
        return self.getvalue()


async def shown(server: AdminServer) -> str:
    screen = Screen()
    await show_quotas(f"http://127.0.0.1:{server.port}/", once=False, as_json=False, console=screen.console)
    return screen.text


async def test_highest_used_ratio_comes_first(server: AdminServer) -> None:
    text = await shown(server)
    rows = [line.split("│")[1:-1] for line in text.splitlines() if line.startswith("│")]
    cells = [[cell.strip() for cell in row] for row in rows]
    assert [row[:3] for row in cells if row[0]] == [
        ["produce", "alice", "etl"],
        ["produce", "bob", "app"],
        ["fetch", "", "app"],
    ]
    assert cells[0][4] == "97.7 KiB/s"
    assert cells[0][5].endswith("130%")
    assert cells[0][6:10] == ["1", "2, by 1.5 s", "3.0 s", "00:00:00"]
    binding = " ".join(row[10] for row in cells[:4])
    assert binding == "producer_byte_rate of user=<default>, client-id=<default> (weir.yaml:6)"
    assert cells[-1][4:] == ["", "", "0", "", "", "", "", ""]
    assert "early: requests that came before their client's throttle time was over" in text


async def test_json_is_the_gateways_answer(server: AdminServer, capsys: pytest.CaptureFixture[str]) -> None:
    await show_quotas(f"http://127.0.0.1:{server.port}", once=False, as_json=True, console=Screen().console)
    answer = json.loads(capsys.readouterr().out)
    assert {row["user"] for row in answer["rows"]} >= {"alice", "bob"}


@asynccontextmanager
async def answering(answer: web.Response) -> AsyncIterator[str]:
    """The URL of an admin server that gives one answer, once, to any request."""

    async def handle(_: web.Request) -> web.Response:
        return answer

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handle)
    runner = web.AppRunner(app)
    await runner.setup()
    port = free_port()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        await runner.cleanup()


NAMES = {"user": "team:key:a", "client_id": "x:100:y"}
"""Rich prints emoji in place of `:key:` and `:100:`."""


@pytest.mark.parametrize(("show", "rows"), [(show_quotas, "rows"), (show_groups, "groups")])
async def test_json_keeps_names_with_emoji_codes(
    show: Callable[..., Awaitable[None]], rows: str, capsys: pytest.CaptureFixture[str]
) -> None:
    async with answering(web.json_response({rows: [NAMES]})) as url:
        await show(url, once=True, as_json=True, console=Console())
    assert json.loads(capsys.readouterr().out) == {rows: [NAMES]}


async def test_cleared_debts_keep_names_with_emoji_codes(capsys: pytest.CaptureFixture[str]) -> None:
    async with answering(web.json_response({"cleared": [{"seconds": 1.5, "kind": "produce", **NAMES}]})) as url:
        await forgive_debts(url, {})
    assert capsys.readouterr().out == "cleared 1.5 s of produce for user team:key:a, client-id x:100:y\n"


async def test_cleared_debt_of_shared_bucket_names_its_quota(capsys: pytest.CaptureFixture[str]) -> None:
    names = {"user": "<other>", "client_id": "client-id=<default>"}
    async with answering(web.json_response({"cleared": [{"seconds": 1.5, "kind": "produce", **names}]})) as url:
        await forgive_debts(url, {})
    assert capsys.readouterr().out == "cleared 1.5 s of produce for the shared bucket <other> of client-id=<default>\n"


async def shown_with_all(view: AdminView, *, as_json: bool) -> str:
    screen = Screen()
    async with served(AdminServer(view, ("127.0.0.1", 0))) as server:
        url = f"http://127.0.0.1:{server.port}"
        await show_quotas(url, once=True, as_json=as_json, console=screen.console, unused=True)
    return screen.text


async def test_all_adds_configured_quotas_without_recent_use(view: AdminView) -> None:
    dave = ClientQuotaEntity("dave")
    api = {dave: {"producer_byte_rate": 2_097_152.0}, ClientQuotaEntity("alice"): {"request_percentage": 50.0}}
    text = await shown_with_all(replace(view, dynamic=lambda: api), as_json=False)
    _, unused = text.split("Configured quotas without recent use")
    assert [cell.strip() for cell in next(line for line in unused.splitlines() if "user=dave" in line).split("│")[1:-1]] == [
        "user=dave", "producer_byte_rate", "2.00 MiB/s", "quota API (kafka-configs.sh)",
    ]  # fmt: skip
    assert "user=<default>, client-id=<default>" not in unused


async def test_all_lists_each_quota_of_the_file_once(view: AdminView, capsys: pytest.CaptureFixture[str]) -> None:
    await shown_with_all(view, as_json=True)
    answer = json.loads(capsys.readouterr().out)
    used = {(row["level"], row["key"]) for row in answer["rows"]}
    unused = {(row["entity"], row["key"]) for row in answer["unused"]}
    assert unused.isdisjoint(used)
    configured = {(str(row.entity), key) for row in view.effective.config.quotas.rows for key in row.limits}
    assert configured <= used | unused


async def test_terminal_is_redrawn_until_stopped(server: AdminServer, view: AdminView) -> None:
    screen = Screen(terminal=True)
    url = f"http://127.0.0.1:{server.port}"
    task = asyncio.create_task(show_quotas(url, once=False, as_json=False, console=screen.console))
    await asyncio.wait_for(screen.drawn_twice.wait(), 20)
    task.cancel()
    await task


async def test_table_that_was_never_drawn_is_no_ordinary_end() -> None:
    asked = asyncio.Event()

    async def answer() -> JsonObject:
        asked.set()
        return await asyncio.Future()

    task = asyncio.create_task(show(answer, Text, Screen(terminal=True).console, once=False, as_json=False))
    await asked.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_unreachable_admin_port_is_explained() -> None:
    port = free_port()
    with pytest.raises(
        AdminUnreachableError, match=rf"http://127\.0\.0\.1:{port}/api/quotas can't be reached: Connection refused — .*--admin"
    ):
        await show_quotas(f"http://127.0.0.1:{port}", once=True, as_json=False, console=Screen().console)


@pytest.mark.parametrize(
    "answer",
    [web.Response(status=404), web.Response(text="hello"), web.json_response([1]), web.json_response({"rows": 7})],
    ids=["404", "text", "a list", "no rows"],
)
async def test_foreign_server_is_explained(answer: web.Response) -> None:
    await refused(answer, "answers, but not as Weir does")


async def test_page_that_the_gateway_lacks_is_explained(server: AdminServer) -> None:
    url = f"http://127.0.0.1:{server.port}"
    message = rf"/api/of/later is no page of this gateway\. It has version {re.escape(weir_version())}, which may be older"
    with pytest.raises(AdminUnreachableError, match=message):
        await ask(url, "/api/of/later")


@pytest.mark.parametrize(
    ("names", "remedy"),
    [
        ([], "the config file has no groups, so name a user or a client-id"),
        (["jobs", "night", "night"], "use one of jobs, night"),
        ([f"g{number}" for number in range(11)], "use one of g0, g1, g2, g3, g4, g5, g6, g7, g8, g9, ..."),
    ],
)
async def test_unknown_group_has_no_debt_to_clear(
    view: AdminView, server: AdminServer, capsys: pytest.CaptureFixture[str], names: list[str], remedy: str
) -> None:
    """Groups outside of their schedule are known as well."""
    quotas = view.effective.config.quotas.model_copy(update={"groups": tuple(Group(name, (), {}) for name in names)})
    view.effective.config = view.effective.config.model_copy(update={"quotas": quotas})
    admin = f"http://127.0.0.1:{server.port}"
    with pytest.raises(AdminUnreachableError) as refused:
        await forgive_debts(admin, {"group": "job"})
    assert str(refused.value).endswith(f"refuses the request: group: there is no 'job' in quotas.groups: {remedy}")
    for known in names:
        await forgive_debts(admin, {"group": known})
    assert capsys.readouterr().out.count("nothing to clear") == len(names)


async def test_name_that_is_not_allowed_is_explained() -> None:
    answer = web.Response(status=421, text="add the name to admin.allowed_hosts\n")
    await refused(answer, r"/api/quotas refuses the request: add the name to admin\.allowed_hosts$")


async def test_refusal_of_another_server_can_not_act_on_the_terminal() -> None:
    answer = web.Response(status=403, text="\x1b]0;title\x07\nready\x9b")
    await refused(answer, r"refuses the request: \\x1b\]0;title\\x07\\nready\\x9b$")


async def refused(answer: web.Response, message: str) -> None:
    async with answering(answer) as url:
        with pytest.raises(AdminUnreachableError, match=message):
            await show_quotas(url, once=True, as_json=False, console=Screen().console)


BAR = "━━━ "
"""The end of a bar and the gap before its percentage. No border has them."""


@pytest.mark.parametrize(
    ("width", "left_out"),
    [
        (80, {"addresses", "early", "since", BAR, "throttled", "quota that binds"}),
        (125, {"addresses", "early", "since", BAR}),
        (180, set()),
    ],
)
async def test_narrow_terminal_drops_columns_but_keeps_entity(server: AdminServer, width: int, left_out: set[str]) -> None:
    screen = Screen()
    screen.console.width = width
    await show_quotas(f"http://127.0.0.1:{server.port}", once=True, as_json=False, console=screen.console)
    for text in ("produce", "alice", "etl", "bob", "97.7 KiB/s", "130%"):
        assert text in screen.text, screen.text
    for text in ("addresses", "early", "since", BAR, "throttled", "quota that binds"):
        assert (text in screen.text) is (text not in left_out), screen.text
    assert max(map(len, screen.text.splitlines())) <= width


def test_empty_table_and_unenforced_quotas_are_explained() -> None:
    screen = Screen()
    screen.console.print(quota_table({"generated_at": "now", "enforce": False, "units": {}, "rows": []}, 180))
    assert "No client has used a quota yet." in screen.text
    assert "no client is delayed" in screen.text
    assert "share" not in screen.text


def test_unenforced_throttles_are_counted_apart(view: AdminView) -> None:
    row = at_once(
        described([used(1.2, throttled_total=12, unenforced_total=9)], Places(view.effective.config, "weir.yaml"), 0.0)
    )[0]
    screen = Screen()
    screen.console.print(quota_table({"generated_at": "now", "enforce": True, "units": {}, "rows": [row]}, 180))
    assert "12, 9 unenforced" in screen.text
    del row["unenforced_total"], row["unthrottled_seconds"]  # a gateway of version 0.2.0 or older
    screen.console.print(quota_table({"generated_at": "now", "enforce": True, "units": {}, "rows": [row]}, 180))
    assert screen.text.count("unenforced") == 1


def test_groups_have_rows_with_their_names(view: AdminView) -> None:
    rows = at_once(
        described([used(0.5, user="", group="jobs", level="group=jobs")], Places(view.effective.config, "weir.yaml"), 0.0)
    )
    answer = {"generated_at": "2026-01-01T00:00:00Z", "enforce": True, "rows": rows}
    screen = Screen()
    screen.console.print(quota_table(answer, 180))
    assert "group jobs" in screen.text
    assert "producer_byte_rate of group=jobs" in screen.text


def test_rows_of_brokers_have_a_column(view: AdminView) -> None:
    places = Places(view.effective.config, "weir.yaml")
    texts = []
    for brokers in (("17", "bootstrap"), ("", "")):
        rows = at_once(described([used(0.5, broker=broker) for broker in brokers], places, 0.0))
        screen = Screen()
        screen.console.print(quota_table({"generated_at": "2026-01-01T00:00:00Z", "enforce": True, "rows": rows}, 180))
        texts.append(screen.text)
    assert all(word in texts[0] for word in ("broker", "17", "bootstrap"))
    assert "broker" not in texts[1]


def test_shared_quotas_explain_rate_and_used() -> None:
    screen = Screen()
    screen.console.print(quota_table({"generated_at": "now", "enforce": True, "units": {}, "shared": True, "rows": []}, 180))
    assert "used that of all gateways" in screen.text


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (999, "999 B"), (1024, "1.00 KiB"), (10_240, "10.0 KiB"), (1_048_575, "1.00 MiB"), (1 << 60, "1048576 TiB")],
)
def test_bytes_are_shown_in_binary_units(count: float, text: str) -> None:
    assert BYTES.text(count) == text


@pytest.mark.parametrize(("seconds", "text"), [(0.0002, "1 ms"), (0.0094, "9 ms"), (0.25, "250 ms"), (12.34, "12.3 s")])
def test_short_throttle_times_are_shown_in_ms(seconds: float, text: str) -> None:
    assert wait_text(seconds) == text


def test_rate_of_other_units_is_shown() -> None:
    assert KINDS["controller_mutation"].text(1234.56) == "1,234.6 partitions/s"


def test_control_characters_are_escaped() -> None:
    assert printable("a\x1b[2Jb\n") == r"a\x1b[2Jb\n"
    assert printable("naïve ☃") == "naïve ☃"
