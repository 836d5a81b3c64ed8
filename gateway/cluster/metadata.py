"""The cluster's brokers and topics. One loop asks for them; features subscribe to the answers, or read the last answer.

Brokers and topics are separate requests, so that an unreadable answer about topics does not hide the brokers.
"""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TypeVar

from gateway import clock
from gateway.cluster.brokers import Address
from gateway.cluster.client import (
    AnyRequest,
    ClusterError,
    Connections,
    KafkaResponse,
    OtherClusterError,
    Security,
    check_error,
    plaintext,
)
from gateway.cluster.requests import BrokerRequest, Versions, describe_topics
from protocol.bodies.topic_metadata import MetadataAnswer, TopicMetadata
from protocol.error_codes import ErrorCode

REFRESH_SECONDS = 5.0
HURRY_SECONDS = 0.2
"""The minimum time between two lists of topics, however often a subscriber asks for one."""

WANTED_SECONDS = 4 * REFRESH_SECONDS
"""The loop asks for a topic until `look` has not been called for it for this time."""

_TIMEOUT_MS = 5_000

_log = logging.getLogger("weir.cluster")

OnBrokers = Callable[[Mapping[int, Address]], None]
OnTopics = Callable[[Sequence[TopicMetadata]], None]
OnFailure = Callable[[ClusterError], Awaitable[None]]


_Published = TypeVar("_Published")


@dataclass(eq=False, slots=True)
class Subscription:
    """Callbacks of one subscriber. An exception in a callback is logged, and affects neither the loop nor other subscribers.

    `on_brokers` is called at least every `interval()` seconds, `on_topics` with all topics of the cluster every
    `REFRESH_SECONDS` and soon after `hurry`. `on_failure` is called if the cluster does not answer.
    """

    on_brokers: OnBrokers | None = None
    on_topics: OnTopics | None = None
    on_failure: Callable[[ClusterError], None] | None = None
    interval: Callable[[], float] = lambda: REFRESH_SECONDS
    _wake: asyncio.Event = field(default_factory=asyncio.Event)
    _topics_at: float = float("-inf")  # the last list of topics

    def hurry(self) -> None:
        """Ask for the topics again after `HURRY_SECONDS`."""
        self._topics_at = float("-inf")
        self._wake.set()


@dataclass(frozen=True, slots=True)
class TopicLook:
    """A topic's id, and each partition's leader by the partition's index: a node id, or -1 for none."""

    topic_id: bytes
    leaders: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ClusterLook:
    """The brokers that are alive, by node id, and one topic: None if it does not exist or was not asked for."""

    brokers: Mapping[int, Address]
    topic: TopicLook | None = None


