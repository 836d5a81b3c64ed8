"""A connection that keeps members in their consumer groups: its heartbeats, and the bound on its mutes.

A member that is not heard of for its session timeout loses its partitions. So a mute for a rate of requests ends after a third
of that time (`docs/decisions/029-group-members.md`). The bucket keeps its debt, and other quotas mute for their whole time.
The same bound holds for locks on the records of a share consumer: an acknowledgement takes the place of the heartbeat.
"""

from math import inf
from typing import Final

from protocol.api_keys import ApiKey

HEARTBEATS: Final = frozenset(
    map(
        int,
        (
            ApiKey.HEARTBEAT,
            ApiKey.CONSUMER_GROUP_HEARTBEAT,
            ApiKey.SHARE_GROUP_HEARTBEAT,
            ApiKey.STREAMS_GROUP_HEARTBEAT,
        ),
    )
)

MEMBERSHIP_APIS: Final = HEARTBEATS | {int(ApiKey.JOIN_GROUP), int(ApiKey.SYNC_GROUP), int(ApiKey.OFFSET_COMMIT)}
"""The requests with which the coordinator accepts a member."""

RETURN_APIS: Final = MEMBERSHIP_APIS | {int(ApiKey.FIND_COORDINATOR)}
"""The requests with which a member that has lost its connection comes back."""

SHORTEST_SESSION_SECONDS: Final = 6.0
"""Kafka's group.min.session.timeout.ms. Also the session timeout of a member that joined on another connection."""

LONGEST_SESSION_SECONDS: Final = 1_800.0
"""Kafka's group.max.session.timeout.ms."""

GROUP_PROTOCOL_MUTE_SECONDS: Final = 0.5
"""The longest mute of a member of a consumer, share or streams group. Their sessions last 45 s, but librdkafka waits only 1 s
for the answer to a heartbeat while it joins, and then connects again."""

LATE_MUTE_SECONDS: Final = 1.0
"""The longest mute once a heartbeat is due: KIP-124's bound on each throttle time, one window of the quota."""

SHORTEST_MUTE_SECONDS: Final = 0.5
"""No bound is shorter: a member sends at most two requests a second beyond its rate."""

FREE_HEARTBEAT_SECONDS: Final = 1.0
"""The least time between two heartbeats that cost nothing. Kafka's clients send one every 3 or 5 seconds."""

_PROOF_SECONDS: Final = 300.0
"""A connection that has kept no member for that long, and for the session timeout, is like any other one."""

_PARTS: Final = 3
_LATE_PARTS: Final = 4


class Membership:
    """One connection's members. It spares nobody until the coordinator has accepted a member on this connection."""

    __slots__ = ("_beat", "_freed", "_proven_until", "_third")

    def __init__(self) -> None:
        self._third = inf  # of the shortest session timeout that is known
        self._beat = -inf  # when a heartbeat went to the coordinator
        self._freed = -inf
        self._proven_until = -inf

    def beat(self, now: float) -> None:
        """Note a request that begins the session timeout anew."""
        self._beat = now

    def take_free_heartbeat(self, now: float) -> bool:
        """True if a heartbeat costs nothing now. The caller lets it pass."""
        if now >= self._proven_until or now < self._freed + FREE_HEARTBEAT_SECONDS:
            return False
        self._freed = now
        return True

    def accepted(self, session_seconds: float | None, now: float) -> None:
        """Note that the coordinator has accepted a member, with that session timeout. None: it is not known."""
        if session_seconds is not None:
            bounded = min(max(session_seconds, SHORTEST_SESSION_SECONDS), LONGEST_SESSION_SECONDS)
            self._third = min(self._third, bounded / _PARTS)
        self._prove(now)

    def accepted_by_heartbeat(self, now: float) -> None:
        """As `accepted`, for a member of a consumer, share or streams group."""
        self._third = min(self._third, GROUP_PROTOCOL_MUTE_SECONDS)
        self._prove(now)

    def _prove(self, now: float) -> None:
        self._proven_until = now + max(_PROOF_SECONDS, _PARTS * self._longest)

    def longest_mute(self, now: float) -> float:
        """The most seconds that the connection may be muted from now on; infinite if it keeps no member.

        The first mute after a heartbeat may last a third of the session timeout. Later ones are short until the next heartbeat,
        because other requests may stand in front of it.
        """
        if now >= self._proven_until:
            return inf
        third = self._longest
        return max(self._beat + third - now, min(max(third / _LATE_PARTS, SHORTEST_MUTE_SECONDS), LATE_MUTE_SECONDS))

    @property
    def _longest(self) -> float:
        return self._third if self._third < inf else SHORTEST_SESSION_SECONDS / _PARTS
