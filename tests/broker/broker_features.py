"""The features that brokers of older releases lack. Their tests are skipped with such brokers (`make brokers KAFKA=3.9.1`)."""

from dataclasses import dataclass

import pytest

from loadtest.testkit.kafka import broker_version


@dataclass(frozen=True)
class BrokerFeature:
    """A feature, and the first release that has it without further settings."""

    name: str
    since: tuple[int, int]

    def exists(self) -> bool:
        """True if the tests' brokers have it."""
        return broker_version() >= self.since

    def require(self) -> None:
        """Skip the test if the tests' brokers lack it."""
        if not self.exists():
            pytest.skip(f"brokers before Kafka {self.since[0]}.{self.since[1]} have no {self.name}")


CONSUMER_GROUPS = BrokerFeature("consumer groups of KIP-848", (4, 0))
SHARE_GROUPS = BrokerFeature("share groups of KIP-932", (4, 2))
QUOTA_MANAGERS = BrokerFeature("quota managers in Java", (4, 2))
