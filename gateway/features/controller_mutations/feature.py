"""The request handlers of the controller mutation quota, and the topics that they know. The quota is a kind of the engine."""

from collections.abc import Callable, Mapping

from gateway.feature import Feature
from gateway.features.controller_mutations.costs import KnownTopics
from gateway.features.controller_mutations.creation_by_broker import metadata_factory
from gateway.features.controller_mutations.handlers import handler_factories
from gateway.features.controller_mutations.under_way import UnderWay
from gateway.proxy.handler import HandlerFactory
from gateway.steps import Steps
from protocol.api_keys import ApiKey


class ControllerMutations(Feature[None]):
    """All connections share `known_topics`, and the operations that are under way. `versions` is as in `KnownTopics`."""

    def __init__(self, versions: Callable[[], Mapping[int, tuple[int, int]]] = dict) -> None:
        self.known_topics = KnownTopics(versions)
        self._under_way = UnderWay()

    def handlers(self) -> Mapping[int, HandlerFactory]:
        return {
            **handler_factories(self.known_topics, self._under_way),
            ApiKey.METADATA: metadata_factory(self.known_topics, self._under_way),
        }

    def tick(self, now: float) -> Steps[None]:
        self._under_way.tick(now)
        yield
