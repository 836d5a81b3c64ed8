"""The rules of groups: patterns, claims and networks, the order of groups, and the certainty that one rule covers another."""

import json
from fnmatch import fnmatchcase
from ipaddress import ip_network
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.proxy.authentication.mechanisms import MAX_CLAIMS_BYTES
from gateway.quotas.groups import (
    ANY_LAG,
    MAX_CLAIM_CHARACTERS,
    MAX_CLAIMS,
    MAX_FOUND,
    MAX_FOUND_CHARACTERS,
    NO_CLAIMS,
    Group,
    GroupRule,
    GroupTable,
    claims_of,
    passed_limit,
)
from gateway.quotas.rule_cover import RuleCover

PAYMENTS = frozenset({("groups", "payments")})


def rule(user=None, client_id=None, claims=NO_CLAIMS, ip=None, max_lag=None):
    return GroupRule(user, client_id, frozenset(claims), None if ip is None else ip_network(ip), max_lag)


def matches(of, user="alice", client_id="job-1", ip="10.0.0.1", claims=NO_CLAIMS):
    return GroupTable([Group("g", (of,))]).find(user, client_id, ip, frozenset(claims)) == "g"


def covers(first, second):
    return RuleCover(first).covers(RuleCover(second))


@pytest.mark.parametrize(
    ("pattern", "client_id", "expected"),
    [
        ("job-*", "job-0", True),
        ("job-*", "job-", True),
        ("job-*", "jobless", False),
        ("job-*", "a-job-1", False),
        ("job-?", "job-7", True),
        ("job-?", "job-31", False),
        ("job-?", "job-", False),
        ("job-?", "job-\n", True),
        ("*", "", True),
        ("*aba", "ab", False),
        ("ab*ba", "aba", False),
        ("*ab*bc", "abc", False),
        ("*a?c*d", "abaccd", True),
        ("*a?c*cd", "abaccd", False),
        ("*-??", "--1", True),
        ("*-??", "-1", False),
        ("*-sink-*", "orders-sink-3", True),
        ("*\n*", "a\nb", True),
        ("a.c", "abc", False),
        ("Job", "job", False),
        ("job-[0-9]", "job-1", False),
        ("job-[0-9]", "job-[0-9]", True),
        ("(a|b)+$", "(a|b)+$", True),
        ("ü*", "über", True),
    ],
)
def test_pattern_has_two_wildcards(pattern, client_id, expected):
    assert matches(rule(client_id=pattern), client_id=client_id) is expected


@pytest.mark.parametrize("pattern", ["*a" * 20 + "b", "*a" * 120 + "*b", "*a?" * 60 + "*b"])
def test_hostile_name_is_matched_in_no_time(pattern):
    """A backtracking expression would need longer than the age of the universe."""
    assert not matches(rule(client_id=pattern), client_id="a" * 32_767)


@pytest.mark.parametrize(
    ("of", "client", "expected"),
    [
        (rule(user="alice", client_id="pay-*"), {"client_id": "pay-1"}, True),
        (rule(user="alice", client_id="pay-*"), {"client_id": "job-1"}, False),
        (rule(user="alice", client_id="pay-*"), {"user": "bob", "client_id": "pay-1"}, False),
        (rule(claims=PAYMENTS), {"claims": {("groups", "payments"), ("groups", "staff")}}, True),
        (rule(claims=PAYMENTS), {"claims": {("groups", "staff")}}, False),
        (rule(claims=PAYMENTS), {"claims": {("team", "payments")}}, False),
        (rule(claims=PAYMENTS), {}, False),
        (rule(claims={("a", "1"), ("b", "2")}), {"claims": {("a", "1")}}, False),
        (rule(user="bob", claims=PAYMENTS), {"claims": PAYMENTS}, False),
        (rule(ip="10.0.0.0/8"), {"ip": "10.255.0.1"}, True),
        (rule(ip="10.0.0.0/8"), {"ip": "11.0.0.1"}, False),
        (rule(ip="10.0.0.0/8"), {"ip": "::ffff:10.0.0.1"}, True),
        (rule(ip="10.0.0.0/8"), {"ip": "fd00::1"}, False),
        (rule(ip="10.0.0.0/8"), {"ip": ""}, False),
        (rule(ip="fd00::/8"), {"ip": "fd00::1"}, True),
        (rule(ip="fd00::/8"), {"ip": "fe80::1%eth0"}, False),
        (rule(ip="10.0.0.1"), {"ip": "10.0.0.1"}, True),
    ],
)
def test_every_part_of_a_rule_has_to_apply(of, client, expected):
    assert matches(of, **client) is expected


