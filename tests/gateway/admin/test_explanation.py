"""`weir explain`: offline from the config, and from a running gateway."""

import asyncio
import json
from copy import deepcopy
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from gateway.admin.admin_client import AdminUnreachableError
from gateway.admin.explain_table import ask_explanation, print_explanation
from gateway.admin.explanation import ClientNames, Explanations, with_use
from gateway.admin.rows import described
from gateway.admin.server import AdminServer
from gateway.admin.view import AdminView
from gateway.command_parser import DEFAULT_ADMIN
from gateway.commands import _parser, main
from gateway.config.load import parse_config
from gateway.config.places import Places
from gateway.quotas.entity import ClientQuotaEntity, DynamicQuotas
from gateway.steps import at_once
from loadtest.testkit.kafka import free_port
from tests.gateway.features.notify.rows import used

CONFIG = """\
upstream: {bootstrap_servers: ["127.0.0.1:9092"]}
listeners:
  - name: clients
    bootstrap_port: 29092
    max_connections: 500
quotas:
  entities:
    - {user: "<default>", producer_byte_rate: 1048576, consumer_byte_rate: 2097152}
    - {user: alice, producer_byte_rate: 524288, request_rate: 50}
    - {user: bob, exempt: [rates, topics]}
    - {ip: "<default>", connection_creation_rate: 20}
  topics: {total.bytes.in.per.sec.threshold: 10000000}
connections:
  max_per_ip: 50
  max_per_ip_overrides: {"10.0.0.9": 7}
"""


OF_BROKERS = "The brokers may throttle the client as well, by quotas of their own: weir quotas import shows these."


def explained(path: Path, capsys: pytest.CaptureFixture[str], *options: str) -> dict[str, Any]:
    assert main(["explain", "--config", str(path), "--json", *options]) == 0
    return json.loads(capsys.readouterr().out)  # type: ignore[no-any-return]


