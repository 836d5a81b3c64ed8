"""One connection under random events: in any order, each request is forwarded or answered once, and none waits for ever."""

from hypothesis import given
from hypothesis import settings as settings_of_hypothesis
from hypothesis import strategies as st

from gateway.features.controller_mutations import handlers as mutations
from gateway.features.controller_mutations.costs import KnownTopics
from gateway.proxy.produce_gate import ProduceGate
from gateway.proxy.states import RequestState
from gateway.quotas.entity import DEFAULT, ClientQuotaEntity, EntityQuota
from gateway.quotas.own_topics import OwnTopics
from gateway.quotas.settings import QuotaSettings
from protocol.api_keys import ApiKey
from tests.gateway.features.controller_mutations import mutation_session as topics
from tests.gateway.proxy import messages as m
from tests.gateway.proxy.transcript import Transcript
from tests.gateway.quotas.engines import bucket_of
from tests.protocol import codec

EXAMPLES = 150
OWN_TOPIC = "__weir_volume_usage"
IN_SESSION = (7, 3)
QUESTION_VERSION = 4  # of Weir's own Metadata requests; the client's have another one


def entity(user=None, client_id=None):
    quotas = {"producer_byte_rate": 100.0, "consumer_byte_rate": 100.0, "controller_mutation_rate": 1.0}
    return EntityQuota(ClientQuotaEntity(user, client_id), quotas)


SETTINGS = [
    QuotaSettings((entity(client_id="etl"),)),
    QuotaSettings(),
    QuotaSettings((entity(client_id="etl"), entity(user="ANONYMOUS", client_id="etl"))),
    QuotaSettings((entity(user=DEFAULT),), algorithm="window"),
    QuotaSettings((entity(client_id="etl"),), enforce=False),
]
DELAYS = [(0.0, False), (0.0, False), (0.5, False), (5.0, True)]  # of the volumes, and whether they pause producers


REQUESTS = [
    lambda number: m.produce(number, size=80),
    lambda number: m.produce(number, size=900),
    lambda number: m.produce(number, size=300, acks=0),
    lambda number: m.produce(number, size=1_500, client_id="other"),
    lambda number: m.produce(number, size=200, topics=(OWN_TOPIC,)),
    lambda number: m.fetch(number, session=(0, -1)),
    lambda number: m.fetch(number, session=IN_SESSION),
    m.share_fetch,
    lambda number: m.share_fetch(number, epoch=-1),
    m.metadata,
    m.heartbeat,
    lambda number: topics.create(number, {f"t{number}": 9}),
    lambda number: topics.create(number, {f"t{number}": 9}, version=topics.PERMISSIVE[topics.CREATE]),
]


def head_of(frame):
    """The API key, the version and the correlation id of a request."""
    return tuple(int.from_bytes(frame[at : at + size], "big") for at, size in ((4, 2), (6, 2), (8, 4)))


def frames_of(stream):
    """Remove the whole frames from the start of a stream, and return them."""
    frames = []
    while len(stream) >= 4 and len(stream) >= (size := 4 + int.from_bytes(stream[:4], "big")):
        frames.append(bytes(stream[:size]))
        del stream[:size]
    return frames


def wants_answer(frame):
    key, version, _ = head_of(frame)
    return key != ApiKey.PRODUCE or codec.request_class(key).decode(frame[4:], version=version, header=True).acks != 0


