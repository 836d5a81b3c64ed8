"""Long or numerous client names cost the gateway and Prometheus no more than usual ones."""

import json
from pathlib import Path

from protocol.api_keys import ApiKey
from tests.gateway.proxy import messages as m
from tests.protocol import codec
from tests.weir_process import wait_until

EVERYBODY = {"client-id": "<default>", "producer_byte_rate": 1_000}
MIB = 1 << 20


def test_long_client_ids_cost_little(broker, start_weir, connect):
    quotas = {"entities": [EVERYBODY | {"producer_byte_rate": 10_000}]}
    weir = start_weir(broker.bootstrap_servers, quotas=quotas, state={"usage_interval_ms": 100})
    client = connect(weir)
    client.ask(m.produce(0))
    before = weir.resident_bytes()
    for number in range(300):
        client.ask(m.produce(number, client_id=f"{number}-".ljust(32_000, "\x01")))
    page = weir.get("/api/quotas")
    assert len([row for row in json.loads(page)["rows"] if row["kind"] == "produce"]) == 301
    assert len(page) < MIB
    usage = Path(weir.config_file).with_name("weir.state.usage.jsonl")
    wait_until(lambda: usage.exists() and usage.read_text().count("\n") > 50, "recent use is saved")
    assert usage.stat().st_size < MIB
    assert weir.resident_bytes() - before < 40 * MIB


def test_short_form_of_a_name_is_not_its_bucket(broker, start_weir, connect):
    """A client cannot use up the quota of a long name by sending its short form or its prefix."""
    weir = start_weir(broker.bootstrap_servers, quotas={"entities": [EVERYBODY]})
    victim, spoofer = "v" * 20_000, connect(weir)
    connect(weir).ask(m.produce(1, client_id=victim))
    shown = [row["client_id"] for row in weir.usage() if row["kind"] == "produce"]
    spoofer.ask(m.produce(2, client_id=shown[0]))
    spoofer.ask(m.produce(3, client_id=victim[:-1]))
    names = {row["client_id"]: row["amount_total"] for row in weir.usage() if row["kind"] == "produce"}
    assert len(names) == 3
    assert names[shown[0]] == len(m.produce(1, client_id=victim)) - 4


def test_quota_of_a_long_name_holds(broker, start_weir, connect):
    name = "etl-" * 5_000
    weir = start_weir(broker.bootstrap_servers, quotas={"entities": [EVERYBODY, {"client-id": name, "producer_byte_rate": 7}]})
    connect(weir).ask(m.produce(1, client_id=name))
    (row,) = [row for row in weir.usage() if row["kind"] == "produce"]
    assert (row["limit"], row["source"], len(row["level"])) == (7.0, "file", len("client-id=") + len(row["client_id"]))
    assert row["throttle_left"] > 0


def test_max_entities_can_be_raised(broker, start_weir, connect):
    weir = start_weir(broker.bootstrap_servers, quotas={"entities": [EVERYBODY], "max_entities": 3})
    for number in range(5):
        connect(weir).ask(m.produce(number, client_id=f"client-{number}"))
    assert weir.metric("weir_quota_overflowed_total") == 2
    weir.apply(quotas={"entities": [EVERYBODY], "max_entities": 100})
    client = connect(weir)
    for number in range(5, 10):
        client.ask(m.produce(number, client_id=f"client-{number}"))
    assert weir.metric("weir_quota_overflowed_total") == 2
    assert {"client-5", "client-9"} <= {row["client_id"] for row in weir.usage()}


def test_maker_of_names_takes_no_clients_bucket(broker, start_weir, connect):
    weir = start_weir(broker.bootstrap_servers, quotas={"entities": [EVERYBODY], "max_entities": 10})
    maker = connect(weir)
    maker.send(*(m.produce(number, acks=0, client_id=f"x{number}") for number in range(20)))
    wait_until(lambda: weir.metric("weir_quota_overflowed_total") == 15, "the maker of names shares a bucket")
    maker.send(m.produce(20, acks=0, client_id="y", size=500_000))  # 490 s of debt
    connect(weir).ask(m.produce(1, client_id="orders"))
    assert "orders" in {row["client_id"] for row in weir.usage()}


def test_names_in_debt_leave_room_for_other_addresses(broker, start_weir, connect):
    """A debt keeps its place. Validation costs a client as much as a creation, as in Kafka."""
    broker.answers[ApiKey.CREATE_TOPICS] = lambda asked: asked.answer(topics=[{"name": "t"}])
    quota = {"user": "<default>", "client-id": "<default>", "controller_mutation_rate": 10}
    weir = start_weir(broker.bootstrap_servers, quotas={"entities": [quota], "max_entities": 8})
    for number in range(10):
        with connect(weir) as attacker:
            attacker.ask(create(number, f"made-up-{number}", 10_000, validate_only=True))
    assert throttled_ms(connect(weir), "made-up-more") > 900_000
    honest = [connect(weir, source="127.0.0.2") for _ in range(2)]
    assert [throttled_ms(client, f"honest-{number}") for number, client in enumerate(honest)] == [0, 0]
    assert weir.metric("weir_quota_overflowed_total") == 5


def create(number, client_id, partitions, *, validate_only=False):
    topics = [{"name": "t", "num_partitions": partitions, "replication_factor": 1}]
    values = {"topics": topics, "timeout_ms": 1_000, "validate_only": validate_only}
    return codec.encode_request(ApiKey.CREATE_TOPICS, 6, values, number, client_id)


def throttled_ms(client, client_id):
    """The throttle time of a request for one partition. Kafka refuses it for a debt, and closes no connection."""
    answer, _ = client.ask(create(1, client_id, 1))
    return codec.decode_response(ApiKey.CREATE_TOPICS, 6, answer)["throttle_time_ms"]


def test_client_leaves_the_shared_bucket_and_its_debt(broker, start_weir, connect):
    weir = start_weir(broker.bootstrap_servers, quotas={"entities": [EVERYBODY], "max_entities": 3})
    others = [connect(weir) for _ in range(3)]
    for number, other in enumerate(others):
        other.ask(m.produce(number, client_id=f"client-{number}"))
    connect(weir).ask(m.produce(1, client_id="in debt", size=500_000))
    client = connect(weir)
    client.send(m.produce(2, client_id="orders"))
    wait_until(lambda: weir.metric("weir_quota_overflowed_total") == 2, "two clients share a bucket")
    for other in others:
        other.close()
    assert client.receive()[4:8] == (2).to_bytes(4, "big")
    assert "orders" in {row["client_id"] for row in weir.usage()}
