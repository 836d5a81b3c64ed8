"""Metrics of the quotas topic."""

from dataclasses import replace

from gateway.admin.view import AdminView
from gateway.cluster.log_status import LinkStatus, LogStatus
from gateway.features.quota_api.feature import QuotaApi
from gateway.features.quota_api.metrics import QuotaTopicReport
from tests.gateway.admin.test_metrics import Page
from tests.gateway.conftest import reported

LOG = LogStatus(reader=LinkStatus(connected=True), records_total=90, published_total=30, publication_errors_total=2)
REPORT = QuotaTopicReport(LOG, entities=12, skipped={"damaged": 3, "version": 1})


def test_quota_topic_report_has_metrics(view: AdminView) -> None:
    page = Page(replace(view, features=[reported(QuotaApi, REPORT)]))
    names = ("connected", "entities", "records_total", "publication_errors_total")
    assert [page[f"weir_api_quota_topic_{name}"] for name in names] == [1, 12, 90, 2]
    assert page.get("weir_api_quota_topic_skipped_total", reason="damaged") == 3


def test_metrics_are_absent_without_quota_topic(view: AdminView) -> None:
    assert not Page(view).has("weir_api_quota_topic_connected")
