"""Shared quotas as metrics and as JSON."""

from dataclasses import replace

from gateway.admin.view import AdminView
from gateway.features.sharing.feature import Sharing
from gateway.features.sharing.metrics import SharingReport
from tests.gateway.admin.serving import visiting
from tests.gateway.admin.test_metrics import Page
from tests.gateway.conftest import reported

REPORT = SharingReport(
    identity="00000000000000a1",
    topic="__weir_usage",
    interval_seconds=0.2,
    when_unreachable="local",
    members=4,
    reachable=False,
    entities=12,
    messages_total=900,
    published_total=300,
    publication_errors_total=2,
    left_out_total=7,
    skipped={"bad_json": 3, "repeated": 1},
    reader_problem="nobody answers",
    publisher_problem="",
)


def test_sharing_report_has_metrics(view: AdminView) -> None:
    page = Page(replace(view, features=[reported(Sharing, REPORT)]))
    names = ("members", "reachable", "entities", "messages_total", "published_total", "publication_errors_total")
    assert [page[f"weir_sharing_{name}"] for name in names] == [4, 0, 12, 900, 300, 2]
    assert page["weir_sharing_left_out_total"] == 7
    assert page.get("weir_sharing_messages_skipped_total", reason="bad_json") == 3


def test_metrics_are_absent_without_sharing(view: AdminView) -> None:
    assert not Page(view).has("weir_sharing_members")


async def test_sharing_api_names_problems(view: AdminView) -> None:
    shown = replace(view, features=[reported(Sharing, REPORT)])
    async with visiting(shown) as session, session.get("/api/sharing") as response:
        body = await response.json()
    assert body["configured"]
    assert (body["members"], body["reachable"], body["reader_problem"]) == (4, False, "nobody answers")