class ClusterMetadata:
    """`bootstrap` returns the addresses to start from; `on_topic` is called with name and id of each topic of a `look`.

    `why_foreign` gets the cluster id of each answer, and returns the problem if it is that of another cluster.

    `versions` are those that the broker asked last offers; empty before the first question.
    """

    def __init__(
        self,
        bootstrap: Callable[[], Sequence[Address]],
        security: Security = plaintext,
        on_topic: Callable[[str, bytes], None] = lambda _name, _id: None,
        why_foreign: Callable[[str | None], str | None] = lambda _id: None,
    ) -> None:
        self.brokers: Mapping[int, Address] = {}
        self.versions: Versions = {}
        self._bootstrap = bootstrap
        self._security = security
        self._on_topic = on_topic
        self._why_foreign = why_foreign
        self._connections = Connections(security, timeout_ms=_TIMEOUT_MS)
        self._subscriptions: list[Subscription] = []
        self._topics: dict[str, tuple[float, TopicMetadata]] = {}  # with the time of the request
        self._wanted: dict[str, float] = {}
        self._brokers_at = float("-inf")
        self._wake = asyncio.Event()
        self._stale = False

    def connect(self) -> "OwnClient":
        """Return a client that the caller closes."""
        return OwnClient(self, Connections(self._security))

    async def close(self) -> None:
        """Close the connections; the next request opens a new one."""
        await self._connections.close()

    def addresses(self) -> list[Address]:
        """The known brokers in random order, then the addresses to start from."""
        known = list(self.brokers.values())
        random.shuffle(known)
        return [*known, *self._bootstrap()]

    def reconnect(self) -> None:
        """Let the loop open new connections, because TLS files have changed."""
        self._stale = True

    async def ask(self, node_id: int, request: AnyRequest) -> KafkaResponse:
        """One broker's answer over the shared connection, for a rare request. Raises ClusterError, or KeyError."""
        return await self._connections.ask(self.brokers[node_id], request)

    @contextmanager
    def subscribe(
        self,
        on_brokers: OnBrokers | None = None,
        on_topics: OnTopics | None = None,
        on_failure: Callable[[ClusterError], None] | None = None,
        interval: Callable[[], float] = lambda: REFRESH_SECONDS,
    ) -> Iterator[Subscription]:
        """Call these callbacks during the `with` block. The loop asks the cluster at once."""
        subscription = Subscription(on_brokers, on_topics, on_failure, interval, self._wake)
        self._subscriptions.append(subscription)
        self._wake.set()
        try:
            yield subscription
        finally:
            self._subscriptions.remove(subscription)

    async def look(self, topic: str | None = None, *, max_age: float = 0.0) -> ClusterLook:
        """The brokers and one topic, from an answer that is at most `max_age` seconds old. Raises ClusterError."""
        now = clock.monotonic()
        if topic is None:
            if now - self._brokers_at > max_age or max_age <= 0.0:
                await self._ask_brokers()
            return ClusterLook(self.brokers)
        self._wanted[topic] = now
        asked_at, found = self._topics.get(topic, (float("-inf"), None))
        if now - asked_at > max_age or max_age <= 0.0:
            await self._ask_topics([topic])
            asked_at, found = self._topics.get(topic, (now, None))
            if asked_at < now:  # the answer does not name the topic
                return ClusterLook(self.brokers)
        if found is None or found.error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            return ClusterLook(self.brokers)
        check_error(found.error, f"topic {topic}")
        return ClusterLook(self.brokers, TopicLook(found.topic_id, found.leaders))

    async def run(self, on_failure: OnFailure) -> None:
        """Ask until cancelled. After a failure, `on_failure` is awaited in place of the pause."""
        try:
            while True:
                self._wake.clear()
                if self._stale:
                    self._stale = False
                    await self._connections.close()
                try:
                    problem = None if await self._ask_brokers() else ClusterError("a broker's answer names no brokers")
                except ClusterError as error:
                    problem = error
                if problem is not None:
                    await on_failure(problem)
                    continue
                await self._refresh_topics()
                pause = self._pause()
                await asyncio.sleep(min(pause, HURRY_SECONDS))
                with suppress(TimeoutError):
                    async with asyncio.timeout(pause - HURRY_SECONDS):
                        await self._wake.wait()
        finally:
            await self._connections.close()

    def _pause(self) -> float:
        intervals = [each.interval() for each in self._subscriptions]
        return min([*intervals, REFRESH_SECONDS])

    async def _refresh_topics(self) -> None:
        now = clock.monotonic()
        self._wanted = {name: asked for name, asked in self._wanted.items() if now - asked < WANTED_SECONDS}
        if self._wanted:
            try:
                await self._ask_topics(self._wanted)
            except ClusterError as error:  # `look` asks again and raises
                _log.debug("topics can't be looked at: %s", error)
        due = [each for each in self._subscriptions if each.on_topics and now - each._topics_at >= 0.9 * REFRESH_SECONDS]
        if due:
            for each in due:
                each._topics_at = now  # before the request: `hurry` may ask for another one meanwhile
            try:
                answer = await self._ask(None)
            except ClusterError as error:
                self._publish_failure(error, due)
                return
            for each in due:
                self._publish(each.on_topics, answer.topics)

    async def _ask_brokers(self) -> Mapping[int, Address]:
        try:
            found = await self._ask([])
        except ClusterError as error:
            self._publish_failure(error, self._subscriptions)
            raise
        return self._publish_brokers(found)

    async def ask_at(self, address: Address) -> None:
        """Publish the brokers that the broker at an address names. Raises ClusterError."""
        found: MetadataAnswer = await self._connections.ask(address, self._describe([]))
        self.brokers = _addresses(found) or self.brokers
        self._publish_brokers(found)

    def _publish_brokers(self, found: MetadataAnswer) -> Mapping[int, Address]:
        self._brokers_at = clock.monotonic()
        brokers = _addresses(found)
        for each in list(self._subscriptions):
            self._publish(each.on_brokers, brokers)
        return brokers

    async def _ask_topics(self, names: Collection[str]) -> None:
        asked_at = clock.monotonic()
        for topic in (await self._ask(names)).topics:
            name = topic.name
            if name is None or name not in names:
                continue
            # A slow answer to an earlier request must not replace a later one: the topic would seem to be recreated.
            if asked_at >= self._topics.get(name, (asked_at, topic))[0]:
                self._topics[name] = asked_at, topic
                if topic.error != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    self._on_topic(name, topic.topic_id)

    async def _ask(self, names: Collection[str] | None) -> MetadataAnswer:
        found: MetadataAnswer = await self._connections.read_any(self.addresses(), self._describe(names))
        self.brokers = _addresses(found) or self.brokers  # an answer without brokers does not mean that there are none
        return found

    def _describe(self, names: Collection[str] | None) -> BrokerRequest[MetadataAnswer]:
        return describe_topics(names, self._check_cluster, self._note_versions)

    def _note_versions(self, versions: Versions) -> None:
        self.versions = versions

    def _check_cluster(self, cluster_id: str | None) -> None:
        if (problem := self._why_foreign(cluster_id)) is not None:
            raise OtherClusterError(problem)

    def _publish(self, callback: Callable[[_Published], None] | None, value: _Published) -> None:
        if callback is None:
            return
        try:
            callback(value)
        except Exception:
            _log.exception("a subscriber to the cluster's metadata failed", extra={"reason": "metadata subscriber"})

    def _publish_failure(self, error: ClusterError, subscriptions: Sequence[Subscription]) -> None:
        for each in list(subscriptions):
            self._publish(each.on_failure, error)


class OwnClient:
    """A client with connections of its own, such as a `TopicLog` needs. Brokers and topics come from the shared `metadata`."""

    def __init__(self, metadata: ClusterMetadata, connections: Connections) -> None:
        self._metadata = metadata
        self._connections = connections

    async def close(self) -> None:
        """Close the connections of this client. A later request opens new ones."""
        await self._connections.close()

    async def look(self, topic: str | None = None, *, max_age: float = 0.0) -> ClusterLook:
        return await self._metadata.look(topic, max_age=max_age)

    async def ask(self, node_id: int, request: AnyRequest) -> KafkaResponse:
        """Raises ClusterError, also for a broker that is not known."""
        address = self._metadata.brokers.get(node_id)
        if address is None:
            raise ClusterError(f"broker {node_id} is not known to be alive")
        return await self._connections.ask(address, request)

    async def ask_any(self, request: AnyRequest) -> KafkaResponse:
        """Raises ClusterError."""
        return await self._connections.ask_any(self._metadata.addresses(), request)


def _addresses(found: MetadataAnswer) -> dict[int, Address]:
    """In the order of ids, which decides between brokers with the same address."""
    return {each.node_id: (each.host, each.port) for each in sorted(found.brokers) if each.host}
