"""The quotas of `--what-if FILE`: their errors, and the buckets that they give to the entities of the ledger."""

from ipaddress import ip_network
from pathlib import Path

import pytest

from gateway.commands import main
from gateway.quotas.engine import QuotaEngine
from gateway.quotas.entity import DEFAULT, OTHER, ClientQuotaEntity, EntityQuota
from gateway.quotas.groups import Group, GroupRule
from gateway.quotas.settings import QuotaSettings
from gateway.quotas.token_bucket import TokenBucket
from gateway.reports.job import command
from gateway.reports.what_if.targets import LIMITED, UNDECIDED, UNLIMITED, LedgerEntity, Target, WhatIfQuotas, load_what_if
from tests.gateway.quotas.engines import bucket_of
from tests.gateway.quotas.grouped import grouped

KEY = "producer_byte_rate"
CLIENTS = [(user, client_id) for user in ("alice", "bob", "eve") for client_id in ("etl", "web", "")]


def quotas(*rows: tuple[object, object, float | None]) -> WhatIfQuotas:
    """Quotas from (user, client-id, limit); a limit of None is an exemption."""
    return WhatIfQuotas(QuotaSettings(quotas=settings(*rows)))


def settings(*rows: tuple[object, object, float | None]) -> tuple[EntityQuota, ...]:
    return tuple(
        EntityQuota(ClientQuotaEntity(user, client_id), {} if limit is None else {KEY: limit}, exempt=limit is None)  # type: ignore[arg-type]
        for user, client_id, limit in rows
    )


def only(quotas: WhatIfQuotas, kind: str, user: str | None, client_id: str | None, ip: str | None = None) -> Target:
    """The target of a ledger with one entity."""
    ((target,),) = quotas.targets([LedgerEntity(kind, user, client_id, ip)])
    return target


TABLES = [
    [("alice", "etl", 1.0), ("alice", DEFAULT, 2.0), ("alice", None, 3.0), (DEFAULT, "etl", 4.0), (None, DEFAULT, 8.0)],
    [(DEFAULT, DEFAULT, 5.0), (DEFAULT, None, 6.0), (None, "etl", 7.0)],
    [("alice", None, 1.0), (None, "web", 2.0), (DEFAULT, None, 3.0)],
    [(DEFAULT, None, 3.0), (None, "etl", None), ("bob", "web", None)],
    [("bob", None, None), (None, DEFAULT, 9.0)],
]


@pytest.mark.parametrize("rows", TABLES)
@pytest.mark.parametrize("client", CLIENTS)
def test_target_of_a_named_client_is_the_gateways_bucket(
    rows: list[tuple[object, object, float | None]], client: tuple[str, str]
) -> None:
    engine = QuotaEngine(QuotaSettings(quotas=settings(*rows)), 0.0)
    bucket = bucket_of(engine, "produce", *client, 0.0)
    target = only(quotas(*rows), "produce", *client)
    assert target.limit == bucket.resolution.limit
    if bucket.meter is not None:
        tags = bucket.resolution.tags
        assert (target.user, target.client_id, target.ip) == (tags.user, tags.client_id, tags.ip)
        assert (target.quota, target.burst) == (str(bucket.resolution.entity), bucket.meter.capacity)


@pytest.mark.parametrize("rows", TABLES)
@pytest.mark.parametrize("known", [("alice", None), ("bob", None), ("eve", None), (None, "etl"), (None, "web"), (None, "")])
def test_missing_name_is_decided_only_if_every_client_agrees(
    rows: list[tuple[object, object, float | None]], known: tuple[str | None, str | None]
) -> None:
    """The ledger has the user or the client-id alone. The oracle asks the gateway about each client with this name."""
    user, client_id = known
    engine = QuotaEngine(QuotaSettings(quotas=settings(*rows)), 0.0)
    clients = [(one, other) for one, other in [*CLIENTS, ("carol", "app"), ("alice", "x")] if user in (None, one)]
    clients = [(one, other) for one, other in clients if client_id in (None, other)]
    buckets = [bucket_of(engine, "produce", *client, 0.0).resolution for client in clients]
    limited = {(bucket.tags, bucket.limit) for bucket in buckets if bucket.limit is not None}
    target = only(quotas(*rows), "produce", user, client_id)
    if target.verdict == LIMITED:
        assert {(bucket.tags, bucket.limit) for bucket in buckets} == limited
        assert len(limited) == 1
        assert target.limit == next(iter(limited))[1]
    elif target.verdict == UNLIMITED:
        assert not limited
    else:
        assert (target.user, target.client_id) == known


