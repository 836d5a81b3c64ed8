"""A handler that counts the units of its quota kind, and the charges for each request around it."""

from gateway.proxy.handler import DEFER, FORWARD, Connection, Request, Verdict
from gateway.proxy.handlers.charging import ChargedRequestHandler
from protocol.api_keys import ApiKey
from tests.gateway.proxy import messages as m
from tests.gateway.proxy.test_waiting_for_debt import indebted, only_bucket, owe
from tests.gateway.proxy.transcript import START, Transcript

UNITS = 2_000


class UnitsHandler:
    """Waits for its own kind with the units that it counts."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def handle(self, request: Request, now: float) -> Verdict:
        self._connection.client.use(request.header.client_id, now)
        return DEFER if self._connection.enter_queues(("produce",), request, now, UNITS) else FORWARD


def waiting(engine):
    def handler(connection):
        return ChargedRequestHandler(connection, ("request_rate",), UnitsHandler(connection))

    t = Transcript(engine=engine, handlers={int(ApiKey.METADATA): handler})
    t.client_sends(m.metadata(1))
    t.broker_got()
    return t


def test_requests_wait_for_the_units_before_them():
    engine = indebted(3.0)
    for _ in range(2):
        waiting(engine)
    cost = UNITS + len(m.metadata(1)) - 4  # this kind has a cost for each byte as well
    assert only_bucket(engine).first_requests.waiting == 2 * cost


def test_request_without_a_rate_keeps_its_turn_for_other_units():
    engine = indebted(3.0)
    t = waiting(engine)
    owe(engine, 100.0, START + 1.0)
    t.passes(3.0)
    t.broker_got(m.metadata(1))