def test_each_quota_names_entity_and_line(config_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answer = explained(config_file, capsys, "--user", "alice", "--client-id", "etl", "--ip", "10.0.0.7")
    found = {each["key"]: (each["limit"], each["entity"], each["set_in"]) for each in answer["quotas"]}
    expected = {
        "producer_byte_rate": (524288, "user=alice", f"{config_file}:9"),
        "consumer_byte_rate": (2097152, "user=<default>", f"{config_file}:8"),
        "controller_mutation_rate": (None, "", ""),
        "connection_creation_rate": (20, "ip=<default>", f"{config_file}:11"),
        "request_rate": (50, "user=alice", f"{config_file}:9"),
    }
    assert {key: found.get(key) for key in expected} == expected
    assert answer["binds"][0] == (
        "request_rate binds while the average Produce request is below 10.2 KiB, producer_byte_rate above that size."
    )


def test_api_with_a_rate_has_a_line(config_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config_file.write_text(CONFIG.replace("request_rate: 50", "request_rate: 50, request_rates: {Metadata: 5}"))
    answer = explained(config_file, capsys, "--user", "alice")
    keys = [each["key"] for each in answer["quotas"] if each["key"].startswith("request_rate")]
    assert keys == ["request_rate", "request_rates.Metadata"]
    assert "request_rates.Metadata binds at 5.0 requests/s of user=alice." in answer["binds"]


def test_scope_broker_is_explained(config_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config_file.write_text(CONFIG.replace("quotas:\n", "quotas:\n  scope: broker\n"))
    answer = explained(config_file, capsys, "--user", "alice", "--ip", "10.0.0.7")
    at_each_broker = {each["key"]: each["at_each_broker"] for each in answer["quotas"]}
    assert at_each_broker.pop("controller_mutation_rate") is False
    assert set(at_each_broker.values()) == {True}
    assert main(["explain", "--config", str(config_file), "--user", "alice"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "all clients of user alice, at each broker" in out
    assert "10,000,000 bytes/s at their broker" in out


def test_use_is_explained_for_each_broker(config_file: Path) -> None:
    config_file.write_text(CONFIG.replace("quotas:\n", "quotas:\n  scope: broker\n"))
    places = Places(parse_config(config_file.read_text(), source="weir.yaml"), "weir.yaml")
    rows = [used(ratio, broker=broker, throttle_left=left) for broker, ratio, left in (("2", 1.5, 3.0), ("1", 0.2, 0.0))]
    answer = with_use(Explanations(places, {}).of(ClientNames("alice")), at_once(described(rows, places, 0.0)))
    found = [each for each in answer["quotas"] if each["key"] == "producer_byte_rate"]
    assert [(each["use"]["broker"], each["use"]["used_ratio"]) for each in found] == [("1", 0.2), ("2", 1.5)]
    assert "because it has used more than 512 KiB/s of user=alice at broker 2." in answer["binds"][0]
    console = Console(file=StringIO(), width=180)
    print_explanation(answer, console)
    text = " ".join(console.file.getvalue().split())  # type: ignore[attr-defined]
    assert "all clients of user alice, at broker 1" in text
    assert text.count("less specific than user=alice") == 1


@pytest.mark.parametrize(
    ("left", "says"),
    [
        (3.0, "because it has used more than the present share of 512 KiB/s of group=pay."),
        (0.0, "producer_byte_rate is the nearest: 120% of the present share of 512 KiB/s of group=pay is used"),
    ],
)
def test_use_of_a_group_with_a_parent_is_of_its_share(config_file: Path, left: float, says: str) -> None:
    groups = """
  groups:
    - {name: whole, producer_byte_rate: 1048576}
    - {name: pay, parent: whole, match: [{user: carol}], producer_byte_rate: 524288}
"""
    places = Places(parse_config(CONFIG.replace("quotas:", f"quotas:{groups.rstrip()}"), source="weir.yaml"), "weir.yaml")
    rows = [used(1.2, user="", group="pay", level="group=pay", throttle_left=left)]
    answer = with_use(Explanations(places, {}).of(ClientNames("carol")), at_once(described(rows, places, 0.0)))
    assert says in answer["binds"][0]


@pytest.mark.parametrize(
    ("ip", "limit", "place"), [("10.0.0.7", 50, ":14"), ("10.0.0.9", 7, ":15")], ids=["common", "override"]
)
def test_limits_on_connections_name_their_lines(
    ip: str, limit: int, place: str, config_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    address, listener = explained(config_file, capsys, "--ip", ip)["connections"]
    assert (address["scope"], address["limit"], address["set_in"]) == (f"address {ip}", limit, f"{config_file}{place}")
    assert (listener["scope"], listener["limit"], listener["set_in"]) == ("listener clients", 500, f"{config_file}:5")


def test_limits_on_connections_of_a_user_are_explained(config_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    limits = "producer_byte_rate: 524288, max_connections: 9, connection_creation_rate: 3"
    config_file.write_text(CONFIG.replace("producer_byte_rate: 524288", limits))
    answer = explained(config_file, capsys, "--user", "alice", "--ip", "10.0.0.1")
    of_user = answer["connections"][0]
    assert (of_user["scope"], of_user["key"], of_user["limit"]) == ("user=alice", "max_connections", 9)
    assert of_user["set_in"] == f"{config_file}:9"
    rates = [quota for quota in answer["quotas"] if quota["kind"] == "connection"]
    assert [(rate["entity"], rate["limit"]) for rate in rates] == [("user=alice", 3), ("ip=<default>", 20)]
    assert "connection_creation_rate binds at 3.0 connections/s of user=alice." in answer["binds"]
    assert explained(config_file, capsys, "--user", "carol")["connections"][0]["key"] == "max_per_ip"


@pytest.mark.parametrize(
    ("user", "rows"),
    [("alice", ["user=alice"]), ("carol", [""])],
    ids=["limit of the user only", "no limit"],
)
def test_connection_rate_without_limit_has_one_row_at_most(
    user: str, rows: list[str], config_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = CONFIG.replace("request_rate: 50", "connection_creation_rate: 3")
    config_file.write_text(text.replace('    - {ip: "<default>", connection_creation_rate: 20}\n', ""))
    quotas = explained(config_file, capsys, "--user", user, "--ip", "10.0.0.1")["quotas"]
    assert [quota["entity"] for quota in quotas if quota["kind"] == "connection"] == rows


def test_exemptions_name_their_row(config_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answer = explained(config_file, capsys, "--user", "bob")
    assert all(quota["exempt"] for quota in answer["quotas"])
    assert answer["topics"]["exempt_by"] == f"user=bob ({config_file}:10)"
    assert answer["volumes"] is None
    assert answer["binds"] == ["No quota of requests or addresses applies, so none would bind.", OF_BROKERS]


@pytest.mark.parametrize(
    ("explicit", "words"),
    [("", "0 topics have"), ("orders: 5", "1 topic has"), ("orders: 5, clicks: 6", "2 topics have")],
    ids=["none", "one", "two"],
)
def test_number_of_explicit_thresholds_is_in_words(
    explicit: str, words: str, config_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    topics = f"10000000, bytes.in.per.sec.threshold: {{{explicit}}}}}\n"
    config_file.write_text(CONFIG.replace("10000000}\n", topics))
    assert main(["explain", "--config", str(config_file), "--user", "alice"]) == 0
    assert f" {words} an explicit threshold." in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(("options", "noted"), [((), True), (("--user", "alice"), False)], ids=["anonymous", "alice"])
@pytest.mark.parametrize(
    ("unnamed", "note"),
    [
        ("close", "Every listener requires a login with a name, so no client has this user. Give the user with --user."),
        ("anonymous", "Only clients whose mechanism hides the name, such as GSSAPI (Kerberos), have this user."),
    ],
)
def test_note_asks_for_a_user_if_each_listener_requires_a_login(
    unnamed: str, note: str, options: tuple[str, ...], noted: bool, config_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert explained(config_file, capsys)["notes"] == []
    config_file.write_text(CONFIG.replace("    max_connections: 500\n", f"    sasl: {{required: true, unnamed: {unnamed}}}\n"))
    notes = explained(config_file, capsys, *options)["notes"]
    assert [each[: len(note)] for each in notes] == [note] * noted


def test_quotas_of_the_api_are_not_in_the_file(config_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config_file.write_text(CONFIG + 'quota_admins: ["User:admin"]\n')
    (note,) = explained(config_file, capsys, "--user", "alice")["notes"]
    assert note.startswith(
        "Quotas that were set through the quota API are not in the file, and replace its values: give --admin"
    )


def test_file_is_explained_where_its_certificates_are_missing(config_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tls = "    tls: {cert: gateway.pem, key: gateway.key}\n"
    config_file.write_text(CONFIG.replace("    max_connections: 500\n", tls))
    assert explained(config_file, capsys, "--user", "alice")["client"]["user"] == "alice"


def test_text_shows_overruled_values(config_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "--config", str(config_file), "--user", "alice"]) == 0
    out = capsys.readouterr().out
    assert "Quotas of user alice, client-id (empty)" in out
    assert "less specific than user=alice" in out
    assert "all clients of user alice" in out


def test_both_config_and_gateway_are_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["explain", "--config", "weir.yaml", "--admin", "http://127.0.0.1:9644", "--user", "alice"])
    assert ended.value.code == 2
    assert "--admin/--url: not allowed with argument --config" in capsys.readouterr().err


def test_missing_gateway_is_named_with_the_other_source(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "--admin", f"http://127.0.0.1:{free_port()}", "--user", "alice"]) == 1
    assert capsys.readouterr().err.endswith("\nwithout a gateway: weir explain --config FILE\n")


def test_gateway_of_this_host_is_the_default() -> None:
    options = _parser().parse_args(["explain", "--user", "alice"])
    assert (options.config, options.admin) == (None, DEFAULT_ADMIN)


async def test_gateway_adds_current_use(server: AdminServer) -> None:
    answer = await ask_explanation(f"http://127.0.0.1:{server.port}", ClientNames("alice", "etl"))
    produce = next(quota for quota in answer["quotas"] if quota["kind"] == "produce")
    assert produce["use"]["throttle_left"] == pytest.approx(3.0)
    assert produce["set_in"] == "weir.yaml:6"
    assert answer["binds"][0].startswith("producer_byte_rate binds now since 2026-01-01T00:00:00.250Z: the client waits 3.0 s")
    assert OF_BROKERS not in answer["binds"]
    idle = await ask_explanation(f"http://127.0.0.1:{server.port}", ClientNames("bob", "app"))
    assert idle["binds"][-1] == OF_BROKERS
    console = Console(record=True, width=200)
    print_explanation(answer, console)
    assert "130%" in console.export_text()


@pytest.mark.parametrize(
    ("user", "beginnings"),
    [
        ("alcie", ["This gateway has seen no recent use by this client.", "producer_byte_rate binds at", "The brokers may"]),
        ("alice", ["producer_byte_rate binds now"]),
    ],
    ids=["misspelt", "alice"],
)
async def test_clients_without_recent_use_are_named_so(user: str, beginnings: list[str], server: AdminServer) -> None:
    answer = await ask_explanation(f"http://127.0.0.1:{server.port}", ClientNames(user, "etl"))
    assert [line[: len(begin)] for line, begin in zip(answer["binds"], beginnings, strict=True)] == beginnings


async def test_gateway_knows_quotas_of_the_api(server: AdminServer, view: AdminView, monkeypatch: pytest.MonkeyPatch) -> None:
    dynamic = {ClientQuotaEntity("alice"): {"consumer_byte_rate": 7.0}}
    object.__setattr__(view, "dynamic", lambda: dynamic)
    answer = await ask_explanation(f"http://127.0.0.1:{server.port}", ClientNames("alice", "etl"))
    fetch = next(quota for quota in answer["quotas"] if quota["kind"] == "fetch")
    assert (fetch["limit"], fetch["set_in"]) == (7.0, "quota API (kafka-configs.sh)")


async def test_simultaneous_requests_share_prepared_quotas(server: AdminServer, view: AdminView) -> None:
    looks: list[int] = []

    def dynamic() -> DynamicQuotas:
        looks.append(1)
        return {ClientQuotaEntity(f"user-{number}"): {"consumer_byte_rate": float(number)} for number in range(1, 21)}

    object.__setattr__(view, "dynamic", dynamic)
    clients = [ClientNames(f"user-{number}") for number in range(1, 21)]
    answers = await asyncio.gather(*[server._explain(client, "") for client in clients])
    found = [next(quota["limit"] for quota in answer["quotas"] if quota["kind"] == "fetch") for answer in answers]
    assert (found, len(looks)) == ([float(number) for number in range(1, 21)], 1)


async def test_silent_gateway_is_named(server: AdminServer) -> None:
    await server.stop()
    with pytest.raises(AdminUnreachableError, match="/api/explain can't be reached"):
        await ask_explanation(f"http://127.0.0.1:{server.port or 1}", ClientNames())


# Groups.

GROUPS = """\
upstream: {bootstrap_servers: ["127.0.0.1:9092"]}
listeners: [{bootstrap_port: 29092}]
quotas:
  entities:
    - {user: alice, producer_byte_rate: 8388608}
    - {user: bob, exempt: true}
  groups:
    - {name: payments, match: [{claim: {groups: payments}}, {ip: 10.20.0.0/16}], consumer_byte_rate: 1048576}
    - {name: jobs, match: [{user: x}, {client-id: "job-*"}], producer_byte_rate: 4194304}
"""


@pytest.fixture
def with_groups(tmp_path: Path) -> Path:
    path = tmp_path / "weir.yaml"
    path.write_text(GROUPS)
    return path


def limits_of(answer: dict[str, Any]) -> list[tuple[str, int, str]]:
    return [(each["key"], each["limit"], each["entity"]) for each in answer["quotas"] if each["limit"] is not None]


def test_group_of_a_client_is_explained(with_groups: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answer = explained(with_groups, capsys, "--user", "alice", "--client-id", "job-7")
    assert answer["group"] == {
        "name": "jobs", "rule": "client-id=job-*", "set_in": f"{with_groups}:9", "path": ["jobs"], "shares": [],
    }  # fmt: skip
    assert limits_of(answer) == [
        ("producer_byte_rate", 8388608, "user=alice"),
        ("producer_byte_rate", 4194304, "group=jobs"),
    ]
    assert answer["quotas"][1]["bucket"] == {"user": "", "client_id": "", "ip": "", "group": "jobs"}
    assert answer["binds"][0] == "producer_byte_rate binds at 4.00 MiB/s of group=jobs, for all members together."
    assert answer["notes"] == [
        "Groups have rules for claims of the token (groups). Give them with --claim NAME=VALUE.",
        "Groups have rules for addresses. Give the client's address with --ip.",
    ]


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        (["--claim", "a=b", "--claim", "groups=payments"], "claim groups=payments"),
        (["--ip", "10.20.3.4"], "ip=10.20.0.0/16"),
        (["--ip", "10.21.3.4", "--claim", "groups=staff"], None),
    ],
)
def test_claims_and_address_select_the_group(
    options: list[str], rule: str | None, with_groups: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    group = explained(with_groups, capsys, "--user", "alice", *options)["group"]
    assert (None if group is None else group["rule"]) == rule


TREE = """\
upstream: {bootstrap_servers: ["127.0.0.1:9092"]}
listeners: [{bootstrap_port: 29092}]
quotas:
  groups:
    - {name: cluster, producer_byte_rate: 104857600}
    - {name: payments, parent: cluster, match: [{user: alice}], producer_byte_rate: {guarantee: 20971520, weight: 3}}
    - {name: batch, parent: cluster, match: [{user: bob}]}
"""


def test_path_and_share_of_a_group_are_explained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "weir.yaml"
    path.write_text(TREE)
    answer = explained(path, capsys, "--user", "alice")
    assert answer["group"]["path"] == ["cluster", "payments"]
    assert answer["group"]["shares"] == [
        {
            "kind": "produce",
            "key": "producer_byte_rate",
            "unit": "bytes/s",
            "weight": 3,
            "guarantee": 20971520,
            "ceiling": 104857600,
            "entitlement": 20971520 + 0.75 * (104857600 - 20971520),
        }
    ]
    assert answer["binds"][0] == "producer_byte_rate binds at 100 MiB/s of group=cluster, for all members together."
    assert main(["explain", "--config", str(path), "--user", "alice"]) == 0
    lines = " ".join(capsys.readouterr().out.split())
    assert "Group path: cluster > payments" in lines
    assert (
        "producer_byte_rate: all members may use 80.0 MiB/s at any time, by the guarantee 20.0 MiB/s and the weight 3, and up"
        " to 100 MiB/s while other groups do not use their part"
    ) in lines


def test_exempt_member_has_no_ceiling(with_groups: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answer = explained(with_groups, capsys, "--user", "bob", "--client-id", "job-7")
    assert answer["group"]["name"] == "jobs"
    assert limits_of(answer) == []


LANE = """\
upstream: {bootstrap_servers: ["127.0.0.1:9092"]}
listeners: [{bootstrap_port: 29092}]
quotas:
  groups:
    - {name: replays, match: [{user: "a*", catch_up: true, max_lag_records: 5000}], consumer_byte_rate: 1048576}
    - {name: team, match: [{user: alice}], consumer_byte_rate: 2097152}
"""


@pytest.mark.parametrize(("options", "name"), [([], "team"), (["--catch-up"], "replays")])
def test_catch_up_selects_the_lane(options: list[str], name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "weir.yaml"
    path.write_text(LANE)
    answer = explained(path, capsys, "--user", "alice", *options)
    assert answer["group"]["name"] == name
    assert ("Groups have rules for consumers that catch up. For such a consumer, give --catch-up." in answer["notes"]) is (
        not options
    )
    client = ClientNames("alice", catch_up=bool(options))
    print_explanation(
        Explanations(Places(parse_config(LANE, source="weir.yaml"), "weir.yaml"), {}).of(client), Console(width=200)
    )
    assert ("catching up" in capsys.readouterr().out) is bool(options)


def test_bad_claim_is_refused(with_groups: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["explain", "--config", str(with_groups), "--claim", "groups"])
    assert "'groups' is not a claim such as groups=payments" in capsys.readouterr().err


def test_table_names_the_group_and_its_members(with_groups: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = parse_config(with_groups.read_text(), source="weir.yaml")
    client = ClientNames("alice", "job-7", claims=("a=b",))
    print_explanation(Explanations(Places(config, "weir.yaml"), {}).of(client), Console(width=200))
    text = capsys.readouterr().out
    assert "user alice, client-id job-7, claim a=b" in text
    assert "Member of group jobs (weir.yaml:9) by the rule client-id=job-*" in text
    assert "all members of group jobs" in text


def test_answer_of_an_older_gateway_has_the_same_text() -> None:
    answer = Explanations(Places(parse_config(CONFIG, source="weir.yaml"), "weir.yaml"), {}).of(ClientNames("alice", "etl"))
    older = deepcopy(answer)
    del older["client"]["claims"], older["client"]["catch_up"], older["group"], older["shadows"]  # as 0.2.0
    del older["topics"]["at_each_broker"]
    for quota in older["quotas"]:
        del quota["at_each_broker"], quota["bucket"]["group"]
    texts = []
    for each in (answer, older):
        console = Console(width=200, file=StringIO(), record=True)
        print_explanation(each, console)
        texts.append(console.export_text())
    assert texts[0] == texts[1]


def test_text_shows_kinds_of_later_versions() -> None:
    answer = Explanations(Places(parse_config(CONFIG, source="weir.yaml"), "weir.yaml"), {}).of(ClientNames("alice", "etl"))
    quotas = [{**quota, "kind": "of_later"} for quota in answer["quotas"]]
    console = Console(width=200, file=StringIO(), record=True)
    print_explanation({**answer, "quotas": quotas}, console)
    assert "524,288.0/s" in console.export_text()
