"""The addresses of brokers, from Weir's own metadata and from the answers to clients.

So Weir knows a new or moved broker before any client learns the address. Only Weir's own metadata says that a broker has gone.
"""

import logging
from collections.abc import Callable, Mapping, Sequence

from gateway.whole_number import MAX_PORT
from protocol.bodies.addresses import Broker
from protocol.errors import OtherCluster

_log = logging.getLogger("weir.cluster")

Address = tuple[str, int]

FORGET_SECONDS = 600.0
"""A broker is forgotten if all answers to Weir's own client have lacked it for this time. Restarts take less."""

LATE_SECONDS = 15.0
"""The most time that counts between two answers. Without answers, such as while the cluster is down, no broker is forgotten."""


class Brokers:
    """The cluster's brokers by node id. `bootstrap` are the configured servers.

    `agree_on` gets the cluster id of this process's first answer, and returns that of the first process.
    """

    def __init__(self, bootstrap: list[Address], agree_on: Callable[[str], str] = str) -> None:
        self.bootstrap = bootstrap
        self.cluster_id: str | None = None
        self._agree_on = agree_on
        self._addresses: dict[int, Address] = {}
        self._missing: dict[int, float] = {}  # for how long the answers to Weir itself have lacked a known broker
        self._answered_at = float("-inf")
        self._anyone = list(dict.fromkeys(bootstrap))
        self._on_new: list[Callable[[int], None]] = []
        self._on_forgotten: list[Callable[[int], None]] = []

    def on_new(self, callback: Callable[[int], None]) -> None:
        """Call back with the node id of each new broker, before any client learns of it."""
        self._on_new.append(callback)

    def on_forgotten(self, callback: Callable[[int], None]) -> None:
        """Call back with the node id of each broker that is forgotten."""
        self._on_forgotten.append(callback)

    def why_foreign(self, cluster_id: str | None) -> str | None:
        """The problem and its remedy if an answer is that of another cluster.

        The first id of any answer is that of Weir's cluster. An answer without an id passes, because some brokers send none.
        """
        if cluster_id == self.cluster_id or not cluster_id:
            return None
        if self.cluster_id is None:
            self.cluster_id = self._agree_on(cluster_id)
            _log.info("the cluster is %r", self.cluster_id)
            return self.why_foreign(cluster_id)
        return (
            f"this is a broker of cluster {cluster_id!r}. Weir serves cluster {self.cluster_id!r} — take the address out of"
            " upstream.bootstrap_servers and DNS. If the new cluster replaces the old one, restart Weir"
        )

    def learn_answer(self, cluster_id: str | None, brokers: Sequence[Broker]) -> None:
        """Learn the brokers of an answer to a client, by ascending id. Raises OtherCluster.

        An answer without a cluster id can't move known brokers if Weir has learned an id.
        """
        if cluster_id != self.cluster_id:
            if (problem := self.why_foreign(cluster_id)) is not None:
                raise OtherCluster("broker_other_cluster", problem)
            if self.cluster_id is not None and cluster_id != self.cluster_id:
                brokers = [broker for broker in brokers if broker.node_id not in self._addresses]
        known = self._addresses
        for each in brokers:  # few answers have anything new, and clients ask often
            if known.get(each.node_id) != (each.host, each.port):
                break
        else:
            return
        for broker in sorted(brokers):
            self.learn(broker.node_id, broker.host, broker.port)

    def learn_live(self, brokers: Mapping[int, Address], now: float) -> None:
        """Note an answer to Weir's own client, which names the brokers that are alive. `now` is monotonic, in seconds.

        One answer that names a broker is enough: another broker may have old metadata, or may just have started.
        """
        passed, self._answered_at = min(now - self._answered_at, LATE_SECONDS), now
        before = self._missing
        self._missing = {
            node_id: before[node_id] + passed if node_id in before else 0.0
            for node_id in sorted(self._addresses.keys() - brokers.keys())
        }
        if self._missing.keys() != before.keys():
            for node_id in self._missing.keys() - before.keys():
                _log.info(
                    "broker %d at %s:%d is not in the cluster's metadata any more", node_id, *self._addresses[node_id],
                    extra={"broker": node_id, "reason": "broker_missing"},
                )  # fmt: skip
            self._list_anyone()
        for node_id, (host, port) in brokers.items():  # now, so that warnings about their ports know which brokers have gone
            self.learn(node_id, host, port)

    def missing(self) -> dict[int, Address]:
        """The brokers that the last answer to Weir's own client lacked."""
        return {node_id: self._addresses[node_id] for node_id in self._missing}

    def due(self) -> list[int]:
        """The brokers that have been missing for so long that they are to be forgotten."""
        return [node_id for node_id, seconds in self._missing.items() if seconds >= FORGET_SECONDS]

    def forget(self, node_id: int) -> None:
        """Forget a broker that is due."""
        del self._missing[node_id]
        host, port = self._addresses.pop(node_id)
        _log.info(
            "broker %d at %s:%d is forgotten: for %g minutes the cluster's metadata has lacked it",
            node_id, host, port, FORGET_SECONDS / 60, extra={"broker": node_id},
        )  # fmt: skip
        for callback in self._on_forgotten:
            callback(node_id)

    def learn(self, node_id: int, host: str, port: int) -> None:
        """Note a broker's address. Invalid addresses are ignored, because brokers may answer anything."""
        old = self._addresses.get(node_id)
        if old == (host, port) or not host or not 0 < port <= MAX_PORT:
            return
        self._addresses[node_id] = (host, port)
        self._list_anyone()
        if old is None:
            _log.info("broker %d is at %s:%d", node_id, host, port, extra={"broker": node_id})
            for callback in self._on_new:
                callback(node_id)
        else:
            _log.info(
                "broker %d moved from %s:%d to %s:%d", node_id, *old, host, port,
                extra={"broker": node_id, "reason": "broker_moved"},
            )  # fmt: skip

    def address(self, node_id: int) -> Address:
        """Raises KeyError for an unknown broker."""
        return self._addresses[node_id]

    def addresses(self) -> dict[int, Address]:
        """The addresses of the brokers that are alive."""
        return {node_id: address for node_id, address in self._addresses.items() if node_id not in self._missing}

    def __contains__(self, node_id: int) -> bool:
        return node_id in self._addresses

    def anyone(self) -> Sequence[Address]:
        """The configured servers, then the brokers that are alive; each address once.

        The address of a broker that has gone may belong to another cluster.
        """
        return self._anyone

    def _list_anyone(self) -> None:
        self._anyone = list(dict.fromkeys((*self.bootstrap, *self.addresses().values())))