@pytest.mark.parametrize(
    ("known", "verdict"),
    [
        (("alice", None), LIMITED),
        (("bob", None), UNDECIDED),
        ((None, "web"), UNDECIDED),
        (("<other>", "client-id=<default>"), UNDECIDED),
    ],
)
def test_certain_entity_is_decided(known: tuple[str | None, str | None], verdict: str) -> None:
    target = only(quotas(("alice", None, 1.0), (None, "web", 2.0)), "produce", *known)
    assert target.verdict == verdict


def test_clients_with_rows_of_their_own_are_told_apart() -> None:
    """As in the ledger of a gateway with the same entities: only the limits are others."""
    found = quotas(("alice", None, 1.0), ("alice", "etl", 2.0), (None, DEFAULT, 3.0), ("bob", None, 4.0))
    names = [("alice", None), ("alice", "etl"), (None, "web"), ("bob", None)]
    targets = found.targets([LedgerEntity("produce", *name) for name in names])
    assert [(target.verdict, target.limit) for (target,) in targets] == [
        (LIMITED, 1.0),
        (LIMITED, 2.0),
        (LIMITED, 3.0),
        (LIMITED, 4.0),
    ]
    for lacking, undecided in ((1, ("alice", None)), (3, (None, "web"))):
        fewer = [name for index, name in enumerate(names) if index != lacking]
        targets = found.targets([LedgerEntity("produce", *name) for name in fewer])
        assert [(target.user, target.client_id) for (target,) in targets if target.verdict == UNDECIDED] == [undecided]


GROUPS = (
    Group("web", (GroupRule(user="w-*", client_id="http-?"),)),
    Group("ours", (GroupRule(user="alice"), GroupRule(client_id="job-*")), {KEY: 50.0}),
    Group("lan", (GroupRule(network=ip_network("10.0.0.0/8")), GroupRule(user="lan")), {KEY: 60.0}),
    Group("rest", (GroupRule(user="*"),), {KEY: 70.0}),
)


@pytest.mark.parametrize("client", [("alice", "x"), ("bob", "job-1"), ("w-1", "http-1"), ("lan", "x"), ("root", "job-2")])
def test_group_of_a_named_client_is_the_gateways(client: tuple[str, str]) -> None:
    rows = settings(("root", None, None), ("bob", "job-1", 5.0))
    groups = (*rows, *(group.quota for group in GROUPS))
    engine = QuotaEngine(QuotaSettings(quotas=groups, groups=GROUPS), 0.0)
    paths = [bucket.resolution for bucket in engine.acquire_path("produce", *client, 0.0)]
    (targets,) = WhatIfQuotas(QuotaSettings(quotas=groups, groups=GROUPS)).targets([LedgerEntity("produce", *client)])
    if client != ("lan", "x"):
        assert [(target.limit, target.group) for target in targets] == [(path.limit, path.tags.group) for path in paths]
    # Nobody knows the address: the rule of the network may match, but its group is the same.
    else:
        assert [(target.limit, target.group) for target in targets] == [(None, None), (60.0, "lan")]


@pytest.mark.parametrize(
    ("names", "verdicts"),
    [
        (("carol", "x"), [(UNLIMITED, None), (UNDECIDED, "group=lan")]),
        (("w-1", None), [(UNLIMITED, None), (UNDECIDED, "group=ours")]),
        ((None, "job-1"), [(UNLIMITED, None), (LIMITED, "group=ours")]),
        ((None, "http-1"), [(UNLIMITED, None), (UNDECIDED, "group=ours")]),
        (("alice", None), [(UNLIMITED, None), (LIMITED, "group=ours")]),
    ],
)
def test_group_by_a_missing_name_is_undecided(
    names: tuple[str | None, str | None], verdicts: list[tuple[str, str | None]]
) -> None:
    found = WhatIfQuotas(grouped(GROUPS))
    (targets,) = found.targets([LedgerEntity("produce", *names)])
    assert [(target.verdict, target.quota) for target in targets] == verdicts


NESTED = (
    Group("all", (), {KEY: 90.0}),
    Group("etl", (GroupRule(client_id="etl"),), {KEY: 50.0}, parent="batch"),
    Group("web", (GroupRule(user="alice"),), parent="all"),
    Group("batch", (), parent="all"),
)


@pytest.mark.parametrize(
    ("names", "limits"),
    [
        (("bob", "etl"), [(50.0, "etl"), (90.0, "all")]),
        ((None, "etl"), [(50.0, "etl"), (90.0, "all")]),
        (("alice", "x"), [(90.0, "all")]),
        (("bob", "x"), []),
    ],
)
def test_groups_above_have_buckets_too(names: tuple[str | None, str], limits: list[tuple[float, str]]) -> None:
    """A parent has no rules: its clients are those of the groups below it."""
    ((own, *of_groups),) = WhatIfQuotas(grouped(NESTED)).targets([LedgerEntity("produce", *names)])
    assert own.verdict == UNLIMITED
    assert [(target.verdict, target.limit, target.group) for target in of_groups] == [(LIMITED, *each) for each in limits]


