"""The settings of Weir's own topics, and those settings of the brokers that matter for these topics."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from aiokafka.protocol.admin import DescribeConfigsRequest

from gateway.cluster.client import ClusterError, KafkaResponse, answer_of
from gateway.cluster.metadata import OwnClient
from protocol.error_codes import ErrorCode

POLICY: Final = "cleanup.policy"
COMPACT: Final = "compact"

_TOPIC_RESOURCE, _BROKER_RESOURCE = 2, 4
_REPLICAS = "default.replication.factor"


@dataclass(frozen=True, slots=True)
class TopicSpec:
    """Settings for creating the topic, with one partition. Its cleanup.policy is `compact` unless `configs` has another one.

    `timed`: records have the time of the gateway's wall clock. Brokers refuse records more than an hour ahead of their clock.
    """

    name: str
    configs: Mapping[str, str] = field(default_factory=dict)
    timed: bool = False

    @property
    def policy(self) -> str:
        return self.configs.get(POLICY, COMPACT)

    def keeps(self, policy: str) -> bool:
        """False if a topic with this cleanup.policy may lose records that Weir needs."""
        wanted, found = set(self.policy.split(",")), set(filter(None, policy.split(",")))
        return found <= wanted and (COMPACT in found) == (COMPACT in wanted)

    async def wrong_policies(self, client: OwnClient) -> list[str]:
        """The topic's policy if it may lose records. Raises ClusterError if it is unknown."""
        response = await client.ask_any(DescribeConfigsRequest([(_TOPIC_RESOURCE, self.name, [POLICY])]))
        with answer_of("DescribeConfigs"):
            return [value for value in _values(response, POLICY) if not self.keeps(value)]


async def usual_replicas(client: OwnClient, brokers: Collection[int], most: int) -> int:
    """The default.replication.factor of one of these brokers, at most `most`; 1 if the broker does not show it."""
    broker = min(brokers, default=-1)
    try:
        response = await client.ask(broker, DescribeConfigsRequest([(_BROKER_RESOURCE, str(broker), [_REPLICAS])]))
        with answer_of("DescribeConfigs"):
            shown = [int(value) for value in _values(response, _REPLICAS)]
    except ClusterError:
        return 1
    return min([*shown, most]) if shown else 1


def _values(response: KafkaResponse, key: str) -> list[str]:
    """The values of a config key that the broker shows."""
    return [
        value for code, _, _, _, entries in response.resources if code == ErrorCode.NONE
        for name, value, *_ in entries if name == key
    ]  # fmt: skip
