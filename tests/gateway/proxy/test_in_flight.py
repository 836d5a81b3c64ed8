"""The entries of requests in flight, and the bytes that a Fetch reserves."""

from gateway.proxy.in_flight import ChargedFetch, Entry, OwnRequest
from gateway.quotas.engine import QuotaEngine
from gateway.quotas.line import Consumer
from tests.gateway.proxy.transcript import START, limits
from tests.gateway.quotas.engines import bucket_of


def test_entry_splits_its_key():
    special = ChargedFetch()
    entry = Entry(7, 75 << 16 | 0x0102, START, special)
    assert (entry.correlation_id, entry.api_key, entry.version, entry.since) == (7, 75, 0x0102, START)
    assert entry.special is special
    assert entry.buckets == ()
    assert Entry(7, 0, START).special is None


def test_fetch_reserves_in_each_bucket_until_its_response():
    engine = QuotaEngine(limits(fetch=1_000.0), START)
    own, group = (bucket_of(engine, "fetch", "ANONYMOUS", name, START) for name in ("etl", "group"))
    unknown, small = Consumer(), Consumer()
    small.expected = 300
    group.line.reserved(START + 0.75)
    fetch = ChargedFetch()
    assert (fetch.requested, fetch.reserved) == (0, ())
    fetch.reserve((own, group), [unknown, small], 1_000, START)
    assert fetch.reserved == ((own, 500, 0), (group, 300, 1))
    assert (own.line.promised, group.line.promised) == (500, 300)
    for _ in range(2):
        fetch.release()
        assert (own.line.promised, group.line.promised) == (0, 0)


def test_answer_of_own_request_goes_to_its_sender_only():
    taken = []
    own = OwnRequest(lambda frame, now: taken.append((frame, now)))
    assert own.finish(b"answer", START) == b""
    assert taken == [(b"answer", START)]
