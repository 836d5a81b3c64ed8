"""Seeds of the simulation pass, and can be replayed; the simulation finds defects that are planted in the gateway."""

import asyncio
import gc
import os
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import replace
from math import inf

import pytest

from gateway.alter_queue import AlterQueue
from gateway.features.controller_mutations import handlers as mutations
from gateway.features.topic_quotas import produce_inspector
from gateway.features.topic_quotas.rules import TopicQuotas
from gateway.proxy import connection
from gateway.proxy.broker_end import Dialing
from gateway.proxy.channel_throttle import ChannelThrottle
from gateway.proxy.connection import Session
from gateway.proxy.fast_path import FastPath
from gateway.proxy.identity import Client
from gateway.proxy.listeners.proxy_headers import ProxyHeaders
from gateway.proxy.membership import Membership
from gateway.proxy.request_stream import RequestStream
from gateway.proxy.states import MUTED
from gateway.quotas import engine, fair_share, shadows
from gateway.quotas.bucket import Bucket
from gateway.quotas.engine import QuotaEngine
from gateway.quotas.group_meter import EntitledBucket
from gateway.quotas.shadows import ShadowEngine
from loadtest.simulation import series
from loadtest.simulation.plan import KINDS, Fault
from loadtest.simulation.run import Run
from loadtest.simulation.series import Series
from loadtest.simulation.shrink import shrink
from loadtest.simulation.styles import plan_of
from loadtest.testkit.paths import CHECKOUT
from protocol.bodies.partition_sizes import PartitionSizes

SEEDS = 200
MUTANT_SEEDS = 60


