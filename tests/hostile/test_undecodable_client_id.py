"""A client-id that is not UTF-8, while Weir sends a request of its own under that client-id."""

from protocol.api_keys import ApiKey
from tests.gateway.features.controller_mutations import mutation_session as m
from tests.hostile.stub_broker import Request

CREATED = [{"name": "a", "num_partitions": 1}]


def test_undecodable_client_id_gets_an_answer(broker, start_weir, connect):
    """The client-id triples in length when Weir decodes it and encodes it again for its own request."""

    def created(request: Request) -> bytes:  # the codec cannot decode the request
        return m.answered(m.CREATE, request.correlation_id, CREATED)

    broker.answers[ApiKey.CREATE_TOPICS] = created
    quotas = {"entities": [{"client-id": "<default>", "controller_mutation_rate": 2}]}
    weir = start_weir(broker.bootstrap_servers, quotas=quotas)
    plain = m.create(1, {"a": 1})
    frame = plain[:12] + (20_000).to_bytes(2, "big") + b"\xff" * 20_000 + plain[12 + 2 + len("etl") :]
    answer, _ = connect(weir).ask((len(frame) - 4).to_bytes(4, "big") + frame[4:])
    assert answer == m.answered(m.CREATE, 1, CREATED)
