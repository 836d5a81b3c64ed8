"""The request handlers of the controller mutation quota, and the topics that they know. The quota is a kind of the engine."""

from collections.abc import Mapping

from gateway.feature import Feature
from gateway.features.controller_mutations.costs import KnownTopics
from gateway.features.controller_mutations.handlers import handler_factories
from gateway.proxy.handler import HandlerFactory


class ControllerMutations(Feature[None]):
    """All connections share `known_topics`."""

    def __init__(self) -> None:
        self.known_topics = KnownTopics()

    def handlers(self) -> Mapping[int, HandlerFactory]:
        return handler_factories(self.known_topics)