def test_first_group_in_file_order_takes_client():
    one, all_jobs = Group("one", (rule(user="bob"), rule(client_id="job-1"))), Group("all", (rule(client_id="job-*"),))

    def found(*groups):
        table = GroupTable(groups)
        return [table.find("alice", client_id, "", NO_CLAIMS) for client_id in ("job-1", "job-2", "other")]

    assert found(one, all_jobs) == ["one", "all", None]
    assert found(all_jobs, one) == ["all", "all", None]


def test_table_forgets_clients_beyond_its_bound():
    table = GroupTable([Group("jobs", (rule(client_id="job-*"),))])
    for number in range(2 * MAX_FOUND + 1):
        assert table.find("alice", f"job-{number}", "", NO_CLAIMS) == "jobs"
    assert len(table._found) == 1


def test_long_name_is_matched_once_for_all_kinds():
    table = GroupTable([Group("jobs", (rule(client_id="job-*"),))])
    assert table.find("alice", "job-" + "x" * 32_000, "", NO_CLAIMS) == "jobs"
    assert len(table._found) == 1


def test_table_forgets_long_names_beyond_its_characters():
    table = GroupTable([Group("jobs", (rule(client_id="job-*"),))])
    for number in range(400):
        assert table.find("alice", "x" * 32_000 + str(number), "", NO_CLAIMS) is None
    names = [client_id for _, client_id, *_ in table._found]
    assert 0 < sum(map(len, names)) <= MAX_FOUND_CHARACTERS
    assert names[-1].endswith("x399")


NAMES = st.text("ab*?[\n", max_size=9)
PATTERNS = st.text("ab*?[", min_size=1, max_size=9)


@given(PATTERNS, NAMES)
def test_patterns_are_those_of_a_shell(pattern, name):
    assert matches(rule(client_id=pattern), client_id=name) is fnmatchcase(name, pattern.replace("[", "[[]"))


@given(PATTERNS, PATTERNS, NAMES)
def test_covering_rule_matches_whatever_the_other_matches(pattern, other, name):
    if covers(rule(client_id=pattern), rule(client_id=other)) and matches(rule(client_id=other), client_id=name):
        assert matches(rule(client_id=pattern), client_id=name)


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (rule(user="*"), rule(user="a", client_id="b", ip="10.0.0.0/8"), True),
        (rule(user="*"), rule(client_id="b"), True),
        (rule(user="**"), rule(client_id="b"), True),
        (rule(user="?*"), rule(client_id="b"), False),
        (rule(user="a*"), rule(client_id="b"), False),
        (rule(user="a*"), rule(user="ab*"), True),
        (rule(user="ab*"), rule(user="a*"), False),
        (rule(user="a?*"), rule(user="a*?"), True),
        (rule(user="a?"), rule(user="a*"), False),
        (rule(user="a*"), rule(user="a"), True),
        (rule(user="a"), rule(user="a"), True),
        (rule(user="a", client_id="b"), rule(user="a"), False),
        (rule(user="*a" * 14 + "*b"), rule(user="a" * 60), False),  # with backtracking, this one takes years
        (rule(user="[a*"), rule(user="[ab"), True),
        (rule(user="[!a]"), rule(user="b"), False),
        (rule(user="a"), rule(user="a", max_lag=5), True),
        (rule(user="a", max_lag=5), rule(user="a"), False),
        (rule(user="a", max_lag=5), rule(user="a", max_lag=6), True),
        (rule(user="a", max_lag=6), rule(user="a", max_lag=5), False),
        (rule(claims=PAYMENTS), rule(claims={*PAYMENTS, ("a", "1")}), True),
        (rule(claims={*PAYMENTS, ("a", "1")}), rule(claims=PAYMENTS), False),
        (rule(ip="10.0.0.0/8"), rule(ip="10.1.0.0/16"), True),
        (rule(ip="10.1.0.0/16"), rule(ip="10.0.0.0/8"), False),
        (rule(ip="0.0.0.0/0"), rule(ip="::/0"), False),
        (rule(ip="fd00::/8"), rule(ip="fd00::1"), True),
    ],
)
def test_rule_covers_narrower_rules(first, second, expected):
    assert covers(first, second) is expected


def test_claims_are_texts_and_elements_of_lists():
    payload = {"sub": "alice", "exp": 1_700_000_000, "groups": ["payments", 7, "staff"], "realm": {"roles": ["x"]}, "ok": True}
    assert claims_of(payload) == {("sub", "alice"), ("groups", "payments"), ("groups", "staff")}


