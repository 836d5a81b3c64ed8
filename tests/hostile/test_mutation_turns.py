"""Clients of old and new versions create topics without a pause, under one quota. Each of them gets its turn."""

import threading
from itertools import count

from protocol.api_keys import ApiKey
from tests.gateway.features.controller_mutations import mutation_session as m
from tests.protocol import codec

QUOTAS = {
    "window": {"samples": 2, "seconds": 1},
    "entities": [{"client-id": "etl", "controller_mutation_rate": 20}],
}
PARTITIONS = 4
STRICT, PERMISSIVE = 7, 5
CREATED_BY_EACH = 3


class Creator(threading.Thread):
    """Creates topics until `enough`. Weir reads the next request at the end of the throttle time."""

    def __init__(self, client, name, version, enough):
        super().__init__(daemon=True)
        self.client, self.prefix, self.version, self.enough = client, name, version, enough
        self.created = 0

    def run(self):
        for number in count():
            if self.enough.is_set():
                return
            answer, _ = self.client.ask(m.create(1, {f"{self.prefix}-{number}": PARTITIONS}, version=self.version), 60.0)
            decoded = codec.decode_response(m.CREATE, self.version, answer)
            self.created += decoded["topics"][0]["error_code"] == 0


def creation(broker):
    def create(request):
        topics = request.decode().topics
        results = [{"name": topic.name, "error_code": 0, "num_partitions": topic.num_partitions} for topic in topics]
        return m.answered(m.CREATE, request.correlation_id, results, version=request.version)

    broker.answers[ApiKey.CREATE_TOPICS] = create


def test_strict_clients_create_beside_permissive_ones(broker, start_weir, connect):
    creation(broker)
    weir = start_weir(broker.bootstrap_servers, quotas=QUOTAS)
    enough = threading.Event()
    versions = [PERMISSIVE] * 4 + [STRICT] * 2
    clients = [Creator(connect(weir), f"c{number}", version, enough) for number, version in enumerate(versions)]
    for each in clients:
        each.start()
    broker.wait_for(lambda: all(each.created >= CREATED_BY_EACH for each in clients), "each client has created topics", 60.0)
    enough.set()
    for each in clients:
        each.join()
