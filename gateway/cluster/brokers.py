"""The addresses of brokers, from Weir's own metadata and from the answers to clients.

So Weir knows a new or moved broker before any client learns the address.
"""

import logging
from collections.abc import Callable, Sequence

_log = logging.getLogger("weir.cluster")

Address = tuple[str, int]

_MAX_PORT = 65_535


class Brokers:
    """The cluster's brokers by node id. `bootstrap` are the configured servers."""

    def __init__(self, bootstrap: list[Address]) -> None:
        self.bootstrap = bootstrap
        self._addresses: dict[int, Address] = {}
        self._anyone = list(dict.fromkeys(bootstrap))
        self._on_new: list[Callable[[int], None]] = []

    def on_new(self, callback: Callable[[int], None]) -> None:
        """Call back with the node id of each new broker, before any client learns of it."""
        self._on_new.append(callback)

    def learn(self, node_id: int, host: str, port: int) -> None:
        """Note a broker's address. Invalid addresses are ignored, because brokers may answer anything."""
        old = self._addresses.get(node_id)
        if old == (host, port) or not host or not 0 < port <= _MAX_PORT:
            return
        self._addresses[node_id] = (host, port)
        self._anyone = list(dict.fromkeys((*self.bootstrap, *self._addresses.values())))
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
        return dict(self._addresses)

    def __contains__(self, node_id: int) -> bool:
        return node_id in self._addresses

    def anyone(self) -> Sequence[Address]:
        """The configured servers, then the known brokers; each address once."""
        return self._anyone
