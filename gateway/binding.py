"""The cause and the remedy if an address can't be bound."""

import errno
import os


def why_not(error: OSError, host_key: str) -> str:
    """The system's error text and the remedy. `host_key` is the config key of the host.

    asyncio's own text would repeat the address, which the message has already.
    """
    if error.errno is None or error.errno < 0:  # a name that can't be resolved
        return f"{error.strerror or error} — set {host_key} to an address of this machine"
    match error.errno:
        case errno.EADDRNOTAVAIL:
            remedy = f"set {host_key} to an address of this machine, or to 0.0.0.0 for all of them"
        case errno.EACCES | errno.EPERM:
            remedy = "choose a port above 1023, or give Weir the right to this port (CAP_NET_BIND_SERVICE)"
        case _:
            remedy = "stop the other process on this port, or choose another port"
    return f"{os.strerror(error.errno)} — {remedy}"
