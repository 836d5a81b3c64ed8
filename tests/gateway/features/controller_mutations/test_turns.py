"""Clients that create topics under one quota, with real sessions: each gets its turn, whatever versions the others use.

A fair queue would serve each client once while all of them are served.
"""

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.features.controller_mutations.feature import ControllerMutations
from gateway.features.controller_mutations.turns import KEPT_TICKS, MAX_KEPT, Place, Turns
from gateway.quotas.engine import QuotaEngine
from gateway.quotas.entity import DEFAULT, ClientQuotaEntity, EntityQuota
from gateway.quotas.first_requests import MAX_KEPT_TURNS
from gateway.quotas.kinds.controller_mutation import KIND
from gateway.quotas.settings import QuotaSettings
from gateway.steps import at_once
from protocol.api_keys import ApiKey
from tests.gateway.features.controller_mutations import mutation_session as m
from tests.gateway.proxy.crowd import Crowd, CrowdSession, longest_gap
from tests.gateway.proxy.transcript import START
from tests.gateway.quotas.engines import bucket_of
from tests.protocol import codec

RATE = 2.0
STRICT, PERMISSIVE = 7, 5
THROTTLED = 89
POLICY_VIOLATION = 44
NAMES = 20
"""A topic that was created less than 5 s ago costs nothing, so a client names its topics in turn."""


@cache
def frames(name, partitions, version, *, fails):
    result = {"name": name} | ({"error_code": POLICY_VIOLATION} if fails else {"num_partitions": partitions})
    created = m.answered(m.CREATE, 1, [result], version=version)
    return m.create(1, {name: partitions}, version=version), m.metadata_answer(1, {name: 0}), created


class Creator:
    """Creates topics one after the other. It comes `late` seconds after its throttle times.

    After `timeout` seconds without an answer, it connects again.
    """

    def __init__(self, crowd, number, partitions=50, *, version=PERMISSIVE, timeout=None, late=0.0, fails=False):
        self.crowd, self.number, self.partitions, self.version = crowd, number, partitions, version
        self.timeout, self.late, self.fails = timeout, late, fails
        self.created = []
        self.session = CrowdSession(crowd, self.serve, self.take)
        self.request = None
        crowd.after(crowd.chance.random() / 100, self.send)

    def frames(self):
        return frames(f"t{self.number}-{len(self.created) % NAMES}", self.partitions, self.version, fails=self.fails)

    def send(self):
        if self.session.closed:
            self.session = CrowdSession(self.crowd, self.serve, self.take)
        self.request = request = object()
        if self.timeout is not None:
            self.crowd.after(self.timeout, lambda: self.give_up(request))
        self.session.send(self.frames()[0])

    def give_up(self, request):
        if request is self.request:
            self.session.close()
            self.crowd.after(0.1, self.send)

    def serve(self, frame):
        _, metadata, created = self.frames()
        return metadata if int.from_bytes(frame[4:6], "big") == ApiKey.METADATA else created

    def take(self, frame):
        self.request = None
        answer = codec.decode_response(m.CREATE, self.version, frame)
        if answer["topics"][0]["error_code"] != THROTTLED:
            self.created.append(self.crowd.now)
        self.crowd.after(answer["throttle_time_ms"] / 1000 + self.late, self.send)

    @property
    def longest_wait(self):
        return longest_gap(self.created, self.crowd.now)


def crowd_of(clients, seconds, rate=RATE, seed=0):
    quota = EntityQuota(ClientQuotaEntity(None, "etl"), {"controller_mutation_rate": rate})
    feature = ControllerMutations()
    crowd = Crowd(QuotaSettings((quota,)), dict(feature.handlers()), lambda now: at_once(feature.tick(now)), seed)
    found = [Creator(crowd, number, **options) for number, options in enumerate(clients)]
    crowd.run(seconds)
    return found


def fair_wait(clients, rate=RATE):
    return sum(each.partitions for each in clients) / rate


@pytest.mark.parametrize(
    "clients",
    [
        [{}] * 8,
        [{"version": STRICT}] * 8,
        [{}] * 5 + [{"version": STRICT}] * 3,
        [{"timeout": 60.0}] * 8,
        [{"partitions": 100}] * 4 + [{"partitions": 1}] * 3,
    ],
    ids=["permissive", "strict", "mixed", "reconnecting", "sizes"],
)
def test_each_client_gets_its_turn(clients):
    found = crowd_of(clients, 1_000.0)
    assert max(each.longest_wait for each in found) <= 1.05 * fair_wait(found)


@pytest.mark.parametrize(("timeout", "seed"), [(3.95, 1), (4.4, 0)])
def test_client_that_reconnects_at_its_turn_is_served(timeout, seed):
    """The debt is 4 s. A place that was left is due as the client comes again: its request was deferred, and never woken."""
    once, reconnecting = crowd_of([{"partitions": 30, "late": 100.0}, {"partitions": 1, "timeout": timeout}], 9.0, seed=seed)
    assert len(once.created) == 1
    assert reconnecting.longest_wait < timeout + 1.0


