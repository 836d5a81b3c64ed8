"""If accept(2) fails with an error other than a lack of resources, the gateway continues and a drain completes."""

import errno

import pytest

from tests.gateway.proxy import messages as m


@pytest.mark.parametrize("number", [errno.EPROTO, errno.EINVAL], ids=errno.errorcode.get)
def test_drain_survives_a_failing_accept(number, broker, start_weir, connect, faults):
    """EPROTO is an error of the accepted connection, EINVAL one of the listening socket."""
    weir = start_weir(broker.bootstrap_servers)
    with connect(weir) as client:
        client.ask(m.produce(1))
    faults("accept", number)
    assert weir.stop() == 0  # also fails if the log has a traceback
    assert any("drained" in event["msg"] for event in weir.events())


def test_connections_behind_a_failed_one_are_served(broker, start_weir, connect, faults):
    weir = start_weir(broker.bootstrap_servers)
    faults("accept", errno.EHOSTUNREACH)
    for number in (1, 2):
        with connect(weir) as client:
            client.ask(m.produce(number))
    assert "Traceback" not in weir.log()
