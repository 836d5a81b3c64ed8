"""Reads the list of the cluster's topics: for the default threshold, and for the names of topic ids."""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence

from gateway.cluster.client import ClusterError
from gateway.cluster.metadata import ClusterMetadata, Subscription
from protocol.bodies.topic_metadata import TopicMetadata

_log = logging.getLogger("weir.cluster")

OnTopics = Callable[[Mapping[str, bytes]], None]
"""Called with the ids of the cluster's topics by name. Internal topics are left out."""


class TopicWatch:
    """Subscribes to the list of topics."""

    def __init__(self, metadata: ClusterMetadata, on_topics: OnTopics) -> None:
        self._metadata = metadata
        self._on_topics = on_topics
        self._subscription: Subscription | None = None
        self._failed = False

    def hurry(self) -> None:
        """Read the list soon, because a client has used an unknown topic."""
        if self._subscription is not None:
            self._subscription.hurry()

    async def run(self) -> None:
        """Subscribe until cancelled."""
        with self._metadata.subscribe(on_topics=self._note, on_failure=self._note_failure) as self._subscription:
            await asyncio.Event().wait()

    def _note(self, topics: Sequence[TopicMetadata]) -> None:
        if self._failed:
            _log.info("topics are listed again")
        self._failed = False
        self._on_topics(
            {topic.name: topic.topic_id for topic in topics if topic.name and not topic.error and not topic.internal}
        )

    def _note_failure(self, error: ClusterError) -> None:
        if not self._failed:
            _log.warning("topics can't be listed, so topics that clients have used share the default threshold: %s", error)
        self._failed = True
