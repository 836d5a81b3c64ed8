"""`quotas.groups`: its rows, and the refusal of rows that can't be meant."""

from ipaddress import ip_network
from pathlib import Path

import pytest

from gateway.config import checks
from gateway.config.load import kept_config, parse_kept_config
from gateway.config.places import Places
from gateway.config.reload import plan
from gateway.config.summary import summary
from gateway.quotas.groups import Group, GroupRule
from gateway.quotas.rule_cover import RuleCover
from tests.gateway.config.texts import MINIMAL, check_problem, entities, parsed, problems_of


def groups(*rows: str) -> str:
    return MINIMAL + "quotas:\n  groups:\n" + "".join(f"    - {row}\n" for row in rows)


ALL_KEYS = groups(
    '{name: payments, match: [{user: "pay-*", client-id: etl}, {claim: {groups: payments}}, {ip: 10.20.0.0/16}],'
    " producer_byte_rate: 1048576, consumer_byte_rate: {ceiling: 2097152}, request_rate: 100, controller_mutation_rate: 0.5}",
    '{name: rest, match: [{user: "*"}]}',
)


def test_groups_have_rules_and_ceilings() -> None:
    payments, rest = parsed(ALL_KEYS).quotas.groups
    assert payments.rules == (
        GroupRule("pay-*", "etl"),
        GroupRule(claims=frozenset({("groups", "payments")})),
        GroupRule(network=ip_network("10.20.0.0/16")),
    )
    assert payments.limits == {
        "producer_byte_rate": 1048576,
        "consumer_byte_rate": 2097152,
        "request_rate": 100,
        "controller_mutation_rate": 0.5,
    }
    assert rest == Group("rest", (GroupRule(user="*"),))
    assert (payments.line, rest.line) == (5, 6)


def test_snake_case_key_of_client_id_is_understood() -> None:
    (group,) = parsed(groups("{name: a, match: [{client_id: b}]}")).quotas.groups
    assert group.rules == (GroupRule(client_id="b"),)


NIGHT = '{from: "22:00", to: "06:00", zone: UTC}'


def timed_tree(*whole: str, child: str = "") -> str:
    rows = [f"{{name: all, producer_byte_rate: 104857600, {when}}}" for when in whole]
    return groups(*rows, *(f"{{name: {name}, parent: all, match: [{{user: {name}}}], {child}}}" for name in "ab"))


def test_parent_that_counts_for_a_time_gets_a_warning() -> None:
    (warning,) = parsed(timed_tree(f"schedule: {NIGHT}")).warnings()
    assert warning == (
        "quotas.groups[0].schedule: all counts only in mon-sun 22:00-06:00 UTC. At other times, the groups below it (a, b) have"
        " no limits but their own ceilings — add a row of all without schedule and until"
    )
    (warning,) = parsed(timed_tree("until: 2099-12-01T06:00Z", f"schedule: {NIGHT}")).warnings()
    assert warning.startswith("quotas.groups[0].until: all counts only until 2099-12-01T06:00Z or in 1 other time. ")


def test_name_of_a_timed_parent_is_suggested() -> None:
    text = timed_tree(f"schedule: {NIGHT}").replace("parent: all", "parent: al", 1)
    check_problem(text, "quotas.groups[1].parent", "did you mean all?")


def test_parent_with_a_lasting_row_gets_no_warning() -> None:
    assert parsed(timed_tree(f"schedule: {NIGHT}", "")).warnings() == []
    assert parsed(timed_tree(f"schedule: {NIGHT}", child=f"schedule: {NIGHT}")).warnings() == []


def test_groups_survive_the_way_to_a_worker() -> None:
    config = parsed(ALL_KEYS)
    kept = parse_kept_config(kept_config(config), source="weir.yaml", directory=Path())
    assert kept.quotas.groups == config.quotas.groups
    assert [group.line for group in kept.quotas.groups] == [5, 6]


def test_place_of_a_groups_limit_is_its_line() -> None:
    assert Places(parsed(ALL_KEYS), "weir.yaml").of_entity("group=payments", "file") == "weir.yaml:5"


