"""The budgets of requests and answers that are collected, over several connections."""

import pytest

from gateway.proxy.collected import (
    MAX_ANSWER_BYTES,
    MAX_COLLECTED_BYTES,
    MAX_RECORDS_BYTES,
    UNCOUNTED_BYTES,
    Budget,
    CollectBudget,
    Collected,
    HeldAnswers,
    KeptBytes,
)
from gateway.proxy.handler import COLLECT, FORWARD, EndConnection
from gateway.proxy.produce_gate import ProduceGate
from gateway.proxy.response_bodies import MAX_PIECE_BYTES
from gateway.proxy.wire import PassingWriter
from protocol.api_keys import ApiKey
from protocol.bodies import find_coordinator
from protocol.errors import ProtocolError
from tests.gateway.proxy import messages as m
from tests.gateway.proxy.transcript import Transcript
from tests.protocol import codec

PIECE = memoryview(bytes(UNCOUNTED_BYTES))
MOST = memoryview(bytes(MAX_COLLECTED_BYTES))


class Requests:
    """A connection's collected bytes. `ended` is the error at its end, if others needed the bytes."""

    def __init__(self, budget, size=0):
        self.ended = None
        self.collected = Collected(budget)
        self.collected.evict = self.end
        if size:
            self.begin(bytes(UNCOUNTED_BYTES + size))

    def end(self, error):
        self.ended = error

    def begin(self, piece):
        self.collected.begin(memoryview(piece), records=False)

    def add(self, piece):
        self.collected.add(memoryview(piece))


def test_largest_connection_is_ended_for_another():
    budget = CollectBudget()
    small, large, other = Requests(budget, 1_000), Requests(budget, MAX_COLLECTED_BYTES - 1_000), Requests(budget)
    other.begin(PIECE)
    assert large.ended is None
    other.add(PIECE[:1])
    assert str(large.ended).startswith(f"the gateway holds {MAX_COLLECTED_BYTES + 1} bytes of unfinished requests")
    assert small.ended is None
    assert (budget.requests.held, budget.requests.holders) == (1_001, 2)
    large.add(PIECE)
    assert (large.collected.counted, budget.requests.held) == (0, 1_001)


def test_connection_that_fills_the_budget_itself_is_ended():
    budget = CollectBudget()
    small, large = Requests(budget, 1_000), Requests(budget, MAX_COLLECTED_BYTES - 1_000)
    with pytest.raises(EndConnection, match="unfinished requests") as caught:
        large.add(PIECE[:1])
    assert caught.value.limit == "collected_bytes"
    assert (large.ended, small.ended, budget.requests.held) == (None, None, 1_000)