class AnyOrder:
    """A client, a broker and all other actors of a connection. The number of each event selects a variant."""

    def __init__(self):
        self.gate = ProduceGate()
        self.t = Transcript(
            SETTINGS[0], gate=self.gate, handlers=mutations.handler_factories(KnownTopics()), own_topics=OwnTopics([OWN_TOPIC])
        )
        self.controller = topics.Controller(self.t)
        self.requests = []
        self.forwarded = []
        self.sent_by_others = 0
        self.to_send = bytearray()
        self.to_answer = bytearray()
        self.reads = True

    def ask(self, number):
        """The client prepares one more request."""
        frame = REQUESTS[number % len(REQUESTS)](len(self.requests) + 1)
        self.requests.append(frame)
        self.to_send += frame

    def send(self, number):
        """A part of the client's bytes arrives."""
        size = number * 10 if number else len(self.to_send)
        chunk = bytes(self.to_send[:size])
        del self.to_send[:size]
        if chunk and not self.t.socket and number % 5 == 1:
            self.t.client_sends_into_the_loop(chunk)
        elif chunk:
            self.t.client_sends(chunk, uncopied=number % 3 == 0)

    def answer(self, number):
        """The broker answers its requests, and a part of the answers arrives."""
        for frame in frames_of(self.t.broker_inbox):
            self.to_answer += self._answer_to(frame)
        size = number * 10 if number else len(self.to_answer)
        if self.reads and self.to_answer:
            chunk = bytes(self.to_answer[:size])
            del self.to_answer[:size]
            self.t.broker_answers(chunk)

    def _answer_to(self, frame):
        key, version, number = head_of(frame)
        if (key, version) == (ApiKey.METADATA, QUESTION_VERSION):
            return self.controller._answer(frame)
        self.forwarded.append(frame)
        if key == ApiKey.PRODUCE:
            return m.produced(number) if wants_answer(frame) else b""
        if key == ApiKey.FETCH:
            return m.fetched(number, session_id=7, records=m.batch(60 + number * 97 % 500))
        if key == ApiKey.SHARE_FETCH:
            values = {"throttle_time_ms": 0, "responses": []}
            return codec.encode_response(key, version, values, number)
        if key == ApiKey.METADATA:
            return m.described(number, m.BROKERS)
        if key == ApiKey.HEARTBEAT:
            return m.beat(number)
        return self.controller._answer(frame)

    def wait(self, number):
        """Time passes."""
        self.t.passes(number / 20)

    def loop(self, number):
        """The event loop runs the `ready` callback of a handler."""
        if self.t.called_ready:
            self.t.run_ready()

    def configure(self, number):
        """Other quotas are in effect."""
        self.t.configure(SETTINGS[number % len(SETTINGS)])

    def fill(self, number):
        """The volumes set another delay, pause producers, or release producers."""
        self.gate.delay, self.gate.paused = DELAYS[number % len(DELAYS)]
        self.t.engine.recall()
        self.t.core.reconsider(self.t.now)

    def overdraw(self, number):
        """Another connection uses up a quota."""
        kind, amount = ("produce", number * 50) if number % 2 else ("fetch", number * 3)
        bucket = bucket_of(self.t.engine, kind, "ANONYMOUS", "etl", self.t.now)
        bucket.record(amount, self.t.now)
        self.t.engine.release(bucket, self.t.now)
        self.sent_by_others += amount if kind == "produce" else 0

    def forgive(self, number):
        """An operator clears all debts."""
        buckets = {bucket for bucket in self.t.engine.buckets() if bucket.meter is not None}
        for bucket in buckets:
            bucket.meter.forgive(self.t.now)
        self.t.core.throttle.let_go(buckets, self.t.now)

    def stop_reading(self, number):
        """The client reads no more answers."""
        if self.reads:
            self.reads = False
            self.t.core.requests.pause_for_client()

    def read_on(self, number):
        """The client reads again."""
        if not self.reads:
            self.reads = True
            self.t.core.client_reads(self.t.now)
            self.t._read_socket()

    def settle(self):
        """Client and broker continue until no work is left."""
        self.fill(0)
        self.read_on(0)
        self.send(0)
        for _ in range(2 * len(self.requests) + 2):
            self.answer(0)
            self.loop(0)
            self.t.passes(200.0)


EVENTS = {
    "ask": 6,
    "send": 5,
    "answer": 4,
    "wait": 3,
    "loop": 2,
    "configure": 1,
    "fill": 2,
    "overdraw": 2,
    "forgive": 1,
    "stop_reading": 1,
    "read_on": 2,
}
EVENT = st.sampled_from([name for name, weight in EVENTS.items() for _ in range(weight)])


def assert_all_done(session):
    core, requests = session.t.core, session.t.core.requests
    assert not session.t.socket
    direction, splitter, fetch = requests._direction, requests._splitter, core.responses._fetch
    assert (session.t.paused, direction.reasons, direction.state) == (False, 0, RequestState.READING)
    assert (splitter.held, splitter.irregular, bool(splitter.collected)) == (b"", False, False)
    assert (core.throttle.active, len(core.in_flight)) == (False, 0)
    assert (core.responses.held.waiting, requests._decision._waiting) == (0, None)
    assert (fetch._requested, fetch.share_pending, core.client.place._place) == (0, None, None)


def assert_each_request_once(session):
    answers = [int.from_bytes(frame[4:8], "big") for frame in frames_of(session.t.client_inbox)]
    assert not session.t.client_inbox
    assert answers == [head_of(frame)[2] for frame in session.requests if wants_answer(frame)]
    heads = [head_of(frame) for frame in session.forwarded]
    assert heads == [head_of(frame) for frame in session.requests if head_of(frame) in set(heads)]
    for frame in session.forwarded:
        request = session.requests[head_of(frame)[2] - 1]
        limited = head_of(frame)[0] in (ApiKey.FETCH, ApiKey.SHARE_FETCH)
        assert len(frame) == len(request) if limited else frame == request


def assert_charged_once(session):
    engine = session.t.engine
    sent = sum(len(frame) - 4 for frame in session.forwarded if head_of(frame)[0] == ApiKey.PRODUCE)
    buckets = [bucket for bucket in engine.buckets() if bucket.kind.name == "produce"]
    charged = sum(bucket.amount_total for bucket in [*buckets, engine.internal])
    assert charged == sent + session.sent_by_others
    for bucket in engine.buckets():
        bucket.line.reserved(session.t.now)
        assert (bucket.first_requests.waiting, bucket.line.promised) == (0, 0)


@settings_of_hypothesis(max_examples=EXAMPLES, deadline=None, derandomize=True)  # the same examples wherever it runs
@given(st.lists(st.tuples(EVENT, st.integers(0, 60)), min_size=30, max_size=60))
def test_each_request_is_handled_once_in_any_order(events):
    session = AnyOrder()
    for name, number in events:
        getattr(session, name)(number)
    session.settle()
    assert_all_done(session)
    assert_each_request_once(session)
    assert_charged_once(session)