def test_summary_counts_groups() -> None:
    assert "groups (2: 1 with a ceiling, 1 without a limit; enforced)" in "\n".join(summary(parsed(ALL_KEYS)))
    assert not any("quotas.entities: is empty" in warning for warning in parsed(ALL_KEYS).warnings())


def test_summary_describes_a_tree() -> None:
    rows = (
        "{name: all, producer_byte_rate: 104857600}",
        "{name: inner, parent: all, producer_byte_rate: {weight: 2}}",
        "{name: a, parent: inner, match: [{user: a}], producer_byte_rate: {guarantee: 20971520}}",
        "{name: b, parent: all, match: [{user: b}], schedule: " + NIGHT + "}",
        "{name: b, parent: all, match: [{user: b}]}",
        "{name: c, match: [{user: c}]}",
    )
    assert "groups (5 on 3 levels: 1 with a ceiling, 1 with a guarantee, 1 without a limit; enforced)" in "\n".join(
        summary(parsed(groups(*rows)))
    )


def test_small_quota_of_a_group_gets_a_warning() -> None:
    (warning,) = parsed(groups("{name: a, match: [{user: b}], producer_byte_rate: 1000}")).warnings()
    assert warning.startswith("quotas.groups[0].producer_byte_rate: 1000 bytes/s for group=a: ")


def test_star_in_an_entitys_name_points_to_groups() -> None:
    (warning,) = parsed(entities("{client-id: job-*, producer_byte_rate: 104857600}")).warnings()
    assert "write a group with this pattern in quotas.groups" in warning


def test_group_without_a_ceiling_gets_a_warning() -> None:
    (warning,) = parsed(groups("{name: a, match: [{user: b}]}")).warnings()
    assert warning.startswith("quotas.groups[0]: a has no ceiling, so it only keeps its members out of later groups")


def test_principal_in_place_of_a_user_gets_a_warning() -> None:
    (warning,) = parsed(groups('{name: a, match: [{user: "User:b*"}], request_rate: 5}')).warnings()
    assert warning == ('quotas.groups[0].match[0].user: "User:b*" is a principal, and groups have the plain name — write b*')


