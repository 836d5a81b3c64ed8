"""The cluster's num.partitions, as far as Weir itself may ask for it."""

from collections.abc import Callable

from aiokafka.client import AIOKafkaClient
from aiokafka.protocol.admin import DescribeConfigsRequest

_BROKER = 4  # Kafka's `ConfigResource.Type`
_KEY = "num.partitions"


class TopicDefaults:
    """Asks a broker from time to time; what the brokers' answers to clients tell is learnt in passing, and at once."""

    def __init__(self, learn: Callable[[int], None], *, every: int = 12) -> None:
        """`learn` gets the number; every so many looks at the cluster one asks for it."""
        self._learn = learn
        self._every = every
        self._looks = 0

    async def look(self, client: AIOKafkaClient) -> None:
        """Ask, if it is time to. Raises KafkaError where the broker does not answer; one that refuses tells nothing."""
        self._looks += 1
        if (self._looks - 1) % self._every:
            return
        node_id = client.get_random_node()
        answer = await client.send(node_id, DescribeConfigsRequest([(_BROKER, str(node_id), [_KEY])]))
        for _error, _message, _type, _name, entries, *_ in answer.resources:
            for name, value, *_ in entries:
                if name == _KEY and str(value).isdigit():
                    self._learn(int(value))
