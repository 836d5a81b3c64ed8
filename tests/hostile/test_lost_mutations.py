"""Clients that reset their connection, and brokers that end theirs, before the controller's answer is there."""

import asyncio
import threading
from collections.abc import Callable

import pytest

from protocol.api_keys import ApiKey
from tests.gateway.features.controller_mutations import mutation_session as m
from tests.hostile.stub_broker import Request, StubBroker
from tests.hostile.test_mutation_decoys import OVER_BURST, QUOTAS, THROTTLED, Controller, errors
from tests.weir_process import Weir

ALL_INT32 = 2**31 - 1


class SlowController(Controller):
    """Answers no creation before `go_on` is set."""

    def __init__(self, broker: StubBroker) -> None:
        super().__init__(broker)
        self.go_on = threading.Event()
        broker.answers[ApiKey.CREATE_TOPICS] = self.create_later

    async def create_later(self, request: Request) -> bytes:
        await asyncio.to_thread(self.go_on.wait)
        return self.create(request)


@pytest.fixture
def controller(broker: StubBroker) -> SlowController:
    return SlowController(broker)


@pytest.fixture
def weir(broker: StubBroker, controller: SlowController, start_weir: Callable[..., Weir]) -> Weir:
    return start_weir(broker.bootstrap_servers, quotas=QUOTAS)


@pytest.mark.parametrize(("partitions", "error"), [(ALL_INT32, 0), (OVER_BURST, THROTTLED)], ids=["refused", "created"])
def test_client_that_resets_is_charged_for_created_topics_only(weir, broker, controller, connect, partitions, error):
    client, neighbour = connect(weir), connect(weir)
    client.send(m.create(1, {"a": partitions}))
    broker.wait_for(lambda: broker.count(ApiKey.CREATE_TOPICS) == 1, "the request is on its way")
    client.reset()
    neighbour.send(m.create(2, {"b": 1}))
    controller.go_on.set()
    assert errors(neighbour.receive()) == {"b": error}


def test_version_that_the_broker_lacks_charges_nobody(broker, controller, start_weir, connect):
    """As Kafka 4, the broker closes the connection for CreateTopics v1."""
    broker.answers[ApiKey.CREATE_TOPICS] = lambda request: controller.create(request) if request.version >= 2 else False
    broker.oldest[ApiKey.CREATE_TOPICS] = 2
    weir = start_weir(broker.bootstrap_servers, quotas=QUOTAS)
    client, neighbour = connect(weir), connect(weir)
    client.send(m.create(1, {"a": OVER_BURST}, version=1))
    assert client.is_closed()
    assert errors(neighbour.ask(m.create(2, {"b": 1}))[0]) == {"b": 0}


def test_neighbour_of_a_lost_request_waits_no_longer(weir, broker, controller, connect):
    """The controller may have executed the lost request, so its forecast is charged."""
    client, neighbour = connect(weir), connect(weir)
    client.send(m.create(1, {"a": OVER_BURST}))
    broker.wait_for(lambda: broker.count(ApiKey.CREATE_TOPICS) == 1, "the request is on its way")
    broker.cut()
    assert client.is_closed()
    assert errors(neighbour.ask(m.create(2, {"b": 1}))[0]) == {"b": THROTTLED}
    controller.go_on.set()