@pytest.mark.parametrize(
    ("rows", "key", "words"),
    [
        (["{match: [{user: x}]}"], "[0].name", ["is missing"]),
        (['{name: "", match: [{user: x}]}'], "[0].name", ["is empty"]),
        (["{name: 5, match: [{user: x}]}"], "[0].name", ["value 5, line 5", "put it in quotes"]),
        (["{name: <default>, match: [{user: x}]}"], "[0].name", ["give the group another name"]),
        (["{name: a, match: [{user: x}]}", "{name: a, match: [{user: y}]}"], "[1].name", ["quotas.groups[0]", "line 6"]),
        (["{name: a}"], "[0]", ["has no match, and no group below it", "add match"]),
        (["{name: a, match: []}"], "[0].match", ["is empty"]),
        (["{name: a, match: {user: x}}"], "[0].match", ["must be a list"]),
        (["{name: a, match: [{}]}"], "[0].match[0]", ["is an empty rule", 'user: "*" is every client']),
        (["{name: a, match: [{user: }]}"], "[0].match[0].user", ["is empty"]),
        (['{name: a, match: [{client-id: ""}]}'], "[0].match[0].client-id", ["is empty"]),
        (["{name: a, match: [{usr: x}]}"], "[0].match[0].usr", ["did you mean user?"]),
        (
            ["{name: a, match: [{ip: 10.0.0.300/8}]}"],
            "[0].match[0].ip",
            ["is not an address or a network", '"10.0.0.300/8", line 5'],
        ),
        (
            ["{name: a, match: [{ip: 10.0.0.1/8}]}"],
            "[0].match[0].ip",
            ["10.0.0.0/8 for the whole network", "10.0.0.1 for this address"],
        ),
        (["{name: a, match: [{ip: 10}]}"], "[0].match[0].ip", ["is not an address or a network"]),
        (["{name: a, match: [{claim: groups}]}"], "[0].match[0].claim", ["must be a section"]),
        (["{name: a, match: [{claim: {}}]}"], "[0].match[0].claim", ["is empty"]),
        (["{name: a, match: [{claim: {groups: 7}}]}"], "[0].match[0].claim.groups", ["put it in quotes"]),
        (["{name: a, match: [{claim: {jti: x}}]}"], "[0].match[0].claim", ["has jti", '{"jti": "x"}, line 5', "such as sub"]),
        (["{name: a, match: [{claim: {sub: a, nonce: x}}]}"], "[0].match[0].claim", ["has nonce", "no rule can match"]),
        (["{name: a, match: [{user: x}, {user: x}]}"], "[0].match[1]", ["quotas.groups[0].match[0] stands before it"]),
        (
            ['{name: a, match: [{user: "*"}]}', "{name: b, match: [{client-id: y}]}"],
            "[1].match[0]",
            ["can never match", '{"client-id": "y"}, line 6', "move the narrower rule up"],
        ),
        (["{name: a, match: [{user: x}], producer_byte_rate: 0}"], "[0].producer_byte_rate", ["above 0"]),
        (["{name: a, match: [{user: x}], producer_byte_rate: 1.5}"], "[0].producer_byte_rate", ["a whole number"]),
        (["{name: a, match: [{user: x}], producer_byte_rate: fast}"], "[0].producer_byte_rate", ["a whole number"]),
        (["{name: a, match: [{user: x}], producer_byte_rate: }"], "[0].producer_byte_rate", ["is empty"]),
        (["{name: a, match: [{user: x}], producer_byte_rate: {}}"], "[0].producer_byte_rate", ["is empty", "or weight"]),
        (["{name: a, match: [{user: x}], producer_byte_rate: {ceiling: -1}}"], "[0].producer_byte_rate.ceiling", ["above 0"]),
        (
            ["{name: a, match: [{user: x}], producer_byte_rate: {ceiling: 2, guarantee: 3}}"],
            "[0].producer_byte_rate",
            ["has the guarantee 3 above its ceiling 2", "line 5", "lower the guarantee"],
        ),
        (["{name: a, match: [{user: x}], request_rate: {weight: 0}}"], "[0].request_rate.weight", ["at least 0.001"]),
        (["{name: a, match: [{user: x}], request_rate: {wieght: 3}}"], "[0].request_rate.wieght", ["did you mean weight?"]),
        (["{name: a, parent: b, match: [{user: x}]}"], "[0].parent", ['"b", line 5', "add a group of this name"]),
        (["{name: a, parent: , match: [{user: x}]}"], "[0].parent", ["is empty"]),
        (["{name: all, match: [{user: y}]}", "{name: a, parent: al, match: [{user: x}]}"], "[1].parent", ["did you mean all?"]),
        (["{name: a, parent: a}"], "[0].parent", ["puts a below itself: a < a"]),
        (
            ["{name: a, match: [{user: x}]}", "{name: b, parent: a, match: [{user: y}]}"],
            "[0].match",
            ["has clients, and b is below it", "line 5"],
        ),
        (
            ["{name: a, shadow: {request_rate: 5}}", "{name: b, parent: a, match: [{user: y}]}"],
            "[0].shadow",
            ["a has groups in place of clients", "move it to the groups below"],
        ),
        (
            [
                "{name: top, producer_byte_rate: 100}",
                "{name: mid, parent: top, producer_byte_rate: {guarantee: 30}}",
                "{name: a, parent: mid, match: [{user: x}], producer_byte_rate: {guarantee: 60}}",
                "{name: b, parent: top, match: [{user: y}], producer_byte_rate: {guarantee: 41}}",
            ],
            "[0].producer_byte_rate",
            ["101 in all (mid 60, b 41)", "value 100, line 5", "raise the ceiling"],
        ),
        (
            ["{name: a, match: [{catch_up: false}]}"],
            "[0].match[0].catch_up",
            ["rules without it apply at any lag", "remove it"],
        ),
        (["{name: a, match: [{catch_up: }]}"], "[0].match[0].catch_up", ["is empty"]),
        (["{name: a, match: [{catchup: true}]}"], "[0].match[0].catchup", ["did you mean catch_up?"]),
        (
            ["{name: a, match: [{user: x, max_lag_records: 5}]}"],
            "[0].match[0]",
            ["has max_lag_records without catch_up", "add catch_up: true"],
        ),
        (
            ["{name: a, match: [{catch_up: true, max_lag_records: 0}]}"],
            "[0].match[0].max_lag_records",
            ["must be at least 1", "value 0, line 5"],
        ),
        (
            ["{name: a, match: [{catch_up: true}]}", "{name: b, match: [{catch_up: true, max_lag_records: 200000}]}"],
            "[1].match[0]",
            ["can never match", "move the narrower rule up"],
        ),
        (["{name: a, match: [{user: x}], producer_rate: 5}"], "[0].producer_rate", ["did you mean producer_byte_rate?"]),
        (["{name: a, match: [{user: x}], request_percentage: 5}"], "[0].request_percentage", ["broker threads"]),
    ],
)
def test_bad_group_is_refused(rows: list[str], key: str, words: list[str]) -> None:
    check_problem(groups(*rows), f"quotas.groups{key}", *words)


