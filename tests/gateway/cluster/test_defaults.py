"""What a broker tells of its num.partitions, asked through a stand-in for the client: the real one is asked in
tests/broker/test_controller_mutations.py."""

from types import SimpleNamespace

import pytest

from gateway.cluster.defaults import TopicDefaults


class Cluster:
    """A broker with number 7 that answers DescribeConfigs with these entries."""

    def __init__(self, entries):
        self.entries = entries
        self.asked = []

    def get_random_node(self):
        return 7

    async def send(self, node_id, request):
        self.asked.append(node_id)
        return SimpleNamespace(resources=[(0 if self.entries else 31, None, 4, "7", self.entries)])


@pytest.mark.parametrize(
    ("entries", "learnt"),
    [
        ([("num.partitions", "6", True, 5, False, [])], [6]),
        ([("num.partitions", "6", True, False, False)], [6]),  # v0
        ([("num.partitions", None, True, 5, False, [])], []),
        ([("other", "6", True, 5, False, [])], []),
        ([], []),  # not allowed to ask
    ],
)
async def test_broker_defaults_are_learned(entries, learnt):
    got = []
    await TopicDefaults(got.append).look(Cluster(entries))
    assert got == learnt


async def test_broker_defaults_are_looked_up_periodically():
    cluster, got = Cluster([("num.partitions", "6")]), []
    defaults = TopicDefaults(got.append, every=3)
    for _ in range(7):
        await defaults.look(cluster)
    assert cluster.asked == [7, 7, 7]