def test_late_strict_client_is_not_overtaken():
    """The turn of one partition lasts for 50 ms at this rate, and its request comes 100 ms late."""
    late = {"partitions": 1, "version": STRICT, "late": 0.1}
    found = crowd_of([late] * 3 + [{}] * 3, 120.0, rate=20.0)
    assert max(each.longest_wait for each in found) <= 1.5 * fair_wait(found, 20.0)


def test_turns_exceed_no_quota():
    """Clients of all kinds, some of them late on purpose: they get the quota and one burst."""
    clients = [{"partitions": 20, "version": STRICT, "late": 3.0}] * 10 + [{"partitions": 20}] * 5
    found = crowd_of(clients, 600.0)
    burst = 11 * RATE
    assert sum(len(each.created) * each.partitions for each in found) <= RATE * 600.0 + burst + 2 * 20


@pytest.mark.parametrize("version", [STRICT, PERMISSIVE])
def test_refused_claims_hold_up_nobody(version):
    """Ten clients ask for 9 999 partitions all the time, and the broker refuses them."""
    claims = [{"partitions": 9_999, "version": version, "late": 0.05, "fails": True}] * 10
    honest = [{"partitions": 10}, {"partitions": 10, "version": STRICT}] * 2
    found = crowd_of(honest + claims, 400.0)[: len(honest)]
    assert sum(len(each.created) * each.partitions for each in found) >= 0.9 * RATE * 400.0
    assert max(each.longest_wait for each in found) <= 2.0 * fair_wait(found)


client = st.fixed_dictionaries(
    {
        "partitions": st.integers(1, 60),
        "version": st.sampled_from([STRICT, PERMISSIVE]),
        "late": st.sampled_from([0.0, 0.05]),
        "timeout": st.sampled_from([None, 45.0]),
    }
)


@settings(max_examples=15)
@given(st.lists(client, min_size=2, max_size=8), st.integers(0, 1_000))
def test_no_mix_of_clients_starves_one(clients, seed):
    """A turn that was left is used up to 15 s later, since longer waits have several parts."""
    fair = sum(each["partitions"] for each in clients) / RATE
    found = crowd_of(clients, 5 * fair + 60.0, seed=seed)
    assert max(each.longest_wait for each in found) <= 1.5 * fair + 30.0


def test_waiting_requests_are_looked_at_in_turn():
    """If all requests were looked at after each debt, their number would grow with the square of the clients'."""
    few, many = (crowd_of([{"partitions": 2}] * number, 60.0)[0].crowd.events for number in (20, 80))
    assert many <= 8 * few


def leave_places(turns, buckets, number):
    """Let connections go while their requests wait for these buckets."""
    places = [Place(turns) for _ in range(number)]
    for place in places:
        place.take(buckets, 1, START)
    for place in places:
        place.close()


def take_places(turns, buckets):
    return sum(1 for _ in iter(lambda: turns.take_left(buckets), None))


def indebted_buckets(number):
    quota = EntityQuota(ClientQuotaEntity(None, DEFAULT), {"controller_mutation_rate": RATE})
    engine = QuotaEngine(QuotaSettings((quota,)), START)
    buckets = [bucket_of(engine, KIND.name, "ANONYMOUS", f"c{number}", START) for number in range(number)]
    for bucket in buckets:
        bucket.charge(1_000, START)
    return [(bucket,) for bucket in buckets]


@pytest.mark.parametrize("served", [False, True])
def test_left_place_is_for_a_connection_that_was_not_served(served):
    """Its client would come back with a new one. Beside a client without timeouts, another one missed each second turn."""
    turns, (buckets,) = Turns(), indebted_buckets(1)
    later = Place(turns)
    if served:
        later.take(buckets, 1, START)
        later.serve(1, START)
    leave_places(turns, buckets, 1)
    later.take(buckets, 1, START)
    assert take_places(turns, buckets) == served


def test_left_places_of_a_client_are_bounded():
    turns, (buckets,) = Turns(), indebted_buckets(1)
    leave_places(turns, buckets, MAX_KEPT_TURNS + 5)
    assert take_places(turns, buckets) == MAX_KEPT_TURNS


def test_clients_with_left_places_are_bounded():
    turns, clients = Turns(), indebted_buckets(MAX_KEPT + 1)
    for buckets in clients:
        leave_places(turns, buckets, 1)
    assert [take_places(turns, buckets) for buckets in clients] == [1] * MAX_KEPT + [0]


@pytest.mark.parametrize(("seconds", "kept"), [(KEPT_TICKS, 1), (KEPT_TICKS + 1, 0)])
def test_left_place_is_kept_for_a_minute(seconds, kept):
    turns, (buckets,) = Turns(), indebted_buckets(1)
    leave_places(turns, buckets, 1)
    for _ in range(seconds):
        turns.tick()
    assert take_places(turns, buckets) == kept
