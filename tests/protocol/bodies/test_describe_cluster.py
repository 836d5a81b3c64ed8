import random

import pytest

from protocol.api_keys import ApiKey
from protocol.bodies.addresses import rewrite_describe_cluster
from protocol.errors import InvalidFrame
from tests.protocol import codec
from tests.protocol.bodies.addressing import TRANSLATIONS, gateway, same
from tests.protocol.golden import golden
from tests.protocol.samples import response_frame, with_header_tag, with_length

BROKERS = [{"broker_id": n, "host": f"kafka-{n}", "port": 9092 + n, "rack": "r" if n % 2 else None} for n in range(5)]
GOLDEN = golden(ApiKey.DESCRIBE_CLUSTER)


def made_up(version):
    fenced = {"is_fenced": True} if version >= 2 else {}
    brokers = [broker | fenced for broker in BROKERS]
    return response_frame(ApiKey.DESCRIBE_CLUSTER, version, random.Random(version), brokers=brokers)


FRAMES = [(g.version, g.frame) for g in GOLDEN] + [(version, made_up(version)) for version in range(3)]


@pytest.mark.parametrize(("version", "frame"), FRAMES)
@pytest.mark.parametrize("translate", TRANSLATIONS)
def test_only_addresses_change(version, frame, translate):
    expected = codec.decode_response(ApiKey.DESCRIBE_CLUSTER, version, frame)
    kept = []
    for broker in expected["brokers"]:
        address = translate(broker["broker_id"], broker["host"], broker["port"])
        if address:
            kept.append(broker | {"host": address[0], "port": address[1]})
    rewritten = rewrite_describe_cluster(version, frame, translate)
    assert codec.decode_response(ApiKey.DESCRIBE_CLUSTER, version, rewritten) == expected | {"brokers": kept}
    if translate is same:
        assert rewritten == frame
        tagged = with_header_tag(frame)
        assert rewrite_describe_cluster(version, tagged, same) == tagged


@pytest.mark.parametrize("real", GOLDEN, ids=str)
def test_truncated_frame_is_invalid_or_rewritten(real):
    for cut in range(len(real.frame)):
        with pytest.raises(InvalidFrame):
            rewrite_describe_cluster(real.version, real.frame[:cut], gateway)
        try:
            rewrite_describe_cluster(real.version, with_length(real.frame[4:cut]), gateway)
        except InvalidFrame:
            continue
        assert cut > real.frame.index(b"127.0.0.1") + 13
