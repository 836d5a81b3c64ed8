"""Addresses of host names in entities of type `ip`. A client with the right to alter quotas chooses these names."""

import asyncio
import random
import socket
from collections.abc import Iterable

from gateway.quotas.addresses import address_of

LOOKUP_SECONDS = 5.0
"""The longest time for all names of one call."""


class HostNames:
    """Looks up one name at a time.

    The loop resolves names in a few threads, and a name server that does not answer blocks a thread for longer than
    `LOOKUP_SECONDS`. The threads resolve the brokers' names too. So a lookup that is not over holds up the next call.
    """

    def __init__(self) -> None:
        self._running: asyncio.Task[str | None] | None = None

    async def addresses(self, names: Iterable[str]) -> dict[str, str]:
        """The addresses in the usual spelling. Names without an address, or without an answer in time, are left out."""
        found: dict[str, str] = {}
        hosts: list[str] = []
        for name in names:
            try:
                found[name] = str(address_of(name.removeprefix("[").removesuffix("]")))
            except ValueError:
                hosts.append(name)
        deadline = asyncio.get_running_loop().time() + LOOKUP_SECONDS
        # In random order, so that a slow name does not keep the names behind it from ever being looked up.
        for name in random.sample(hosts, len(hosts)):
            if not await self._ends(deadline):
                break
            self._running = asyncio.create_task(_lookup(name), name="look up a host name")
            if not await self._ends(deadline):
                break
            address = self._running.result()
            if address is not None:
                found[name] = address
        return found

    async def _ends(self, deadline: float) -> bool:
        """True if no lookup is running. Waits until `deadline` for that."""
        if self._running is None:
            return True
        left = max(deadline - asyncio.get_running_loop().time(), 0.0)
        done, _ = await asyncio.wait({self._running}, timeout=left)
        return bool(done)


async def _lookup(name: str) -> str | None:
    try:
        found = await asyncio.get_running_loop().getaddrinfo(name, None)
        *_, first = min(found, key=lambda each: each[0] != socket.AF_INET)  # IPv4 if there is one, as Java
        return str(address_of(str(first[0])))
    except (OSError, ValueError):  # unknown host, or invalid name
        return None
