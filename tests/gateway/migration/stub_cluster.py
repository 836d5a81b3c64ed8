"""A cluster of one stub broker that answers the quota API like a broker, or like a gateway."""

from protocol.api_keys import ApiKey
from tests.hostile.stub_broker import HOST, NODE_ID, Request, StubBroker

ACCEPTED = (0, None)
INVALID_KEY = (42, "Invalid configuration key request_rate")
ALICE = {"entity": [{"entity_type": "user", "entity_name": "alice"}], "values": [{"key": "producer_byte_rate", "value": 1e3}]}


class StubCluster(StubBroker):
    """Answers like a broker or a gateway. `removed` counts alterations that are not only validated."""

    def __init__(self) -> None:
        super().__init__()
        self.known_key: tuple[int, str | None] = INVALID_KEY
        self.known_key_after_check: tuple[int, str | None] | None = None
        self.groups = 35
        self.cluster_id = "4L6g"
        self.removed = 0
        self.answers |= {
            ApiKey.METADATA: self._metadata,
            ApiKey.DESCRIBE_CLIENT_QUOTAS: self._describe,
            ApiKey.ALTER_CLIENT_QUOTAS: self._alter,
        }

    def _metadata(self, request: Request) -> bytes:
        broker = {"node_id": NODE_ID, "host": HOST, "port": self.port}
        return request.answer(brokers=[broker], cluster_id=self.cluster_id, controller_id=NODE_ID, topics=[])

    def _describe(self, request: Request) -> bytes:
        if request.decode().components:
            return request.answer(error_code=self.groups, error_message=None, entries=None if self.groups else [])
        return request.answer(error_code=0, error_message=None, entries=[] if self.removed else [ALICE])

    def _alter(self, request: Request) -> bytes:
        asked = request.decode()
        self.removed += not asked.validate_only
        keys = {each.key for entry in asked.entries for each in entry.ops}
        code, message = self.known_key if keys == {"request_rate"} else ACCEPTED
        if keys != {"request_rate"}:
            self.known_key = self.known_key_after_check or self.known_key
        entity = [{"entity_type": "user", "entity_name": None if keys == {"request_rate"} else "alice"}]
        return request.answer(entries=[{"error_code": code, "error_message": message, "entity": entity}])
