"""The controller mutation quota: its request handlers, and the topics that they know. Its rate is one of the engine's kinds."""

from collections.abc import Mapping

from gateway.feature import Feature
from gateway.features.controller_mutations.handlers import openers
from gateway.features.controller_mutations.known_topics import KnownTopics
from gateway.proxy.handler import Opener


class ControllerMutations(Feature[None]):
    """`known_topics` is shared by all connections."""

    def __init__(self) -> None:
        self.known_topics = KnownTopics()

    def handlers(self) -> Mapping[int, Opener]:
        return openers(self.known_topics)