def test_cycle_of_groups_is_refused() -> None:
    rows = ("{name: a, parent: b}", "{name: b, parent: a}", "{name: c, parent: b, match: [{user: x}]}")
    problems = problems_of(groups(*rows))
    assert [problem.key for problem in problems] == [f"quotas.groups[{index}].parent" for index in range(2)]
    assert "puts a below itself: a < b < a" in problems[0].message


def test_bad_group_hides_none_of_its_relatives() -> None:
    check_problem(
        groups("{name: a, request_rate: 5}", "{name: b, parent: a, match: [{user: x}], request_rate: 0}"),
        "quotas.groups[1].request_rate",
        "above 0",
    )


def test_tree_of_too_many_levels_is_refused() -> None:
    rows = ["{name: g0, request_rate: 5}", *(f"{{name: g{index}, parent: g{index - 1}}}" for index in range(1, 8))]
    check_problem(
        groups(*rows, "{name: g8, parent: g7, match: [{user: x}]}"), "quotas.groups[8].parent", "more than 7 levels below"
    )


TREE = groups(
    "{name: all, producer_byte_rate: 104857600}",
    "{name: a, parent: all, match: [{user: a}], producer_byte_rate: {guarantee: 20971520, ceiling: 83886080, weight: 3}}",
    "{name: b, parent: all, match: [{user: b}], consumer_byte_rate: {weight: 2}}",
)


def test_groups_of_a_tree_have_guarantees_and_weights() -> None:
    whole, a, b = parsed(TREE).quotas.groups
    assert (whole.parent, whole.rules, whole.limits) == (None, (), {"producer_byte_rate": 104857600})
    assert (a.parent, a.guarantees, a.limits) == (
        "all", {"producer_byte_rate": 20971520}, {"producer_byte_rate": 83886080},
    )  # fmt: skip
    assert (a.weights, b.weights) == ({"producer_byte_rate": 3}, {"consumer_byte_rate": 2})


def test_tree_survives_the_way_to_a_worker() -> None:
    config = parsed(TREE)
    assert parse_kept_config(kept_config(config), source="weir.yaml", directory=Path()).quotas.groups == config.quotas.groups


def test_weight_without_a_capacity_above_gets_a_warning() -> None:
    (warning,) = parsed(TREE).warnings()
    assert warning == (
        "quotas.groups[2].consumer_byte_rate: no group above b has a ceiling of consumer_byte_rate to divide, so weight has no"
        " effect — give all a ceiling"
    )


@pytest.mark.parametrize(("guarantee", "warned"), [(60_000_000, True), (59_000_000, False)])
def test_group_beside_full_guarantees_gets_a_warning(guarantee: int, warned: bool) -> None:
    rows = (
        "{name: all, producer_byte_rate: 100000000}",
        f"{{name: a, parent: all, match: [{{user: a}}], producer_byte_rate: {{guarantee: {guarantee}}}}}",
        "{name: b, parent: all, match: [{user: b}], producer_byte_rate: {guarantee: 40000000}}",
        "{name: c, parent: all, match: [{user: c}], producer_byte_rate: {weight: 1}}",
    )
    warnings = parsed(f"{MINIMAL}quotas:\n  groups: [{', '.join(rows)}]\n").warnings()
    text = "quotas.groups[3]: the guarantees beside c fill the producer_byte_rate of all, so c only gets what they leave"
    assert [warning.startswith(text) for warning in warnings] == [True] * warned


