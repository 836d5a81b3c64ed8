"""`request_rates`: requests per second by the API's name, on entities and groups."""

from pathlib import Path

import pytest

from gateway.config.load import kept_config, parse_kept_config
from gateway.config.reload import plan
from gateway.quotas.kinds.request_rates import BY_API
from protocol.api_keys import APIS
from tests.gateway.config.test_group_rows import groups
from tests.gateway.config.texts import check_problem, entities, parsed, problems_of
from tests.protocol.codec import KEYS

SCRAPER = "{client-id: scraper, request_rate: 50, request_rates: {Metadata: 5, OffsetCommit: 0.5}}"
LIMITS = {"request_rate": 50, "request_rates.Metadata": 5, "request_rates.OffsetCommit": 0.5}


def test_entity_has_a_limit_for_each_api() -> None:
    assert parsed(entities(SCRAPER)).quotas.entities[0].limits == LIMITS


def test_group_has_a_limit_for_each_api() -> None:
    (group,) = parsed(groups(SCRAPER.replace("client-id: scraper", "name: a, match: [{user: b}]"))).quotas.groups
    assert group.limits == LIMITS


def test_rates_survive_the_way_to_a_worker() -> None:
    config = parsed(entities(SCRAPER) + "  groups: [{name: a, match: [{user: b}], request_rates: {Fetch: 7}}]\n")
    kept = parse_kept_config(kept_config(config), source="weir.yaml", directory=Path())
    assert kept.quotas == config.quotas
    assert parsed(config.model_dump_json()).quotas == config.quotas


def test_every_api_of_a_broker_has_kafkas_name() -> None:
    kafkas = {name for name, kind in BY_API.items() if APIS[kind.api].key in KEYS}
    assert {"Metadata", "OffsetForLeaderEpoch", "AddPartitionsToTxn", "ConsumerGroupHeartbeat", "ShareFetch"} <= kafkas
    limits = ", ".join(f"{name}: 1" for name in BY_API)
    assert len(parsed(entities(f"{{user: a, request_rates: {{{limits}}}}}")).quotas.entities[0].limits) == len(BY_API)


def test_reload_names_the_changed_rate() -> None:
    after = parsed(entities(SCRAPER.replace("Metadata: 5", "Metadata: 6")))
    change = plan(parsed(entities(SCRAPER)), after).changes
    assert "request_rates.Metadata 6" in str(change)


ENTITY = "quotas.entities[0].request_rates"


@pytest.mark.parametrize(
    ("rates", "key", "words"),
    [
        ("{Metdata: 5}", ".Metdata", ["is not an API of Kafka", "value 5, line 5", "did you mean Metadata?"]),
        ("{offset_commit: 5}", ".offset_commit", ["did you mean OffsetCommit?"]),
        ("{Nonsense: 5}", ".Nonsense", ["is not an API of Kafka", "{Metadata: 5, OffsetCommit: 20}"]),
        ("{3: 5}", ".3", ["is not an API of Kafka"]),
        ("{ApiVersions: 5}", ".ApiVersions", ["before Weir knows their user", "value 5, line 5", "remove it"]),
        ("{SaslHandshake: 5}", ".SaslHandshake", ["a muted client cannot log in"]),
        ("{SaslAuthenticate: 5}", ".SaslAuthenticate", ["a muted client cannot log in"]),
        ("{LeaderAndIsr: 5}", ".LeaderAndIsr", ["brokers send it to each other"]),
        ("{Metadata: 0}", ".Metadata", ["must be above 0", "value 0"]),
        ('{Metadata: "5"}', ".Metadata", ["must be a number, not text"]),
        ("{Metadata: true}", ".Metadata", ["must be a number"]),
        ("{Metadata: }", ".Metadata", ["is empty"]),
        ("{Metadata: .inf}", ".Metadata", ["must be"]),
        ("{Metadata: {ceiling: 5}}", ".Metadata", ["must be a number"]),
        ("{}", "", ["is empty", "{Metadata: 5, OffsetCommit: 20}"]),
        ("", "", ["is empty", "{Metadata: 5, OffsetCommit: 20}"]),
        ("5", "", ["is not a section of APIs and rates", "value 5"]),
    ],
)
def test_bad_rates_are_refused(rates: str, key: str, words: list[str]) -> None:
    check_problem(entities(f"{{user: a, request_rates: {rates}}}"), ENTITY + key, *words)


def test_each_bad_api_is_reported() -> None:
    problems = problems_of(entities("{user: a, request_rates: {Metdata: 5, Fetch: 0, Produce: 1}}"))
    assert [problem.key for problem in problems] == [f"{ENTITY}.Metdata", f"{ENTITY}.Fetch"]


def test_address_has_no_request_rates() -> None:
    check_problem(entities("{ip: 10.0.0.1, request_rates: {Metadata: 5}}"), "quotas.entities[0]", "request_rates.Metadata")
