"""Which topics there are, as the cluster says when asked: for thresholds that topics share, and for the names of topic ids."""

import asyncio
import logging
from collections.abc import Callable, Mapping

from gateway.cluster.client import ClusterError, OwnClient
from gateway.cluster.requests import DescribeTopics

REFRESH_SECONDS = 5.0
RETRY_SECONDS = 1.0
HURRY_SECONDS = 0.2
"""The least time between two looks, however often somebody asks for one."""

_log = logging.getLogger("weir.cluster")

OnTopics = Callable[[Mapping[str, bytes]], None]
"""Gets the topics of the cluster that are not internal, by name, with their ids."""


class TopicWatch:
    """Asks from time to time, and soon after `hurry`."""

    def __init__(self, client: OwnClient, on_topics: OnTopics) -> None:
        self._client = client
        self._on_topics = on_topics
        self._wanted = asyncio.Event()
        self._problem = ""

    def hurry(self) -> None:
        """Somebody has met a topic that is not known."""
        self._wanted.set()

    async def run(self) -> None:
        """Ask until cancelled."""
        try:
            while True:
                pause = await self._look()
                await asyncio.sleep(HURRY_SECONDS)
                try:
                    async with asyncio.timeout(pause - HURRY_SECONDS):
                        await self._wanted.wait()
                except TimeoutError:
                    pass
        finally:
            await self._client.close()

    async def _look(self) -> float:
        """Ask once; how many seconds there are until the next time."""
        self._wanted.clear()
        try:
            topics = await self._client.ask_any(DescribeTopics())
        except ClusterError as error:
            if not self._problem:
                _log.warning("topics can't be listed, thresholds are shared among those that were seen: %s", error)
            self._problem = str(error)
            return RETRY_SECONDS
        if self._problem:
            _log.info("topics are listed again")
        self._problem = ""
        self._on_topics(
            {topic.name: topic.topic_id for topic in topics if topic.name and not topic.error and not topic.internal}
        )
        return REFRESH_SECONDS