def test_longest_token_may_be_full_of_groups():
    groups = [str(UUID(int=number)) for number in range(MAX_CLAIMS)]
    assert len(json.dumps({"groups": groups})) * 4 / 3 > MAX_CLAIMS_BYTES
    assert ("groups", groups[-1]) in claims_of({"groups": groups})


def test_claims_of_one_token_are_not_kept():
    assert claims_of({"jti": "4711", "nonce": "abc", "sub": "alice"}) == {("sub", "alice")}


def test_table_remembers_claims_of_rules_only():
    table = GroupTable([Group("payments", (rule(claims=PAYMENTS),))])
    for number in range(5):
        assert table.find("alice", "a", "", PAYMENTS | {("sid", str(number))}) == "payments"
    assert len(table._found) == 1


def test_claims_of_a_connection_are_bounded():
    long = "x" * (MAX_CLAIM_CHARACTERS + 1)
    assert claims_of({"long": long, long: "a", "list": [long]}) == NO_CLAIMS
    assert len(claims_of({"groups": [str(number) for number in range(10 * MAX_CLAIMS)]})) == MAX_CLAIMS


def test_rule_is_shown_with_its_keys():
    shown = str(rule("alice", "pay-*", PAYMENTS, "10.0.0.0/8"))
    assert shown == "user=alice, client-id=pay-*, claim groups=payments, ip=10.0.0.0/8"


LANES = GroupTable(
    [
        Group("far", (rule(max_lag=1_000),)),
        Group("jobs", (rule(client_id="job-*", max_lag=100),)),
        Group("pay", (rule(client_id="pay-*"),)),
        Group("near", (rule(max_lag=10),)),
    ]
)


@pytest.mark.parametrize(
    ("client_id", "limits", "by_limit"),
    [
        ("job-1", (10, 100, 1_000), {0: None, 10: "near", 100: "jobs", 1_000: "far", ANY_LAG: "far"}),
        ("pay-1", (1_000,), {0: "pay", 10: "pay", 1_000: "far"}),
        ("other", (10, 1_000), {0: None, 100: "near", 1_000: "far"}),
    ],
)
def test_passed_limit_decides_about_the_group(client_id, limits, by_limit):
    assert LANES.lag_limits("alice", client_id, "", NO_CLAIMS) == limits
    assert {behind: LANES.find("alice", client_id, "", NO_CLAIMS, behind) for behind in by_limit} == by_limit


def test_client_without_a_matching_lag_rule_has_no_limits():
    table = GroupTable([Group("jobs", (rule(client_id="job-*", ip="10.0.0.0/8", max_lag=100),))])
    assert table.lag_limits("alice", "job-1", "10.0.0.1", NO_CLAIMS) == (100,)
    for client_id, ip in [("job-1", "11.0.0.1"), ("pay-1", "10.0.0.1"), ("job-1", "")]:
        assert table.lag_limits("alice", client_id, ip, NO_CLAIMS) == ()


@pytest.mark.parametrize(
    ("lag", "before", "expected"),
    [
        (0, 0, 0),
        (100, 0, 0),
        (101, 0, 100),
        (1_001, 0, 1_000),
        (1_000, 100, 100),
        (100, 1_000, 1_000),
        (99, 1_000, 100),
        (10, 1_000, 100),
        (10, 100, 100),
        (9, 1_000, 0),
        (5, ANY_LAG, 0),
    ],
)
def test_consumer_falls_back_at_a_tenth_of_a_limit(lag, before, expected):
    assert passed_limit(lag, (100, 1_000), before) == expected


@pytest.mark.parametrize(
    ("pattern", "other", "expected"),
    [
        ("job-?", "job-1", True),
        ("job-?", "job-?", True),
        ("job-?", "job-*", False),
        ("job-?", "job-12", False),
        ("job-*", "job-??", True),
        ("job-?*", "job-*?", True),
        ("job", "job.", False),
        ("j.b", "job", False),
    ],
)
def test_pattern_covers_names_that_it_surely_matches(pattern, other, expected):
    assert covers(rule(client_id=pattern), rule(client_id=other)) is expected


def test_claim_of_the_longest_length_counts():
    longest, longer = "x" * MAX_CLAIM_CHARACTERS, "x" * (MAX_CLAIM_CHARACTERS + 1)
    assert claims_of({"groups": [longest, longer]}) == {("groups", longest)}


def test_rule_names_only_the_parts_that_it_has():
    assert str(rule(user="u")) == "user=u"
    assert str(rule(ip="10.0.0.0/8")) == "ip=10.0.0.0/8"
