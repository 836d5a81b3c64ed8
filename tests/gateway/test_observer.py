"""Events as the outlet passes them to its observers."""

from gateway.events import ConnectionRejected, QuotaChanged
from gateway.observer import Outlet, limit_changes
from gateway.quotas.entity import DEFAULT, ClientQuotaEntity, EntityQuota

ALICE, REST = ClientQuotaEntity("alice"), ClientQuotaEntity(DEFAULT, "etl")


class Noted:
    def __init__(self):
        self.events = []
        self.outlet = Outlet("weir-1", [self], lambda: 1.25)

    def notify(self, event):
        self.events.append(event)


def test_changed_limits_of_the_file():
    noted = Noted()
    before = [
        EntityQuota(ALICE, {"producer_byte_rate": 1, "consumer_byte_rate": 2}),
        EntityQuota(REST, {"producer_byte_rate": 3}),
    ]
    after = [EntityQuota(ALICE, {"producer_byte_rate": 5, "consumer_byte_rate": 2})]
    for event in noted.outlet.quota_events(limit_changes(before, after)):
        noted.outlet.notify(event)
    assert [(each.kind, each.quota, each.old_limit, each.new_limit, each.source) for each in noted.events] == [
        ("produce", "user=alice", 1, 5, "file"),
        ("produce", "user=<default>, client-id=etl", 3, None, "file"),
    ]
    assert [(each.user, each.client_id) for each in noted.events] == [("alice", None), ("<default>", "etl")]


def test_changed_limit_of_the_api():
    noted = Noted()
    noted.outlet.limit_changed(ALICE, "consumer_byte_rate", None, 7.0, "User:admin")
    noted.outlet.limit_changed(ALICE, "consumer_byte_rate", 7.0, 7.0, "User:admin")
    noted.outlet.limit_changed(ALICE, "request_percentage", None, 7.0, "User:admin")
    (change,) = noted.events
    assert isinstance(change, QuotaChanged)
    assert (change.time_ms, change.gateway, change.kind) == (1250, "weir-1", "fetch")
    assert (change.source, change.principal) == ("api", "User:admin")


def test_rejection_without_address_and_listener():
    noted = Noted()
    noted.outlet.connection_rejected("idle")
    assert noted.events == [ConnectionRejected(time_ms=1250, last_ms=1250, gateway="weir-1", reason="idle")]
