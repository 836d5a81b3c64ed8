"""The limits on connections of users. A user is known only after authentication, so the check comes then."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import inf
from typing import Final

from gateway.quotas.bucket import Bucket
from gateway.quotas.engine import QuotaEngine
from gateway.quotas.entity import BOOTSTRAP, MAX_CONNECTIONS, short_name
from gateway.quotas.kinds.connection import KIND as CONNECTIONS

USER: Final = "user"

LONGEST_WAIT_SECONDS: Final = 10.0
"""A connection that would wait longer for its user's rate is closed. Clients give up after 30 s (request.timeout.ms).

In Kafka's window, no connection waits: its delay is no turn, and use leaves the window whether or not clients wait."""

MAX_REFUSED: Final = 1_000
"""The maximum number of refused connections of users that stay open for a moment. Further ones are closed at once."""

LOOKUPS: Final = 500
"""After a change of the quotas, one call of `limited` looks up the limits of so many users. Later calls look up the others."""

CountKey = tuple[str, str]
"""A listener, the gateway, an address or a user whose open connections are counted: its kind and its name."""


@dataclass(frozen=True, slots=True)
class UserVerdict:
    """The decision on a connection whose user is known now.

    Without a `refusal`, the connection waits `delay` seconds if the delay is `enforced`; `bucket` has the rate. With a refusal,
    the caller closes it after `delay` seconds; `refusal` is a value of the label `reason`.
    """

    refusal: str = ""
    delay: float = 0.0
    enforced: bool = False
    bucket: Bucket | None = None

    @property
    def refused(self) -> bool:
        return self.refusal != ""


ADMITTED: Final = UserVerdict()


class UserConnections:
    """The open connections of each user. `refused` ones are still open, but not counted.

    Users without a limit are counted as well: a reload may give them one.
    """

    def __init__(self, engine: QuotaEngine) -> None:
        self._engine = engine
        self._open: dict[str, int] = {}
        self._limits: dict[str, tuple[int, float | None]] = {}  # of users with open connections: the engine's generation, limit
        self.peers: Mapping[CountKey, int] = {}
        self.parts = 1
        self.refused = 0

    def accept(self, user: str, now: float, broker: int = BOOTSTRAP) -> UserVerdict:
        """Count a connection to a broker, or refuse it. A refused one uses nothing of the rate."""
        settings = self._engine.settings
        most = self._engine.table.resolve_user(MAX_CONNECTIONS, user).limit
        if most is not None and settings.enforce and self.count(user) >= part_of(int(most), self.parts):
            self.refused += 1
            return UserVerdict("max_per_user", self._hold())
        delay, enforced = 0.0, False
        bucket = self._engine.acquire_user(CONNECTIONS.name, user, now, broker)
        if bucket is not None:
            self._engine.release(bucket, now)
            patience = 0.0 if bucket.takes_back else LONGEST_WAIT_SECONDS
            delay, enforced = bucket.charge_connection(inf, now, patience)
            if enforced and delay > patience:
                self.refused += 1
                return UserVerdict("creation_rate_per_user", self._hold())
        shadows = self._engine.shadows
        if shadows is not None and (shadow := shadows.acquire_user(CONNECTIONS.name, user, now, broker)) is not None:
            shadows.release(shadow, now)
            shadow.charge(1, now)
        self._open[user] = self._open.get(user, 0) + 1
        self._limits[user] = self._engine.generation, most
        return UserVerdict("", delay, enforced, bucket) if delay > 0.0 else ADMITTED

    def _hold(self) -> float:
        """Seconds that a refused connection stays open; `refused` counts it already."""
        return self._engine.settings.window_of(CONNECTIONS).seconds if self.refused <= MAX_REFUSED else 0.0

    def release(self, user: str) -> None:
        left = self._open[user] - 1
        if left:
            self._open[user] = left
        else:
            del self._open[user], self._limits[user]

    def count(self, user: str) -> int:
        """The open connections of a user at all gateways that share."""
        return self._open.get(user, 0) + self.peers.get((USER, short_name(user)), 0)

    def limited(self) -> Iterator[tuple[str, int, int]]:
        """Each user with open connections and a limit: the name, the connections of this gateway, the limit."""
        generation, lookups = self._engine.generation, LOOKUPS
        for user, count in self._open.items():
            known, most = self._limits[user]
            if known != generation and lookups > 0:
                lookups -= 1
                most = self._engine.table.resolve_user(MAX_CONNECTIONS, user).limit
                self._limits[user] = generation, most
            if most is not None:
                yield user, count, int(most)


def part_of(most: int, parts: int) -> int:
    """This gateway's part of a maximum number, at least 1."""
    return most if parts == 1 else max(1, most // parts)