def test_one_large_connection_makes_room_for_several():
    budget = CollectBudget()
    large = Requests(budget, MAX_COLLECTED_BYTES // 2)
    small = [Requests(budget, MAX_COLLECTED_BYTES // 100) for _ in range(60)]
    assert large.ended is not None
    assert not any(each.ended for each in small)


def test_of_equal_connections_the_oldest_is_ended():
    budget = CollectBudget()
    several = [Requests(budget, MAX_COLLECTED_BYTES // 8) for _ in range(11)]
    assert [each.ended is not None for each in several] == [True] * 3 + [False] * 8


def test_connections_are_ended_until_the_rest_fits():
    budget = CollectBudget()
    several = [Requests(budget, MAX_COLLECTED_BYTES // 16) for _ in range(16)]
    new = Requests(budget)
    new.begin(MOST[: UNCOUNTED_BYTES + MAX_COLLECTED_BYTES // 16 * 3])
    assert [each.ended is not None for each in several] == [True] * 3 + [False] * 13
    assert new.ended is None


@pytest.mark.parametrize("kib", [64, 256])
def test_idle_small_connections_do_not_close_active_ones(kib):
    """960 connections just over the uncounted bytes, and 32 large ones, keep the budget full and send nothing."""
    budget = CollectBudget()
    idle = [Requests(budget, 1) for _ in range(960)]
    idle += [Requests(budget, MAX_COLLECTED_BYTES // 32) for _ in range(32)]
    for _ in range(100):
        active = Requests(budget, kib * 1024)
        for _ in range(10):
            active.add(PIECE)
        active.collected.drop()
    assert not any(each.ended for each in idle[:960])


def test_idle_equal_connections_do_not_close_active_ones():
    """1 024 connections of 32 KiB send nothing, and a larger request arrives among them."""
    budget = CollectBudget()
    idle = [Requests(budget, MAX_COLLECTED_BYTES // 1024) for _ in range(1024)]
    active = Requests(budget)
    active.begin(PIECE)
    for _ in range(15):
        active.add(PIECE)
    assert active.ended is None
    assert [each.ended is not None for each in idle] == [True] * 15 + [False] * 1009


@pytest.mark.parametrize("rounds", [1, 20])
def test_old_small_connection_outlives_large_ones(rounds):
    """Its age counts up to one budget only: otherwise each overrun would close the clients that are muted for long."""
    budget = CollectBudget()
    old = Requests(budget, 1_000)
    for _ in range(rounds):
        for _ in range(64):
            Requests(budget, MAX_COLLECTED_BYTES // 32)
    assert old.ended is None


def test_size_is_compared_by_the_bytes_held_now():
    budget = CollectBudget()
    grown, other = Requests(budget, 1), Requests(budget, MAX_COLLECTED_BYTES // 4)
    grown.add(MOST[: MAX_COLLECTED_BYTES // 2])
    shrunk = Requests(budget, MAX_COLLECTED_BYTES // 4 - 1)
    shrunk.collected.drop()
    Requests(budget, MAX_COLLECTED_BYTES // 4)
    assert (grown.ended, other.ended, shrunk.ended) == (grown.ended, None, None)
    assert grown.ended is not None


def test_collected_bytes_are_given_back():
    budget = CollectBudget()
    one, other = Collected(budget), Collected(budget)
    one.begin(MOST, records=False)
    other.begin(MOST[: 2 * UNCOUNTED_BYTES], records=False)
    assert len(one.take(memoryview(b""))) == MAX_COLLECTED_BYTES
    assert not one
    one.drop()
    other.drop()
    assert (budget.requests.held, budget.requests.holders) == (0, 0)


@pytest.mark.parametrize("records", [True, False])
def test_next_request_is_counted_by_its_own_budget(records):
    """Even if the bytes of a request of the other kind still count."""
    budget = CollectBudget()
    one = Collected(budget)
    one.begin(MOST, records=records)
    one.take(memoryview(b""))
    one.begin(PIECE, records=not records)
    assert (budget.records.held, budget.requests.held) == (0, 0)
    one.drop()
    assert (budget.records.held, budget.records.holders, budget.requests.held, budget.requests.holders) == (0, 0, 0, 0)


def test_small_requests_pass_an_exhausted_budget():
    budget = CollectBudget()
    full = Requests(budget, MAX_COLLECTED_BYTES)
    small = Requests(budget)
    small.begin(PIECE)
    assert small.collected.take(memoryview(b"rest")) == bytes(PIECE) + b"rest"
    assert full.ended is None


def test_produce_requests_have_a_larger_budget():
    budget = CollectBudget()
    produce = Collected(budget)
    produce.begin(MOST, records=True)
    assert (budget.requests.held, budget.records.held) == (0, MAX_COLLECTED_BYTES - UNCOUNTED_BYTES)
    for _ in range(MAX_RECORDS_BYTES // len(MOST) - 1):
        produce.add(MOST)
    produce.add(PIECE)
    with pytest.raises(EndConnection):
        produce.add(PIECE[:1])


# Answers.


def held(budget):
    return budget.answers.held, budget.answers.holders


def test_answer_counts_until_it_is_read():
    budget = CollectBudget()
    answers = HeldAnswers(budget.answers)
    answers.begin(UNCOUNTED_BYTES)
    assert held(budget) == (0, 0)
    answers.end(UNCOUNTED_BYTES)
    answers.begin(5)
    assert held(budget) == (5, 1)
    answers.end(7)
    assert held(budget) == (7, 1)
    answers.add(1)
    assert held(budget) == (8, 1)
    answers.read()
    assert held(budget) == (0, 0)


def test_reading_leaves_the_answer_that_arrives():
    budget = CollectBudget()
    answers = HeldAnswers(budget.answers)
    answers.begin(100)
    answers.end(100)
    answers.begin(UNCOUNTED_BYTES + 7)
    answers.read()
    assert held(budget) == (7, 1)


def test_own_answer_counts_before_and_after_its_turn():
    budget = CollectBudget()
    answers = HeldAnswers(budget.answers)
    answers.wait(UNCOUNTED_BYTES + 7)
    answers.wait(3)
    answers.settle(unread=False)
    assert held(budget) == (10, 1)
    answers.written(UNCOUNTED_BYTES + 7)
    answers.settle(unread=True)
    assert held(budget) == (10, 1)
    answers.settle(unread=False)
    assert held(budget) == (0, 0)
    answers.wait(UNCOUNTED_BYTES)
    assert held(budget) == (3, 1)


def test_connection_with_most_answers_is_ended_once():
    budget = CollectBudget()
    most, few = HeldAnswers(budget.answers), HeldAnswers(budget.answers)
    few.begin(UNCOUNTED_BYTES + 1)
    most.begin(UNCOUNTED_BYTES + MAX_ANSWER_BYTES - 1)
    most.settle(unread=True)
    few.begin(UNCOUNTED_BYTES + 2)
    with pytest.raises(EndConnection, match="of answers") as caught:
        most.settle(unread=True)
    assert caught.value.limit == "collected_bytes"
    most.begin(2 * MAX_ANSWER_BYTES)
    most.settle(unread=True)
    assert held(budget) == (2, 1)


def coordinators(correlation_id, groups, host="kafka-0.internal"):
    """A FindCoordinator, its answer by the broker, and the answer for the client."""
    request = codec.encode_request(ApiKey.FIND_COORDINATOR, 4, {"key_type": 0, "coordinator_keys": groups}, correlation_id, "x")

    def found(host, port):
        rows = [{"key": group, "node_id": 0, "host": host, "port": port, "error_code": 0} for group in groups]
        return codec.encode_response(ApiKey.FIND_COORDINATOR, 4, {"coordinators": rows}, correlation_id)

    return request, found("kafka-0.internal", 9092), found("weir.example.com", 29_093)


class CollectingHandler:
    """Collects each request, and forwards it whole."""

    def __init__(self, connection):
        pass

    def handle(self, request, now):
        return FORWARD if request.whole else COLLECT


GROUPS = [f"group-{number}" for number in range(1_000)]


def test_collected_answer_counts_while_it_arrives():
    budget = CollectBudget()
    t = Transcript(collect_budget=budget)
    request, answer, expected = coordinators(1, GROUPS)
    t.client_sends(m.heartbeat(0), request)
    t.broker_answers(m.beat(0), answer[:100])
    assert held(budget) == (len(answer) - UNCOUNTED_BYTES, 1)
    t.broker_answers(answer[100:])
    assert held(budget) == (0, 0)
    t.client_got(m.beat(0), expected)


def test_unread_answer_counts_until_client_reads():
    budget = CollectBudget()
    t = Transcript(collect_budget=budget)
    request, answer, expected = coordinators(1, GROUPS)
    t.client_sends(request, m.heartbeat(2))
    t.broker_answers(answer[:100])
    t.core.requests.pause_for_client()
    t.broker_answers(answer[100:], m.beat(2))
    assert held(budget) == (len(answer) - UNCOUNTED_BYTES, 1)
    t.core.client_reads(t.now)
    assert held(budget) == (0, 0)
    t.client_got(expected, m.beat(2))


@pytest.mark.parametrize("unread", [False, True])
def test_answers_of_a_client_that_has_gone_do_not_count(unread):
    budget = CollectBudget()
    t = Transcript(collect_budget=budget)
    request, answer, _ = coordinators(1, GROUPS)
    t.client_sends(request)
    t.broker_answers(answer[:100])
    if unread:
        t.core.requests.pause_for_client()
        t.broker_answers(answer[100:])
    assert held(budget)[1] == 1
    t.core.close(t.now)
    assert held(budget) == (0, 0)


def test_connection_with_most_answers_is_ended_for_another():
    budget = CollectBudget()
    most, few = HeldAnswers(budget.answers), HeldAnswers(budget.answers)
    ended = []
    most.evict = ended.append
    most.begin(UNCOUNTED_BYTES + MAX_ANSWER_BYTES)
    few.begin(UNCOUNTED_BYTES + 1)
    few.settle(unread=True)
    assert len(ended) == 1
    most.begin(UNCOUNTED_BYTES + MAX_ANSWER_BYTES)
    most.settle(unread=True)
    assert (held(budget), len(ended)) == ((1, 1), 1)


def test_answer_beyond_the_budget_ends_its_connection():
    budget = CollectBudget()
    budget.answers.maximum = 1_000
    t = Transcript(collect_budget=budget)
    request, answer, expected = coordinators(1, GROUPS)
    t.client_sends(m.heartbeat(0), request)
    with pytest.raises(EndConnection):
        t.broker_answers(m.beat(0) + answer[:100])
    t.client_got(m.beat(0))
    t.broker_answers(answer[100:])
    t.client_got(expected)


def test_session_with_unread_answer_ends_for_another():
    budget = CollectBudget()
    request, answer, _ = coordinators(1, GROUPS)
    budget.answers.maximum = len(answer)
    idle, active = Transcript(collect_budget=budget), Transcript(collect_budget=budget)
    for t in (idle, active):
        t.client_sends(request)
        t.broker_answers(answer[:100])
    assert active.ended is None
    assert "of answers" in str(idle.ended)
    assert idle.ended.limit == "collected_bytes"


def test_session_with_unfinished_request_ends_for_another():
    budget = CollectBudget()
    budget.requests.maximum = 100_000
    idle, active = (Transcript(collect_budget=budget, handlers={ApiKey.DESCRIBE_GROUPS: CollectingHandler}) for _ in range(2))
    request = codec.encode_request(ApiKey.DESCRIBE_GROUPS, 5, {"groups": ["g" * 30_000] * 3}, 1, "x")
    idle.client_sends(request[:-1])
    active.client_sends(request[:-1])
    assert active.ended is None
    assert "of unfinished requests" in str(idle.ended)
    idle.broker_got()
    active.client_sends(request[-1:])
    active.broker_got(request)


@pytest.mark.parametrize("version", range(7))
def test_long_find_coordinator_is_refused(version):
    """A broker repeats each key in its answer, which Weir collects."""
    size = find_coordinator.MAX_REQUEST_BYTES
    values = {"coordinator_keys": ["g"]} if version >= 4 else {"key": "g"}
    frame = codec.encode_request(ApiKey.FIND_COORDINATOR, version, values, 1, "x")
    accepted, refused = Transcript(), Transcript()
    accepted.client_sends((size - 4).to_bytes(4, "big") + frame[4:])
    assert len(accepted.broker_inbox) == len(frame)
    with pytest.raises(ProtocolError) as caught:
        refused.client_sends((size - 3).to_bytes(4, "big") + frame[4:])
    assert caught.value.reason == "frame_too_large"


def test_coordinators_of_20_000_groups_are_found():
    request, answer, expected = coordinators(1, [f"{number}".rjust(150, "g") for number in range(20_000)])
    t = Transcript()
    t.client_sends(request)
    t.broker_got(request)
    t.broker_answers(answer, by=1 << 18)
    t.client_got(expected)


def test_long_collected_answer_is_written_in_pieces_of_its_own():
    """A transport that refers to the rest of one refers to no other bytes."""
    request, answer, expected = coordinators(1, ["g" * 32_000] * 20)
    written: list[bytes] = []
    t = Transcript()
    t.core.responses.writer = PassingWriter(written.append)
    t.client_sends(request)
    t.broker_answers(answer, by=100_000)
    assert b"".join(written) == expected
    assert [len(piece) for piece in written] == [MAX_PIECE_BYTES, MAX_PIECE_BYTES, len(expected) - 2 * MAX_PIECE_BYTES]
    assert {type(piece) for piece in written} == {bytes}


# Weir's own answers, which have the topics of the refused requests.

NAMES = tuple(f"{number:06}".ljust(200, "t") for number in range(500))


class Refused(Transcript):
    """The client of a cluster in a volume pause. `reads` is False for one that does not read its answers."""

    def __init__(self, budget, *, reads=True):
        self.reads = reads
        self.gate = ProduceGate()
        self.gate.delay, self.gate.paused = 5.0, True
        super().__init__(gate=self.gate, collect_budget=budget)
        self.pieces = []

    def client_sends(self, *requests, by=None):
        super().client_sends(*requests, by=by)
        self.goes_on()

    def write_client(self, data):
        super().write_client(data)
        self.pieces.append(len(data))
        if not self.reads:
            self.core.requests.pause_for_client()

    @property
    def received(self):
        return len(self.client_inbox)


@pytest.mark.parametrize("by", [None, 65_536])
def test_refusal_counts_until_its_client_reads(by):
    budget = CollectBudget()
    t = Refused(budget, reads=False)
    t.client_sends(m.produce(1, topics=NAMES), by=by)
    assert t.received > len("".join(NAMES))
    assert held(budget) == (t.received - UNCOUNTED_BYTES, 1)
    t.core.client_reads(t.now)
    assert held(budget) == (0, 0)


def test_refusal_to_a_client_that_reads_does_not_count():
    budget = CollectBudget()
    t = Refused(budget)
    t.client_sends(m.produce(1, topics=NAMES))
    assert t.received > UNCOUNTED_BYTES
    assert held(budget) == (0, 0)


def test_refusal_counts_while_it_waits_for_its_turn():
    budget = CollectBudget()
    t = Refused(budget)
    t.client_sends(m.heartbeat(1), m.produce(2, topics=NAMES))
    assert t.received == 0
    assert held(budget)[0] > len("".join(NAMES)) - UNCOUNTED_BYTES
    t.broker_answers(m.beat(1))
    assert t.received > len("".join(NAMES))
    assert held(budget) == (0, 0)


def test_refusal_beyond_the_budget_ends_its_connection():
    budget = CollectBudget()
    budget.answers.maximum = 100_000
    first, second = Refused(budget, reads=False), Refused(budget, reads=False)
    first.client_sends(m.produce(1, topics=NAMES[:250]))
    with pytest.raises(EndConnection, match="of answers") as caught:
        second.client_sends(m.produce(1, topics=NAMES))
    assert caught.value.limit == "collected_bytes"
    second.core.close(second.now)
    assert held(budget) == (first.received - UNCOUNTED_BYTES, 1)


def test_long_refusal_is_written_in_pieces():
    t = Refused(CollectBudget())
    t.client_sends(m.produce(1, topics=tuple(f"{number:06}".ljust(249, "t") for number in range(3_000))))
    assert len(t.pieces) > 1
    assert max(t.pieces) == MAX_PIECE_BYTES


def test_answer_counts_with_the_results_that_weir_adds():
    """The broker's answer has one topic. Weir adds those with a batch behind a refused one."""
    budget = CollectBudget()
    t = Refused(budget)
    names = [*NAMES, "other"]

    def produce(correlation_id, sequence):
        topics = [
            {"name": name, "partition_data": [{"index": 0, "records": m.numbered_batch(sequence)}]}
            for name in (NAMES if sequence == 0 else names)
        ]
        values = {"acks": -1, "timeout_ms": 1_000, "topic_data": topics}
        return codec.encode_request(ApiKey.PRODUCE, 9, values, correlation_id, "x")

    t.client_sends(produce(1, sequence=0))
    t.gate.delay, t.gate.paused = 0.0, False
    t.passes(5.0)
    t.client_sends(produce(2, sequence=5))
    t.goes_on()
    t.client_inbox.clear()
    t.reads = False
    t.broker_answers(m.produced(2, topic="other"))
    assert t.received > len("".join(NAMES))
    assert held(budget) == (t.received - UNCOUNTED_BYTES, 1)


def test_kept_bytes_count_beside_unread_answers():
    budget = Budget(1_000, "answers")
    held = HeldAnswers(budget)
    kept = KeptBytes(held.keep)
    kept.are(UNCOUNTED_BYTES + 100)
    assert budget.held == 100
    kept.are(UNCOUNTED_BYTES + 30)
    held.add(50)
    assert budget.held == 80
    kept.are(0)
    assert budget.held == 0
