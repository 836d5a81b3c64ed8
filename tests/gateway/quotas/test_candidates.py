"""The values that match a client, and the reasons why all but one do not apply."""

from gateway.quotas.candidates import OVERRIDDEN, Candidate, CandidateTable
from gateway.quotas.entity import DEFAULT, ClientQuotaEntity, EntityQuota, Source
from gateway.quotas.kinds import KINDS
from gateway.quotas.quota_table import QuotaTable

KEY = "producer_byte_rate"

DEFAULT_USER = EntityQuota(ClientQuotaEntity(DEFAULT), {KEY: 100.0})
ALICE = EntityQuota(ClientQuotaEntity("alice"), {KEY: 50.0})
ALICE_ETL = EntityQuota(ClientQuotaEntity("alice", "etl"), {KEY: 25.0})
SCRAPER = EntityQuota(ClientQuotaEntity(None, "scraper"), exempt=True)
ADDRESS = EntityQuota(ClientQuotaEntity(ip=DEFAULT), {"connection_creation_rate": 3.0})
FILE = (DEFAULT_USER, ALICE, ALICE_ETL, SCRAPER, ADDRESS)


def candidates(user: str, client_id: str, **dynamic: float) -> list[Candidate]:
    limits = {ClientQuotaEntity(name): {KEY: limit} for name, limit in dynamic.items()}
    return CandidateTable(FILE, limits).of_client(KEY, user, client_id)[1]


def test_less_specific_values_follow_the_value_that_applies() -> None:
    assert [(str(each.entity), each.limit, each.applies, each.reason) for each in candidates("alice", "etl")] == [
        ("user=alice, client-id=etl", 25.0, True, ""),
        ("user=alice", 50.0, False, "less specific than user=alice, client-id=etl"),
        ("user=<default>", 100.0, False, "less specific than user=alice, client-id=etl"),
    ]


def test_quota_api_overrides_the_file_for_the_same_entity() -> None:
    first, second, *_ = candidates("alice", "app", alice=10.0)
    assert (first.limit, first.source, first.applies) == (10.0, Source.API, True)
    assert (second.limit, second.source, second.applies, second.reason) == (50.0, Source.FILE, False, OVERRIDDEN)


def test_named_exemption_overrules_a_default_limit() -> None:
    limit, exemption = candidates("carol", "scraper")
    assert (limit.applies, limit.reason) == (
        False,
        "a default limit, and the exemption of client-id=scraper names its client",
    )
    assert (exemption.applies, exemption.limit) == (True, None)


def test_limit_of_a_user_overrules_the_exemption_of_a_client_id() -> None:
    applying, *others = candidates("alice", "scraper")
    assert (str(applying.entity), applying.applies) == ("user=alice", True)
    assert not any(each.applies for each in others)
    assert {str(each.entity) for each in others} == {"user=<default>", "client-id=scraper"}


def test_address_has_two_levels() -> None:
    resolution, found = CandidateTable(FILE, {}).of_address("connection_creation_rate", "10.0.0.1")
    assert resolution.limit == 3.0
    assert [(str(each.entity), each.applies) for each in found] == [("ip=<default>", True)]


def test_client_without_a_quota_has_no_candidates() -> None:
    resolution, found = CandidateTable((), {}).of_client(KEY, "alice", "etl")
    assert (resolution.source, found) == (None, [])


def test_exactly_the_value_of_the_table_applies() -> None:
    """Every pair of names and every kind: the engine's table decides, and one candidate at most applies."""
    dynamic = {ClientQuotaEntity("alice"): {"consumer_byte_rate": 7.0}, ClientQuotaEntity(None, "scraper"): {KEY: 9.0}}
    table, candidate_table = QuotaTable(FILE, dynamic), CandidateTable(FILE, dynamic)
    for user in ("alice", "bob"):
        for client_id in ("etl", "scraper", ""):
            for kind in KINDS.values():
                expected = table.resolve(kind.config_key, user, client_id)
                resolution, found = candidate_table.of_client(kind.config_key, user, client_id)
                applying = [(each.entity, each.limit, each.source) for each in found if each.applies]
                assert resolution == expected
                assert applying == ([] if expected.source is None else [(expected.entity, expected.limit, expected.source)])


def test_exemption_from_topics_is_found_by_its_row() -> None:
    row = EntityQuota(ClientQuotaEntity("bob"), exempt_from=("topics",), line=3)
    assert CandidateTable((row,), {}).exempting("topics", "bob", "any") is row
    assert CandidateTable((row,), {}).exempting("volumes", "bob", "any") is None
