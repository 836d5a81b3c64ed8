"""Producers stay paused when the cluster's answers omit brokers or their disks."""

from tests.gateway.proxy import messages as m
from tests.hostile.stub_broker import NODE_ID, produce_outcome
from tests.hostile.usage_topic import FULL, ROOM, UsageTopic
from tests.weir_process import wait_until

VOLUMES = {"source": "topic", "freshness_seconds": 600, "publish_interval_ms": 100, "max_delay_ms": 300}
NOT_ENOUGH_REPLICAS = 19


def volumes(**changes):
    return {"volumes": VOLUMES | changes}


def is_refused(client):
    return produce_outcome(client.ask(m.produce(1))[0])[0] == NOT_ENOUGH_REPLICAS


def test_no_brokers_in_metadata_keeps_producers_paused(broker, start_weir, connect):
    usage = UsageTopic(broker)
    usage.alive = []
    weir = start_weir(broker.bootstrap_servers, wait="/livez", quotas=volumes())
    usage.publish(ROOM)
    wait_until(lambda: usage.looks >= 2, "Weir looks up the active brokers")
    wait_until(lambda: weir.metric("weir_volume_messages_total") >= 1, "the usage is read")
    assert weir.metric("weir_volume_state", state="PAUSE") == 1
    assert is_refused(connect(weir))
    usage.alive = [NODE_ID]
    weir.wait_for_volumes("OPEN")


def test_broker_missing_from_metadata_still_counts(broker, start_weir, connect):
    usage = UsageTopic(broker)
    usage.alive = [NODE_ID, 2]
    usage.publish(ROOM)
    usage.publish(FULL, broker=2)
    weir = start_weir(broker.bootstrap_servers, quotas=volumes())
    weir.wait_for_volumes("PAUSE")
    usage.alive = [NODE_ID]
    looks = usage.looks
    wait_until(lambda: usage.looks >= looks + 2, "Weir has looked up the changed brokers")
    assert is_refused(connect(weir))
    weir.apply(quotas=volumes(freshness_seconds=2))

    def forgotten():
        usage.publish(ROOM)
        usage.publish(FULL, broker=2)
        return weir.metric("weir_volume_state", state="OPEN")

    wait_until(forgotten, "the broker is given up after the freshness time")


def test_shorter_freshness_holds_for_known_usage(broker, start_weir, connect):
    usage = UsageTopic(broker)
    usage.publish(ROOM, age=300)
    weir = start_weir(broker.bootstrap_servers, quotas=volumes())
    weir.wait_for_volumes("OPEN")
    weir.apply(quotas=volumes(freshness_seconds=200))
    weir.wait_for_volumes("PAUSE")
    assert is_refused(connect(weir))
