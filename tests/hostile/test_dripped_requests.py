"""A request that arrives byte by byte costs no more than one that arrives at once: the gateway parses each byte once."""

from protocol.api_keys import ApiKey
from protocol.encoding import encode_uvarint
from tests.gateway.proxy import messages as m

TAGS = 18_000
DRIPS = 80
CPU_SECONDS = 0.2


def test_dripped_tagged_fields_are_read_once(broker, start_weir, connect):
    """Before the fix, each of the last 80 bytes had all 18 000 tagged fields parsed again: 0.4 s."""
    weir = start_weir(broker.bootstrap_servers, quotas={"topics": {"total.bytes.in.per.sec.threshold": 10**9}})
    client, other = connect(weir), connect(weir)
    plain = m.produce(1)  # its last bytes are the tags of its partition, its topic and the request
    tags = encode_uvarint(TAGS) + b"\x05\1x" * TAGS
    frame = plain[4:-3] + tags + plain[-2:]
    frame = len(frame).to_bytes(4, "big") + frame
    client.send(frame[:-DRIPS])
    other.ask(m.api_versions(1))
    before = weir.cpu_seconds()
    for byte in frame[-DRIPS:]:
        client.send(bytes([byte]))
        other.ask(m.api_versions(1))  # so that the gateway reads each byte separately
    client.receive()
    assert weir.cpu_seconds() - before < CPU_SECONDS
    assert [request.frame for request in broker.received if request.api_key == ApiKey.PRODUCE] == [frame]
