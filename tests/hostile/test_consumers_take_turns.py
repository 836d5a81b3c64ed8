"""Consumers that share a quota are served in turn, with throttle times that end at their turns."""

from threading import Barrier, Lock, Thread

from protocol.api_keys import ApiKey
from protocol.throttle import read_throttle, throttle_offset
from tests.gateway.proxy import messages as m
from tests.gateway.proxy.consumers import jain
from tests.hostile.raw_client import RawClient

CONSUMERS = 20
QUOTA = 2_000_000
ANSWER = 50_000
FULL_ANSWERS = 6 * CONSUMERS
OUTSIDE = (0, -1)


class Consumer(Thread):
    """Fetches again as soon as it is answered and ignores throttle times."""

    lock = Lock()

    def __init__(self, weir, left, start):
        super().__init__(daemon=True)
        self.client = RawClient(weir.bootstrap_servers)
        self.left = left
        self.all_start = start
        self.full = 0
        self.throttles = []  # the throttle times of empty answers

    def run(self):
        with self.client:
            self.all_start.wait()
            while self.left:
                answer, _ = self.client.ask(m.fetch(1, session=OUTSIDE))
                if len(answer) > ANSWER:
                    self.full += 1
                    with self.lock:
                        del self.left[-1:]
                else:
                    self.throttles.append(read_throttle(answer, throttle_offset(ApiKey.FETCH, 12, answer, 0, len(answer))))


def test_consumers_of_one_entity_take_turns(broker, start_weir):
    broker.answers[ApiKey.FETCH] = lambda request: m.fetched(request.correlation_id, records=m.batch(ANSWER))
    quotas = {"window": {"samples": 2, "seconds": 1}, "entities": [{"client-id": "etl", "consumer_byte_rate": QUOTA}]}
    weir = start_weir(broker.bootstrap_servers, quotas=quotas)
    left = [None] * FULL_ANSWERS
    start = Barrier(CONSUMERS)
    consumers = [Consumer(weir, left, start) for _ in range(CONSUMERS)]
    for consumer in consumers:
        consumer.start()
    for consumer in consumers:
        consumer.join(30.0)
    empty = sum(len(consumer.throttles) for consumer in consumers)
    full = [consumer.full for consumer in consumers]
    assert sum(full) >= FULL_ANSWERS
    assert empty <= 2 * sum(full)
    assert jain([float(count) for count in full]) >= 0.8
    assert broker.count(ApiKey.FETCH) == sum(full)