def test_reload_lists_a_changed_place_in_the_tree() -> None:
    after = parsed(TREE.replace("weight: 3", "weight: 4"))
    terms = "below all; user=a; producer_byte_rate 83886080; producer_byte_rate guarantee 20971520; producer_byte_rate "
    assert plan(parsed(TREE), after).changes == (f"quotas.groups: changed a ({terms}weight 3 -> {terms}weight 4)",)


@pytest.mark.parametrize("value", ["7", "{name: a}", "[7]", ""])
def test_groups_are_a_list_of_sections(value: str) -> None:
    (problem,) = problems_of(f"{MINIMAL}quotas:\n  groups: {value}\n")
    assert problem.key.startswith("quotas.groups")
    assert problem.line == 4


def test_rules_of_all_groups_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "MAX_RULES", 2)
    check_problem(
        groups("{name: a, match: [{user: x}, {user: y}, {user: z}]}"), "quotas.groups[0].match[2]", "beyond the 2 rules"
    )


def test_each_rule_is_compiled_once_for_all_comparisons(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = []
    monkeypatch.setattr(checks, "RuleCover", lambda rule: compiled.append(rule) or RuleCover(rule))
    parsed(groups(*(f'{{name: g{number}, match: [{{client-id: "*team{number:02}*"}}]}}' for number in range(30))))
    assert len(compiled) == 30


def test_reload_lists_changed_groups() -> None:
    before = parsed(groups("{name: a, match: [{user: x}], request_rate: 5}", "{name: b, match: [{user: y}]}"))
    rows = ("{name: c, match: [{ip: 10.0.0.0/8}]}", "{name: a, match: [{user: x}], request_rate: 6}")
    planned = plan(before, parsed(groups(*rows)))
    assert planned.problems == ()
    assert planned.changes == (
        "quotas.groups: added c (ip=10.0.0.0/8)",
        "quotas.groups: changed a (user=x; request_rate 5 -> user=x; request_rate 6)",
        "quotas.groups: removed b (user=y)",
    )


def test_reload_notices_another_order() -> None:
    rows = ("{name: a, match: [{user: x}]}", "{name: b, match: [{client-id: y}]}")
    assert plan(parsed(groups(*rows)), parsed(groups(*rows[::-1]))).changes == ("quotas.groups: the order is now b, a",)


LANE = groups(
    '{name: replays, match: [{catch_up: true}, {user: "b*", catch_up: true, max_lag_records: 500}],'
    " consumer_byte_rate: 2097152}"
)


def test_rule_for_consumers_that_catch_up() -> None:
    config = parsed(LANE)
    (replays,) = config.quotas.groups
    assert replays.rules == (GroupRule(max_lag=100_000), GroupRule("b*", max_lag=500))
    assert [str(rule) for rule in replays.rules] == [
        "catch_up, max_lag_records=100000",
        "user=b*, catch_up, max_lag_records=500",
    ]
    kept = parse_kept_config(kept_config(config), source="weir.yaml", directory=Path())
    assert kept.quotas.groups == config.quotas.groups
    assert not any("catch_up" in warning for warning in config.warnings())


def test_lane_without_a_limit_for_consumers_gets_a_warning() -> None:
    (warning,) = parsed(groups("{name: a, match: [{catch_up: true}], producer_byte_rate: 104857600}")).warnings()
    assert warning.startswith("quotas.groups[0].match[0].catch_up: a has no consumer_byte_rate, so consumers that catch up are")
    tree = groups("{name: all, consumer_byte_rate: 104857600}", "{name: a, parent: all, match: [{catch_up: true}]}")
    assert parsed(tree).warnings() == []
