"""An operator clears debts."""

import pytest

from gateway.quotas.debts import DebtFilter, DebtFilterError, clear_debts
from gateway.quotas.engine import QuotaEngine
from gateway.quotas.entity import ClientQuotaEntity, EntityQuota, short_name
from gateway.quotas.groups import Group, GroupRule
from gateway.quotas.settings import QuotaSettings
from tests.gateway.proxy.transcript import START, limits
from tests.gateway.quotas.engines import bucket_of


def engine(algorithm="token_bucket"):
    found = QuotaEngine(limits(produce=1_000, fetch=1_000, algorithm=algorithm), START)
    for kind in ("produce", "fetch"):
        bucket_of(found, kind, "ANONYMOUS", "etl", START).charge(13_000, START)
    return found


@pytest.mark.parametrize("algorithm", ["token_bucket", "window"])
def test_cleared_debt_throttles_nobody(algorithm):
    quotas = engine(algorithm)
    covered, cleared = clear_debts(quotas.buckets(), DebtFilter(client_id="etl"), START)
    assert {bucket.kind.name for bucket in covered} == {"produce", "fetch"}
    assert [debt.seconds for debt in cleared] == [3.0, 3.0]
    assert bucket_of(quotas, "produce", "ANONYMOUS", "etl", START).throttle_left(START) == 0.0
    assert clear_debts(quotas.buckets(), DebtFilter(client_id="etl"), START)[1] == []


def test_other_kinds_and_clients_keep_their_debts():
    quotas = engine()
    _, cleared = clear_debts(quotas.buckets(), DebtFilter(client_id="etl", kind="fetch"), START)
    assert [debt.kind for debt in cleared] == ["fetch"]
    assert clear_debts(quotas.buckets(), DebtFilter(client_id="other"), START) == (set(), [])
    assert bucket_of(quotas, "produce", "ANONYMOUS", "etl", START).throttle_left(START) == 3.0


def test_debt_of_a_group_is_cleared_by_its_name():
    jobs = Group("jobs", (GroupRule(client_id="etl"),), {"producer_byte_rate": 1_000})
    quotas = QuotaEngine(QuotaSettings((jobs.quota,), groups=(jobs,)), START)
    for bucket in quotas.acquire_path("produce", "alice", "etl", START):
        bucket.charge(13_000, START)
    for other in (DebtFilter("alice"), DebtFilter(client_id="etl"), DebtFilter(group="others")):
        assert clear_debts(quotas.buckets(), other, START)[1] == []
    (debt,) = clear_debts(quotas.buckets(), DebtFilter.parse({"group": "jobs"}), START)[1]
    assert (debt.group, debt.user, debt.client_id, debt.seconds) == ("jobs", "", "", 3.0)


NAMES = {
    "a long name as shown": ("x" * 300, short_name("x" * 300), True),
    "a long name": ("x" * 300, "x" * 300, True),
    "the name of the others, as shown": ("<other>", "\\<other>", True),
    "the name of the others": ("<other>", "<other>", False),
    "an empty name": ("", "", True),
    "an empty name for somebody": ("etl-2", "", False),
}


@pytest.mark.parametrize("case", NAMES)
def test_client_is_named_as_tables_show_it(case):
    client_id, wanted, found = NAMES[case]
    quotas = QuotaEngine(limits(produce=1_000, client_id=client_id), START)
    bucket_of(quotas, "produce", "ANONYMOUS", client_id, START).charge(13_000, START)
    assert bool(clear_debts(quotas.buckets(), DebtFilter(client_id=wanted), START)[1]) is found


def test_empty_client_id_does_not_match_whole_user():
    quotas = QuotaEngine(QuotaSettings((EntityQuota(ClientQuotaEntity(user="alice"), {"producer_byte_rate": 1_000}),)), START)
    bucket_of(quotas, "produce", "alice", "etl", START).charge(13_000, START)
    assert clear_debts(quotas.buckets(), DebtFilter(client_id=""), START)[1] == []
    assert len(clear_debts(quotas.buckets(), DebtFilter(user="alice"), START)[1]) == 1


WRONG = {
    "nothing": ({}, "names no client"),
    "a list": (["etl"], "names no client"),
    "a kind alone": ({"kind": "produce"}, "neither user nor client-id"),
    "a group and a user": ({"group": "jobs", "user": "alice"}, "group: 'jobs' can't be combined"),
    "an unknown key": ({"client_id": "etl"}, "'client_id': there is no such key"),
    "a key that UTF-8 can't encode": ({"\ud800": "a"}, r"'\\ud800': there is no such key"),
    "an unknown kind": ({"user": "a", "kind": "bytes"}, "kind: there is no 'bytes'"),
    "a kind of addresses": ({"user": "a", "kind": "connection"}, "kind: there is no 'connection'"),
    "a number": ({"user": 7}, "user: 7 is no name"),
}


@pytest.mark.parametrize("case", WRONG)
def test_invalid_filter_is_explained(case):
    values, message = WRONG[case]
    with pytest.raises(DebtFilterError, match=message) as caught:
        DebtFilter.parse(values)
    str(caught.value).encode()


def test_filter_reads_what_it_writes():
    wanted = DebtFilter("alice", "etl", kind="produce")
    assert DebtFilter.parse({"user": "alice", "client-id": "etl", "kind": "produce"}) == wanted
    assert b'"client-id": "etl"' in wanted.body()


@pytest.mark.parametrize(
    ("kind", "cleared"),
    [("request_rate", ["request_rate", "request_rate.Metadata"]), ("request_rate.Metadata", ["request_rate.Metadata"])],
)
def test_rate_of_requests_includes_those_of_its_apis(kind, cleared):
    limits = {"request_rate": 5.0, "request_rates.Metadata": 5.0}
    quotas = QuotaEngine(QuotaSettings((EntityQuota(ClientQuotaEntity(None, "etl"), limits),)), START)
    for name in ("request_rate", "request_rate.Metadata"):
        bucket_of(quotas, name, "ANONYMOUS", "etl", START).charge(60, START)
    _, debts = clear_debts(quotas.buckets(), DebtFilter.parse({"client-id": "etl", "kind": kind}), START)
    assert [debt.kind for debt in debts] == cleared