@contextmanager
def no_collections():
    """Cyclic garbage of runs is collected at the end, which saves a quarter of the time."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.collect()


@pytest.mark.parametrize("first", range(0, SEEDS, 50))
def test_seeds_hold_all_invariants(first):
    forwarded = 0
    with no_collections():
        for seed in range(first, first + 50):
            outcome = Run(plan_of(seed)).execute()
            assert not outcome.violations, f"seed {seed}: {outcome.violations[0]}"
            forwarded += outcome.forwarded
    assert forwarded > 1_000


def test_seed_replays_exactly():
    for seed in (0, 29, 45):
        first, second = (Run(plan_of(seed)).execute() for _ in range(2))
        assert (first.transcript, first.turns) == (second.transcript, second.turns)


TRANSCRIPTS = """
from loadtest.simulation.run import Run
from loadtest.simulation.styles import plan_of
print([Run(plan_of(seed)).execute().transcript for seed in range(20, 32)])
"""


@pytest.mark.process
def test_seed_does_not_depend_on_hashes_of_strings():
    found = {
        subprocess.run(
            [sys.executable, "-c", TRANSCRIPTS],
            env={**os.environ, "PYTHONHASHSEED": number, "PYTHONPATH": str(CHECKOUT)},
            cwd=CHECKOUT, check=True, capture_output=True, text=True, timeout=120,
        ).stdout
        for number in ("1", "2")
    }  # fmt: skip
    assert len(found) == 1


def test_seeds_differ():
    assert len({Run(plan_of(seed)).execute().transcript for seed in range(5)}) == 5


# Defects of the gateway. Each function plants one.


def charged_refusals(patch):
    """Topics that the broker refuses are charged like those that it creates."""
    patch.setattr(mutations.MutationHandler, "_worth", lambda self, topic, result, now: topic.cost)


def free_requests(patch):
    """Every third request of the fast path costs nothing."""
    charge, calls = Bucket.charge, [0]

    def forgetful(self, amount, now):
        calls[0] += 1
        return (0.0, False) if calls[0] % 3 == 0 else charge(self, amount, now)

    patch.setattr(Bucket, "charge", forgetful)


def no_timer(patch):
    patch.setattr(Session, "wake_at", lambda self, when: None)


def swapped_responses(patch):
    """Two responses that the broker sends in one chunk change places."""
    feed = Session.broker_data

    def swapped(self, data):
        size = 4 + int.from_bytes(data[:4], "big")
        if len(data) > size and 4 + int.from_bytes(data[size : size + 4], "big") == len(data) - size:
            self._core.in_flight.rotate(-1)
            data = data[size:] + data[:size]
        feed(self, data)

    patch.setattr(Session, "broker_data", swapped)


def first_request_twice(patch):
    """The first bytes go out before and after the connection to the broker is there."""
    dial = Dialing._dial

    async def twice(self):
        self.early += self.early
        await dial(self)

    patch.setattr(Dialing, "_dial", twice)


def no_mute(patch):
    """A client over its quota gets a throttle time, and is read all the same."""
    patch.setattr(ChannelThrottle, "_mute_for", lambda self, delay, now, bucket, entry: False)


def no_queue(patch):
    """A new connection need not wait for the debt of the one before."""
    patch.setattr(Bucket, "enter_queue", lambda self, amount, turn, now: (0.0, False, turn))


def selfish_member(patch):
    """Each gateway takes the whole quota for itself."""
    patch.setattr("gateway.features.sharing.member.share_of", lambda *arguments, newest: 1.0)
    patch.setattr(Bucket, "charge_others", lambda self, amount, now, *, no_debt: None)


def no_back_pressure(patch):
    patch.setattr(Session, "pause_writing", lambda self: None)
    patch.setattr(Session, "resume_writing", lambda self: None)


def lost_resume(patch):
    """A client that was paused for its own unread responses is not read again."""
    patch.setattr(RequestStream, "client_reads", lambda self, now: None)


def early_half_close(patch):
    """A drain does not wait for the responses in flight."""

    def half_close(self):
        if self._dialing is None and not self._core.requests._splitter.begun:
            self._core.requests.half_close(connection.monotonic())
            return True
        return False

    patch.setattr(Session, "half_close", half_close)


def endless_drain(patch):
    """The drain waits for a second signal that never comes."""
    patch.setattr("gateway.drain._first_of", _without_timeout)


async def _without_timeout(seconds, *what):
    for each in what[2:]:
        each.close()
    await asyncio.gather(*what[:2])


def charged_by_claim(patch):
    """A request is charged for the length in its header, not for the bytes that have arrived."""
    begin = FastPath.begin
    patch.setattr(
        FastPath, "begin", lambda self, buckets, entry, size, amount, now: begin(self, buckets, entry, size, size, now)
    )


def deaf_to_operators(patch):
    """A quota of the quota API takes effect only in the gateway that has got the request."""
    patch.setattr(AlterQueue, "follow", lambda self, quotas: None)


def no_groups(patch):
    """Members of a group are charged to their own buckets alone."""
    acquire = QuotaEngine.acquire_path

    def alone(self, *args, **more):
        first, *groups = acquire(self, *args, **more) or (None,)
        for bucket in groups:
            self.release(bucket, 0.0)
        return () if first is None else (first,)

    patch.setattr(QuotaEngine, "acquire_path", alone)


def endless_mute(patch):
    """A member of a consumer group is muted for the whole debt of its rate of requests."""
    patch.setattr(Membership, "longest_mute", lambda self, now: inf)


def free_loans(patch):
    """A group that borrows does not wait for its parent."""
    patch.setattr(EntitledBucket, "seconds_to_pay", lambda self, now, further=0.0: 0.0)


def no_guarantees(patch):
    """Only the weights divide a capacity."""
    fill = fair_share.fill
    patch.setattr(fair_share, "fill", lambda whole, wants, firsts, weights: fill(whole, wants, [0.0] * len(firsts), weights))


def rejected_topics_for_all(patch):
    """While the total is exceeded, topics within their own thresholds are rejected as well."""
    patch.setattr(TopicQuotas, "rejects", lambda self, use, now: use is not None and self.over(now))


def forwarded_rejections(patch):
    """Brokers get the batches that are rejected."""
    patch.setattr(produce_inspector, "remainder", lambda version, frame, scan, cut: frame)


def patient_topics(patch):
    """Topics are rejected only at three times the total."""
    patch.setattr(TopicQuotas, "over", lambda self, now: self.rate(now) > 3 * self.settings.total)


def forgotten_batches(patch):
    """Only the first topic of a request counts."""
    whole = PartitionSizes.__iter__

    def of_first_topic(self):
        found = list(whole(self))
        return iter([each for each in found if each[0] == found[0][0]])

    patch.setattr(PartitionSizes, "__iter__", of_first_topic)


def one_bucket_for_all_brokers(patch):
    patch.setattr(engine, "at_broker", lambda resolution, kind, broker, *, by_broker: resolution)


def enforced_shadows(patch):
    """Shadow limits delay their clients."""
    patch.setattr(shadows, "_measured_alone", lambda settings: settings)


def unmeasured_shadows(patch):
    patch.setattr(ShadowEngine, "acquire_path", lambda self, *args, **more: ())


def forgotten_users(patch):
    """The name of an authenticated user has no effect."""
    patch.setattr(Client, "identify", lambda self, *args: None)


def one_address_for_all_clients(patch):
    """The balancer's address takes the place of its clients' addresses."""
    read = ProxyHeaders.read

    async def balancers(self, connection, balancer):
        return balancer, (await read(self, connection, balancer))[1]

    patch.setattr(ProxyHeaders, "read", balancers)


def optional_headers(patch):
    """A connection without a header is served, although the config requires one."""
    _set_headers(patch, "_required", value=False)


def patient_with_headers(patch):
    """A balancer may take as long as it likes for its header."""
    _set_headers(patch, "_seconds", value=1e9)


def _set_headers(patch, name, value):
    begin = ProxyHeaders.__init__

    def changed(self, *args):
        begin(self, *args)
        setattr(self, name, value)

    patch.setattr(ProxyHeaders, "__init__", changed)


def forgotten_requests(patch):
    """A muted client that leaves is forgotten, and with it the Produce requests with acks=0 that nobody sends again."""
    patch.setattr(RequestStream, "owes_nothing", property(lambda self: bool(self._direction.reasons & MUTED)))


MUTANTS = [
    charged_refusals, free_requests, no_timer, swapped_responses, first_request_twice, no_mute, no_queue, selfish_member,
    no_back_pressure, lost_resume, early_half_close, endless_drain, charged_by_claim, deaf_to_operators, no_groups,
    endless_mute, free_loans, no_guarantees,
    rejected_topics_for_all, forwarded_rejections, patient_topics, forgotten_batches,
    one_bucket_for_all_brokers, enforced_shadows, unmeasured_shadows, forgotten_users,
    one_address_for_all_clients, optional_headers, patient_with_headers, forgotten_requests,
]  # fmt: skip


def first_failing(seeds):
    for seed in seeds:
        outcome = Run(plan_of(seed)).execute()
        if outcome.violations:
            return seed, outcome.violations[0]
    return None


@pytest.mark.parametrize("plant", MUTANTS, ids=lambda plant: plant.__name__)
def test_simulation_finds_planted_defect(monkeypatch, plant):
    plant(monkeypatch)
    with no_collections():
        assert first_failing(range(MUTANT_SEEDS)) is not None


def test_shrink_keeps_only_the_needed_fault():
    plan = replace(plan_of(1), faults=tuple(Fault(float(place), "reload", 0) for place in range(5)))
    needed = plan.faults[3]
    smaller = shrink(plan, lambda candidate: "rule" if needed in candidate.faults else None)
    assert smaller.faults == (needed,)
    assert all(client.requests == 1 for client in smaller.clients)


def test_fault_kinds_all_have_an_effect():
    plan = replace(plan_of(0), seconds=1.0, gateways=1, brokers=1)
    faults = tuple(Fault(0.01 * place, kind, 0, 0.1, 0.5) for place, kind in enumerate(KINDS))
    clients = tuple(replace(client, gateway=0) for client in plan.clients)
    outcome = Run(replace(plan, faults=faults, clients=clients), log=True).execute()
    assert not outcome.violations
    assert sum("fault" in line for line in outcome.log) == len(KINDS)


@pytest.mark.process
def test_series_goes_on_behind_its_progress(tmp_path, monkeypatch, capfd):
    progress = tmp_path / "progress.jsonl"
    monkeypatch.setattr(series, "commit", lambda: "one")
    Series(range(2, 4), 2, progress).run(inf)
    later = Series(range(2, 6), 2, progress, shrinks=False)
    assert [(batch.first, batch.seeds) for batch in later.done] == [(2, 2)]
    no_timer(monkeypatch)
    later.run(inf)
    assert [(batch.first, batch.seeds) for batch in later.done] == [(2, 2), (4, 2)]
    failure = later.done[1].failures[0]
    assert failure.rule == "connection stuck"
    assert f"seed {failure.seed} fails at" in capfd.readouterr().out
    monkeypatch.setattr(series, "commit", lambda: "two")  # its seeds may have other plans
    assert Series(range(2, 6), 2, progress).done == []
