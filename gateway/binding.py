"""Why an address can't be bound, and what to do about it."""

import errno
import os


def why_not(error: OSError, host_key: str) -> str:
    """The system's own words and the remedy. asyncio tells the address in its words, which the message has already.

    `host_key` is the key of the config file that has the host.
    """
    if error.errno is None or error.errno < 0:  # of a name that can't be resolved
        return f"{error.strerror or error} — set {host_key} to an address of this machine"
    match error.errno:
        case errno.EADDRNOTAVAIL:
            remedy = f"set {host_key} to an address of this machine, or to 0.0.0.0 for all of them"
        case errno.EACCES | errno.EPERM:
            remedy = "choose a port above 1023, or give Weir the right to this one (CAP_NET_BIND_SERVICE)"
        case _:
            remedy = "stop what listens there, or choose another port"
    return f"{os.strerror(error.errno)} — {remedy}"
