"""The settings of Weir's own topics, and the cleanup.policy that the brokers describe."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from aiokafka.protocol.admin import DescribeConfigsRequest

from gateway.cluster.client import answer_of
from gateway.cluster.metadata import OwnClient

POLICY: Final = "cleanup.policy"
COMPACT: Final = "compact"

_TOPIC_RESOURCE: Final = 2


@dataclass(frozen=True, slots=True)
class TopicSpec:
    """Settings for creating the topic. Its cleanup.policy is `compact` unless `configs` has another one.

    `timed`: records have the time of the gateway's wall clock. Brokers refuse records more than an hour ahead of their clock.
    """

    name: str
    partitions: int = 1
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
            return [
                value for code, _, _, _, entries in response.resources if code == 0
                for name, value, *_ in entries if name == POLICY and not self.keeps(value)
            ]  # fmt: skip
