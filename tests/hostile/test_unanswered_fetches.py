"""Fetches that wait at the broker reserve bytes, but too few to starve other consumers."""

from protocol.api_keys import ApiKey
from protocol.throttle import read_throttle, throttle_offset
from tests.gateway.proxy import messages as m
from tests.hostile.stub_broker import fetched
from tests.weir_process import wait_until

QUOTA = 1_000_000
LARGE = 9 * QUOTA
"""The bytes of one answer: nine tenths of a burst."""
TEN_MINUTES = 600_000
MOST_MS = 1_500


def limited(quota):
    return {"entities": [{"client-id": "etl", "consumer_byte_rate": quota}]}


def throttle_ms(answer):
    return read_throttle(answer, throttle_offset(ApiKey.FETCH, 12, answer, 0, len(answer)))


def test_long_polls_do_not_mute_other_consumers(broker, start_weir, connect):
    """Two consumers with large previous answers wait at the broker while a third one fetches from a full bucket."""
    broker.answers[ApiKey.FETCH] = fetched(LARGE)
    weir = start_weir(broker.bootstrap_servers, quotas=limited(100 * QUOTA))
    pollers = [connect(weir), connect(weir)]
    for number, poller in enumerate(pollers):
        poller.ask(m.fetch(number))
    weir.write_config({**weir.config, "quotas": limited(QUOTA)})
    weir.reload()
    wait_until(lambda: weir.usage()[0]["limit"] == QUOTA, "the lower quota and its full bucket")
    broker.answers[ApiKey.FETCH] = lambda request: None
    for poller in pollers:
        poller.send(m.fetch(2, max_wait_ms=TEN_MINUTES))
    broker.wait_for(lambda: broker.count(ApiKey.FETCH) == 4, "both long polls")
    assert weir.usage()[0]["throttle_left"] == 0.0
    broker.answers[ApiKey.FETCH] = fetched(10_000)
    answer, _ = connect(weir).ask(m.fetch(3))
    assert throttle_ms(answer) <= MOST_MS
