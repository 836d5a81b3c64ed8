"""If Weir's own requests get invalid answers, the gateway still serves its clients."""

import struct
import sys

import pytest

from loadtest.testkit.kafka import spawn, stop
from protocol.api_keys import APIS, ApiKey
from tests.gateway.proxy import messages as m
from tests.protocol import codec
from tests.weir_process import wait_until

ASKED = 2
"""Invalid answers that the gateway must survive before the test checks it."""


def null_arrays(request):
    """A response to ApiVersions or Metadata with each of its arrays null."""
    flexible = request.version >= APIS[request.api_key].flexible_since
    null, tags = (b"\0", b"\0") if flexible else (struct.pack(">i", -1), b"")
    if request.api_key == ApiKey.API_VERSIONS:
        body = struct.pack(">h", 0) + null + (struct.pack(">i", 0) if request.version >= 1 else b"") + tags
        return framed(request, body)
    throttle = struct.pack(">i", 0) if request.version >= 3 else b""
    cluster_id = b"" if request.version < 2 else b"\0" if flexible else struct.pack(">h", -1)
    controller = struct.pack(">i", -1) if request.version >= 1 else b""
    return framed(request, tags + throttle + null + cluster_id + controller + null + tags)


def framed(request, body):
    return struct.pack(">ii", 4 + len(body), request.correlation_id) + body


def answered_oddly(broker, key, odd):
    """Make the broker answer Weir's own requests of one API with `odd`; return the growing list of those requests."""
    usual, requests = broker.answers[key], []

    def answer(request):
        if request.frame[12:18] != b"\x00\x04weir":
            return usual(request)
        requests.append(request)
        return odd(request)

    broker.answers[key] = answer
    return requests


ASK_THE_CLUSTER = {"volumes": {"when_unknown": "OPEN"}, "topics": {"total.bytes.in.per.sec.threshold": 10**9}}
"""Quotas that make the gateway send further requests of its own, beside its cluster lookup."""

ODD = pytest.mark.parametrize("key", [ApiKey.API_VERSIONS, ApiKey.METADATA], ids=lambda key: key.name)


@ODD
def test_null_arrays_do_not_end_the_gateway(key, broker, start_weir, connect):
    requests = answered_oddly(broker, key, null_arrays)
    weir = start_weir(broker.bootstrap_servers, wait="/livez", quotas=ASK_THE_CLUSTER)
    wait_until(lambda: len(requests) >= ASKED or weir.process.poll() is not None, "odd answers")
    connect(weir).ask(m.produce(1))
    assert [request.frame for request in broker.received if request.api_key == ApiKey.PRODUCE] == [m.produce(1)]
    wait_until(lambda: "can't be reached" in weir.not_ready(), "the reason why the gateway is not ready", 20)
    assert weir.metric("weir_task_restarts_total") == 0
    assert "Traceback" not in weir.log()


def test_odd_answer_after_good_ones_does_not_end_gateway(broker, start_weir, connect):
    often = {"when_unknown": "OPEN", "freshness_seconds": 0.4, "publish_interval_ms": 100}
    weir = start_weir(broker.bootstrap_servers, quotas={"volumes": often})
    client = connect(weir)
    client.ask(m.produce(1))
    requests = answered_oddly(broker, ApiKey.METADATA, null_arrays)
    wait_until(lambda: len(requests) >= ASKED or weir.process.poll() is not None, "odd answers")
    client.ask(m.produce(2))
    assert "Traceback" not in weir.log()


def truncated(request):
    """A response that ends in the middle of its correlation id."""
    return struct.pack(">ih", 2, request.correlation_id & 0x7FFF)


def test_truncated_answers_are_logged_once(broker, start_weir):
    requests = answered_oddly(broker, ApiKey.METADATA, truncated)
    weir = start_weir(broker.bootstrap_servers, wait="/livez")
    wait_until(lambda: len(requests) >= ASKED or weir.process.poll() is not None, "odd answers")
    assert "Traceback" not in weir.log()
    assert len(weir.logged("reached", level="warning")) == 1


@pytest.mark.process
def test_null_arrays_do_not_end_the_agent(broker, tmp_path):
    requests = answered_oddly(broker, ApiKey.METADATA, null_arrays)
    config = tmp_path / "weir.yaml"
    upstream = f"upstream: {{bootstrap_servers: ['{broker.bootstrap_servers}']}}"
    config.write_text(f"{upstream}\nlisteners: [{{name: clients, bootstrap_port: 29092}}]\n")
    command = [sys.executable, "-m", "gateway", "volumes", "publish", "--config", str(config)]
    command += ["--broker-id", "1", "--path", "/"]
    with (tmp_path / "agent.log").open("w") as log:
        agent = spawn(command, stdout=log, stderr=log)
        wait_until(lambda: len(requests) >= ASKED or agent.poll() is not None, "odd answers")
        assert agent.poll() is None, (tmp_path / "agent.log").read_text()[-2000:]
        assert stop(agent, timeout=20.0) == 0


@pytest.mark.parametrize(("host", "port"), [("a..b", 9092), ("127.0.0.1", 70_000)])
def test_odd_broker_address_affects_only_its_clients(host, port, broker, start_weir, connect):
    """The gateway omits such a broker from answers, or closes a connection to it at once."""

    def answer(request):
        brokers = [{"node_id": 1, "host": "127.0.0.1", "port": broker.port}, {"node_id": 2, "host": host, "port": port}]
        return request.answer(brokers=brokers, topics=[])

    broker.answers[ApiKey.METADATA] = answer
    weir = start_weir(broker.bootstrap_servers, quotas=ASK_THE_CLUSTER)
    frame, _ = connect(weir).ask(m.metadata(1))
    ports = {each["node_id"]: each["port"] for each in codec.decode_response(ApiKey.METADATA, 12, frame)["brokers"]}
    connect(f"127.0.0.1:{ports[1]}").ask(m.produce(1))
    if 2 in ports:
        odd = connect(f"127.0.0.1:{ports[2]}")
        odd.send(m.produce(1))
        assert odd.is_closed(8.0)
    assert weir.metric("weir_task_restarts_total") == 0
    assert "Traceback" not in weir.log()
