"""A cluster of one stub broker that answers the quota API like a broker, or like a gateway."""

from protocol.api_keys import ApiKey
from tests.hostile.stub_broker import HOST, NODE_ID, Request, StubBroker

ACCEPTED = (0, None)
INVALID_KEY = (42, "Invalid configuration key request_rate")
Entity = tuple[tuple[str, str | None], ...]


class StubCluster(StubBroker):
    """Answers like a broker or a gateway, and keeps `quotas`. `altered` has the entities of alterations, in their order.

    `removed` counts alterations that are not only validated.
    """

    def __init__(self) -> None:
        super().__init__()
        self.known_key: tuple[int, str | None] = INVALID_KEY
        self.known_key_after_check: tuple[int, str | None] | None = None
        self.groups = 35
        self.cluster_id = "4L6g"
        self.quotas: dict[Entity, dict[str, float]] = {(("user", "alice"),): {"producer_byte_rate": 1e3}}
        self.altered: list[Entity] = []
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
        entries = [
            {
                "entity": [{"entity_type": kind, "entity_name": name} for kind, name in entity],
                "values": [{"key": key, "value": value} for key, value in quotas.items()],
            }
            for entity, quotas in self.quotas.items()
        ]
        return request.answer(error_code=0, error_message=None, entries=entries)

    def _alter(self, request: Request) -> bytes:
        asked = request.decode()
        self.removed += not asked.validate_only
        keys = {each.key for entry in asked.entries for each in entry.ops}
        code, message = self.known_key if keys == {"request_rate"} else ACCEPTED
        if keys != {"request_rate"}:
            self.known_key = self.known_key_after_check or self.known_key
        answers = []
        for entry in asked.entries:
            entity = tuple((part.entity_type, part.entity_name) for part in entry.entity)
            if not asked.validate_only:
                self._set(entity, {each.key: None if each.remove else each.value for each in entry.ops})
            names = [{"entity_type": kind, "entity_name": name} for kind, name in entity]
            answers.append({"error_code": code, "error_message": message, "entity": names})
        return request.answer(entries=answers)

    def _set(self, entity: Entity, changes: dict[str, float | None]) -> None:
        self.altered.append(entity)
        quotas = self.quotas.pop(entity, {}) | changes
        left = {key: value for key, value in quotas.items() if value is not None}
        if left:
            self.quotas[entity] = left