def test_address_and_unknown_kind() -> None:
    rows = (EntityQuota(ClientQuotaEntity(ip=DEFAULT), {"connection_creation_rate": 10}),)
    found = WhatIfQuotas(QuotaSettings(quotas=rows))
    target = only(found, "connection", None, None, "10.0.0.1")
    assert target == Target("connection", None, None, "10.0.0.1", None, LIMITED, "ip=<default>", 10.0, 100.0)
    assert only(found, "produce", "alice", None) == Target("produce", "alice", None, None, None, UNLIMITED)
    assert found.targets([LedgerEntity("volume", "alice"), LedgerEntity("connection", group="batch")]) == [[], []]


@pytest.mark.parametrize(
    "exempt",
    [
        ClientQuotaEntity("alice", "etl"),
        ClientQuotaEntity("alice", DEFAULT),
        ClientQuotaEntity(DEFAULT, "etl"),
        ClientQuotaEntity(client_id="etl"),
    ],
)
def test_client_ids_do_not_decide_about_connections(exempt: ClientQuotaEntity) -> None:
    rows = (EntityQuota(ClientQuotaEntity(DEFAULT), {"connection_creation_rate": 5}), EntityQuota(exempt, {}, exempt=True))
    found = WhatIfQuotas(QuotaSettings(quotas=rows))
    target = only(found, "connection", "alice", None)
    assert target == Target("connection", "alice", None, None, None, LIMITED, "user=<default>", 5.0, 50.0)
    assert only(found, "connection", OTHER, None).verdict == UNDECIDED


def test_burst_follows_the_window_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "new.yaml"
    file.write_text(
        "quotas: {algorithm: window, window: {samples: 3, seconds: 2}, entities: [{user: a, producer_byte_rate: 7}]}\n"
    )
    target = only(load_what_if(file), "produce", "a", None)
    assert target.burst == 2 * 2 * 7 == TokenBucket(7, 4.0, 0.0).capacity


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("quotas: {entities: [{user: a, producer_byte_rate: -5}]}", "quotas.entities[0].producer_byte_rate: must be above 0"),
        ("quotas:\n  entitys: []\n", "quotas.entitys: is not a key of quotas (value [], line 2) — did you mean entities?"),
        (
            "entities: [{user: a, producer_byte_rate: 5}]",
            "quotas: is missing or empty (line 1) — give the file",
        ),
        ("quotas: {entities: [{user: a, exempt: true}, {user: a, exempt: true}]}", "is the same entity as quotas.entities[0]"),
        ("quotas: [", "is not valid YAML"),
        (None, "does not exist — write one with `weir init`, or name another with --what-if"),
    ],
)
def test_wrong_file_is_explained_before_java_starts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str | None, says: str
) -> None:
    monkeypatch.setattr(command, "_run", lambda *_: pytest.fail("the report began"))
    monkeypatch.setattr(command, "missing_requirement", lambda: None)
    file = tmp_path / "new.yaml"
    if text is not None:
        file.write_text(text)
    assert main(["report", "--events", str(tmp_path), "--out", str(tmp_path), "--what-if", str(file)]) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"weir report: --what-if {file}: ")
    assert says in said


def test_doubtful_key_is_a_warning_and_enforce_is_not(tmp_path: Path) -> None:
    file = tmp_path / "weir.yaml"
    file.write_text('quotas: {enforce: false, entities: [{user: "a*", producer_byte_rate: 5000000}]}\n')
    warnings = load_what_if(file).warnings
    assert [line.split(":")[0] for line in warnings] == ["quotas.entities[0].user"]


def test_temporary_row_is_left_out_with_a_warning(tmp_path: Path) -> None:
    file = tmp_path / "weir.yaml"
    row = "{user: alice, producer_byte_rate: %s}"
    file.write_text(f"quotas: {{entities: [{row % '8000000, until: 2030-12-01T06:00Z'}, {row % 5000000}]}}\n")
    found = load_what_if(file)
    (warning,) = found.warnings
    assert warning.startswith("quotas: rows with until or schedule are left out of the prediction (1)")
    assert only(found, "produce", "alice", "etl").limit == 5000000


def test_scope_broker_has_a_warning(tmp_path: Path) -> None:
    file = tmp_path / "weir.yaml"
    file.write_text("quotas: {scope: broker, entities: [{user: alice, producer_byte_rate: 5000000}]}\n")
    (warning,) = load_what_if(file).warnings
    assert warning.startswith("quotas.scope: is broker, but each limit is compared with the use at all brokers — ")
