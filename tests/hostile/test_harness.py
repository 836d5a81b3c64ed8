"""The stub broker is sufficient: the gateway becomes ready, and a Produce passes."""

from tests.gateway.proxy import messages as m


def test_produce_passes_to_stub_broker(broker, start_weir, connect):
    weir = start_weir(broker.bootstrap_servers)
    answer, _ = connect(weir).ask(m.produce(1))
    assert answer[4:8] == (1).to_bytes(4, "big")
    assert [request.frame for request in broker.received] == [m.produce(1)]
