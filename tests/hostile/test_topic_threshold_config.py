"""`bytes.in.per.sec.threshold` as a topic config, through a whole gateway: set, enforced, described, kept and removed."""

from typing import Any

from protocol.api_keys import ApiKey
from tests.gateway.proxy.messages import TOPIC
from tests.protocol import codec

KEY, OTHER_KEY = "bytes.in.per.sec.threshold", "retention.ms"
ALTER, DESCRIBE, PRODUCE = ApiKey.INCREMENTAL_ALTER_CONFIGS, ApiKey.DESCRIBE_CONFIGS, ApiKey.PRODUCE
TOPIC_RESOURCE, SET, DELETE, DYNAMIC_TOPIC, STATIC = 2, 0, 1, 1, 4
NOT_ENOUGH_REPLICAS, INVALID_CONFIG, CLUSTER_AUTHORIZATION_FAILED = 19, 40, 31

TOTAL, OF_FILE = 20_000, 15_000
QUOTAS = {
    "window": {"samples": 11, "seconds": 10},
    "topics": {"total.bytes.in.per.sec.threshold": TOTAL, KEY: {TOPIC: OF_FILE}, "meter": "window"},
}
"""A window of 100 s: bytes appended within the test count as a rate of one hundredth per second."""


def altered(request):
    rows = [{"resource_type": each.resource_type, "resource_name": each.resource_name} for each in request.decode().resources]
    return request.answer(responses=[row | {"error_code": 0, "error_message": None} for row in rows])


def described(request):
    rows = [{"resource_type": each.resource_type, "resource_name": each.resource_name} for each in request.decode().resources]
    return request.answer(results=[row | {"error_code": 0, "configs": []} for row in rows])


def produced(request):
    (topic,) = request.decode().topic_data
    return request.answer(responses=[{"name": topic.name, "partition_responses": [{"index": 0, "error_code": 0}]}])


def alter(client, *ops: tuple[str, str | None, int], topic: str = TOPIC) -> int:
    rows = [{"name": name, "value": value, "config_operation": operation} for name, value, operation in ops]
    resources = [{"resource_type": TOPIC_RESOURCE, "resource_name": topic, "configs": rows}]
    answer, _ = client.ask(codec.encode_request(ALTER, 1, {"resources": resources, "validate_only": False}, 1, "admin"))
    (result,) = codec.decode_response(ALTER, 1, answer)["responses"]
    code: int = result["error_code"]
    return code


def describe(client) -> list[tuple[str, str, int]]:
    resources = [{"resource_type": TOPIC_RESOURCE, "resource_name": TOPIC, "configuration_keys": None}]
    answer, _ = client.ask(codec.encode_request(DESCRIBE, 4, {"resources": resources}, 1, "admin"))
    (result,) = codec.decode_response(DESCRIBE, 4, answer)["results"]
    return [(each["name"], each["value"], each["config_source"]) for each in result["configs"]]


def produce(client, topic: str, size: int) -> int:
    data = [{"name": topic, "partition_data": [{"index": 0, "records": bytes(size)}]}]
    values: dict[str, Any] = {"acks": -1, "timeout_ms": 1000, "topic_data": data}
    answer, _ = client.ask(codec.encode_request(PRODUCE, 9, values, 1, "etl"))
    (response,) = codec.decode_response(PRODUCE, 9, answer)["responses"]
    code: int = response["partition_responses"][0]["error_code"]
    return code


def test_threshold_set_as_topic_config(broker, start_weir, connect):
    broker.topics["orders"] = 1
    broker.answers |= {ALTER: altered, DESCRIBE: described, PRODUCE: produced}
    weir = start_weir(broker.bootstrap_servers, quotas=QUOTAS, quota_admins=["User:ANONYMOUS"])
    client = connect(weir)
    for topic, size in (
        ("orders", 3_000_000),
        (TOPIC, 1_000_000),
        (TOPIC, 100),
    ):  # over the total, and below the topic's threshold
        assert produce(client, topic, size) == 0

    assert alter(client, (OTHER_KEY, "1", SET), (KEY, "5000", SET)) == 0
    assert produce(client, TOPIC, 100) == NOT_ENOUGH_REPLICAS
    assert describe(client) == [(KEY, "5000", DYNAMIC_TOPIC)]
    assert alter(client, (KEY, str(TOTAL + 1), SET)) == INVALID_CONFIG
    assert alter(client, (KEY, str(TOTAL - OF_FILE), SET), topic="orders") == 0
    frames = [request.frame for request in broker.received if request.api_key == ALTER]
    assert [OTHER_KEY.encode() in frame for frame in frames] == [True]
    assert not any(KEY.encode() in request.frame for request in broker.received)

    client.close()
    weir.stop()
    weir.start()
    client = connect(weir)
    assert describe(client) == [(KEY, "5000", DYNAMIC_TOPIC)]
    assert produce(client, TOPIC, 100) == NOT_ENOUGH_REPLICAS
    assert alter(client, (KEY, None, DELETE)) == 0
    assert describe(client) == [(KEY, str(OF_FILE), STATIC)]
    assert produce(client, TOPIC, 100) == 0


def test_client_that_is_no_admin_may_not_set_threshold(broker, start_weir, connect):
    broker.answers |= {ALTER: altered, DESCRIBE: described}
    weir = start_weir(broker.bootstrap_servers, quotas=QUOTAS)
    client = connect(weir)
    assert alter(client, (KEY, "1", SET)) == CLUSTER_AUTHORIZATION_FAILED
    assert alter(client, (OTHER_KEY, "1", SET)) == 0
    assert describe(client) == [(KEY, str(OF_FILE), STATIC)]
    assert broker.count(ALTER) == 1
