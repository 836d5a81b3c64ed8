"""`quota_admins: broker_acls` before a broker that closes, babbles or delays while Weir waits for its decision."""

import asyncio
import threading
from collections.abc import Callable

import pytest

from protocol.api_keys import ApiKey
from tests.gateway.features.quota_api.test_handlers import KEY, alter, describe
from tests.gateway.proxy import messages as m
from tests.hostile.stub_broker import Request
from tests.protocol import codec

DESCRIBE, ALTER = ApiKey.DESCRIBE_CLIENT_QUOTAS, ApiKey.ALTER_CLIENT_QUOTAS
ALICE = {"user": "alice"}
ACLS = {"quota_admins": "broker_acls", "state": {"path": "state.json"}}
CPU_SECONDS = 4.0
"""For 2 000 requests, interpreted and beside other tests; they take half a second alone."""


def decided(error: int) -> Callable[[Request], bytes]:
    """Answer Weir's own AlterClientQuotas."""

    def answer(request: Request) -> bytes:
        entries = [
            {
                "error_code": error,
                "error_message": None,
                "entity": [{"entity_type": each.entity_type, "entity_name": each.entity_name} for each in entry.entity],
            }
            for entry in request.decode().entries
        ]
        return request.answer(entries=entries)

    return answer


def nothing_described(request: Request) -> bytes:
    return request.answer(error_code=0, error_message=None, entries=[])


def quotas(client) -> list[str]:
    """The users with quotas."""
    answer, _ = client.ask(describe(1))
    return [entry["entity"][0]["entity_name"] for entry in codec.decode_response(DESCRIBE, 1, answer)["entries"]]


def outcome(answer: bytes) -> list[int]:
    return [entry["error_code"] for entry in codec.decode_response(ALTER, 1, answer)["entries"]]


@pytest.fixture
def weir(broker, start_weir):
    broker.answers[DESCRIBE] = nothing_described
    broker.answers[ALTER] = decided(0)
    return start_weir(broker.bootstrap_servers, **ACLS)


def test_broker_that_fails_to_decide_changes_nothing(broker, weir, connect):
    garbage = [lambda _: False, lambda request: request.answer(entries=[]), lambda request: m.beat(request.correlation_id)]
    for answer in garbage:
        broker.answers[ALTER] = answer
        client = connect(weir)
        client.send(alter(7, (ALICE, {KEY: 1.0})))
        assert client.is_closed()
    assert quotas(connect(weir)) == []
    broker.answers[ALTER] = decided(0)
    answer, _ = connect(weir).ask(alter(7, (ALICE, {KEY: 1.0})))
    assert outcome(answer) == [0]
    assert quotas(connect(weir)) == ["alice"]


def test_slow_decision_holds_up_its_own_connection_alone(broker, weir, connect):
    decide = threading.Event()

    async def later(request: Request) -> bytes:
        await asyncio.to_thread(decide.wait, 30.0)
        return decided(31)(request)

    broker.answers[ALTER] = later
    waiting, leaving, other = connect(weir), connect(weir), connect(weir)
    waiting.send(alter(7, (ALICE, {KEY: 1.0})), describe(8))
    leaving.send(alter(7, (ALICE, {KEY: 2.0})))
    broker.wait_for(lambda: broker.count(ALTER) == 2, "Weir has asked for both")
    leaving.reset()
    assert quotas(other) == []
    assert broker.count(DESCRIBE) == 1  # a request behind the alteration waits
    decide.set()
    assert outcome(waiting.receive()) == [31]
    assert codec.decode_response(DESCRIBE, 1, waiting.receive())["entries"] == []
    assert quotas(other) == []


def test_flood_of_requests_without_right_is_bounded(broker, weir, connect):
    broker.answers[ALTER] = decided(31)
    broker.answers[DESCRIBE] = lambda request: request.answer(error_code=31, error_message=None, entries=None)
    client, before = connect(weir), weir.cpu_seconds()
    for start in range(0, 2_000, 500):
        client.send(*(alter(number, (ALICE, {KEY: 1.0})) + describe(number) for number in range(start, start + 250)))
        for number in range(start, start + 250):
            assert outcome(client.receive()) == [31]
            answer = codec.decode_response(DESCRIBE, 1, client.receive())
            assert (answer["correlation_id"], answer["error_code"]) == (number, 31)
    assert weir.cpu_seconds() - before < CPU_SECONDS
    # Weir asks for one alteration after the other: the broker gets as many requests as the client has sent.
    assert (broker.count(ALTER), broker.count(DESCRIBE)) == (1_000, 1_000)
