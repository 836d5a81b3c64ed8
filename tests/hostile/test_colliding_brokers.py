"""If broker ids collide on a port, the assignment does not depend on the brokers' order in an answer."""

import pytest

from loadtest.testkit.gateway_process import BROKER_PORTS
from protocol.api_keys import ApiKey
from tests.gateway.proxy import messages as m
from tests.hostile.stub_broker import HOST
from tests.protocol import codec

IDS = (1, 1 + BROKER_PORTS)


@pytest.mark.parametrize("order", [IDS, IDS[::-1]])
def test_colliding_ids_have_same_ports_in_any_order(order, broker, start_weir, connect):
    def answer(request):
        if request.frame[12:18] == b"\x00\x04weir":
            return False  # closes the connection, so that the gateway learns the brokers from its client's answer
        return request.answer(brokers=[{"node_id": each, "host": HOST, "port": broker.port} for each in order], topics=[])

    broker.answers[ApiKey.METADATA] = answer
    weir = start_weir(broker.bootstrap_servers, wait="/livez")
    frame, _ = connect(weir).ask(m.metadata(1))
    brokers = codec.decode_response(ApiKey.METADATA, 12, frame)["brokers"]
    assert [each["node_id"] for each in brokers] == list(order)
    assert {each["node_id"]: each["port"] - weir.ports[1] for each in brokers} == {IDS[0]: 1, IDS[1]: 2}
    (warning,) = weir.logged("is too narrow")
    assert f"widen broker_ports to {BROKER_PORTS + 1} ports or more" in warning["msg"]
