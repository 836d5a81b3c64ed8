"""A handler that counts the units of its quota kind, and the charges for each request around it."""

from gateway.proxy.handler import (
    COLLECT,
    DEFER,
    FORWARD,
    MAX_COLLECTED_REQUEST_BYTES,
    Connection,
    Request,
    Verdict,
    check_size,
)
from gateway.proxy.handlers.charging import ChargedRequestHandler
from gateway.quotas.engine import QuotaEngine
from gateway.quotas.settings import QuotaSettings
from protocol.api_keys import ApiKey
from protocol.headers import RequestHeader
from tests.gateway.proxy import messages as m
from tests.gateway.proxy.test_waiting_for_debt import entity, indebted, only_bucket, owe, produce_quota
from tests.gateway.proxy.transcript import START, Transcript
from tests.gateway.quotas.engines import bucket_of

UNITS = 2_000


KINDS = ("produce",)


class UnitsHandler:
    """A whole handler of a kind whose units have to be counted. CONTRIBUTING refers to it."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def handle(self, request: Request, now: float) -> Verdict:
        client = self._connection.client
        client.use(request.header.client_id, now)
        buckets = client.limited_buckets(KINDS[0], now)
        if not buckets:
            client.place.leave_queue_of(KINDS)
            return FORWARD
        check_size(request.frame_bytes, MAX_COLLECTED_REQUEST_BYTES, "send several requests")
        if not request.whole:
            return COLLECT
        units = units_of(*request.cut())
        if self._connection.enter_queues(KINDS, request, now, units):
            return DEFER
        for bucket in buckets:
            verdict = bucket.charge(units, now)
            if verdict[0] > 0.0:
                self._connection.throttle.start(verdict, now, bucket, request.entry, units)
        return FORWARD


def units_of(frame: bytes, header: RequestHeader) -> int:
    """Stands for a function of a module in `protocol.bodies`."""
    return UNITS


def session(engine):
    def handler(connection):
        return ChargedRequestHandler(connection, ("request_rate",), UnitsHandler(connection))

    return Transcript(engine=engine, handlers={int(ApiKey.METADATA): handler})


def waiting(engine):
    t = session(engine)
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


def test_rate_counts_a_collected_and_deferred_request_once():
    engine = QuotaEngine(QuotaSettings((entity(client_id="etl", producer_byte_rate=1_000, request_rate=100),)), START)
    t = Transcript(
        engine=engine, handlers={int(ApiKey.METADATA): UnitsHandler}
    )  # the registry adds the charge for each request
    bucket_of(engine, "produce", "ANONYMOUS", "etl", START).charge(11_000, START)
    t.client_sends(m.metadata(1), by=7)
    t.broker_got()
    assert t.row("request_rate").amount_total == 0
    t.passes(1.0)
    t.broker_got(m.metadata(1))
    assert t.row("request_rate").amount_total == 1


def test_whole_request_is_charged_and_mutes_the_client():
    t = session(QuotaEngine(produce_quota(), START))
    for number in range(5):
        t.client_sends(m.metadata(number), by=7)
        t.broker_answers(m.described(number, []))
    assert not t.paused
    t.client_sends(m.metadata(5), by=7)
    t.broker_got(*map(m.metadata, range(6)))
    assert (t.row().amount_total, t.row().throttle_left, t.paused) == (6 * UNITS, 2.0, True)
