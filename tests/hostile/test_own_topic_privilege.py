"""Traffic to Weir's own topics is not counted, throttled or paused."""

import pytest

from protocol.api_keys import ApiKey
from tests.gateway.proxy import messages as m
from tests.hostile.stub_broker import TOPIC, Request, StubBroker, produce_outcome
from tests.weir_process import Weir, wait_until

USAGE, LEDGER = "__weir_volume_usage", "__weir_throttles"
TOTAL = 1_000_000


def appended(request: Request) -> bytes | None:
    """Accept a Produce to any topic."""
    named = "topic_id" if request.version >= 13 else "name"
    topics = [{named: getattr(row, named)} for row in request.decode().topic_data]
    partition = {"index": 0, "error_code": 0, "base_offset": 7}
    return request.answer(responses=[topic | {"partition_responses": [partition]} for topic in topics])


@pytest.fixture
def weir(broker: StubBroker, start_weir, tmp_path) -> Weir:
    """A gateway that pauses producers, because it has no usage, with a quota of 1 byte/s for every client."""
    broker.topics = {TOPIC: 1, USAGE: 1, LEDGER: 1}
    broker.answers[ApiKey.PRODUCE] = appended
    quotas = {
        "entities": [{"client-id": "<default>", "producer_byte_rate": 1}],
        "topics": {"total.bytes.in.per.sec.threshold": TOTAL},
        "volumes": {"source": "topic", "max_delay_ms": 20},
    }
    ledger = {"path": str(tmp_path / "ledger"), "topic": LEDGER}
    gateway = start_weir(broker.bootstrap_servers, quotas=quotas, ledger=ledger)
    gateway.wait_for_volumes("PAUSE")
    return gateway


@pytest.mark.parametrize("version", [9, 13], ids=["by name", "by id"])
def test_own_topics_are_neither_charged_nor_gated(weir: Weir, connect, version):
    wait_until(lambda: weir.api("topics")["total"]["defaulted"], "the topics are listed")
    client = connect(weir)
    for topic in (USAGE, LEDGER, USAGE):
        answer, _ = client.ask(m.produce(1, version=version, size=50_000, topics=(topic,)))
        assert produce_outcome(answer, version) == (0, 0), topic
    assert not [row for row in weir.usage() if row["amount_total"] > 0]


def test_own_topic_beside_another_gives_no_privilege(weir: Weir, broker: StubBroker, connect):
    answer, _ = connect(weir).ask(m.produce(1, topics=(USAGE, TOPIC)))
    assert produce_outcome(answer)[0] == 19
    assert broker.count(ApiKey.PRODUCE) == 0


def test_topic_quotas_do_not_count_own_topics(weir: Weir, connect):
    assert connect(weir).ask(m.produce(1, size=50_000, topics=(USAGE,)))
    topics = wait_until(lambda: (found := weir.api("topics"))["total"]["defaulted"] and found, "the topics are listed")
    assert [(row["topic"], row["threshold"]) for row in topics["rows"]] == [(TOPIC, TOTAL)]
    assert topics["total"]["defaulted"] == 1
    assert topics["total"]["rate"] == 0
