"""The limit of open files, and the files below it that clients leave to Weir itself.

A client takes two: its own connection and that to its broker. Without a reserve, clients could take the last ones. Then no
probe and no operator would reach Weir, and it could write no file.
"""

import errno
import os
import resource
from functools import cache
from typing import Final

OWN_ERRORS: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
"""This process or machine has run out of something: the peer is not to blame."""

_MOST: Final = 1 << 20
_RESERVED: Final = 64
"""Connections to the brokers of accepted clients may take half of them."""


def raise_limit() -> None:
    """Raise the limit of open files as far as it goes."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for most in (max(hard, _MOST), hard):
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        except (ValueError, OSError):  # only root may raise the hard limit, and not beyond fs.nr_open
            continue
        break
    first_beyond_clients.cache_clear()
    first_beyond_brokers.cache_clear()


def limit() -> int:
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


@cache
def first_beyond_clients() -> int:
    """The lowest file descriptor that no client's connection should have. The kernel gives out the lowest that is free."""
    return limit() - reserve()


@cache
def first_beyond_brokers() -> int:
    """The lowest file descriptor that no client's connection to its broker may have."""
    return limit() - reserve() // 2


def require_below(first: int) -> None:
    """Raise OSError (EMFILE) unless the next file's descriptor is below `first`."""
    probe = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    os.close(probe)
    if probe >= first:
        raise too_many()


def too_many() -> OSError:
    return OSError(errno.EMFILE, f"Too many open files: the last {reserve()} are Weir's own")


def reserve() -> int:
    """The number of files that clients leave to Weir."""
    return min(_RESERVED, limit() // 4)


def remedy(error: OSError) -> str:
    """The operator's remedy for one of `OWN_ERRORS`."""
    match error.errno:
        case errno.EMFILE:
            return (
                f"a client needs two open files, and the limit is {limit()}: raise the service's LimitNOFILE or the shell's"
                " ulimit -n"
            )
        case errno.ENFILE:
            return "the machine has reached its limit of open files: raise fs.file-max"
        case errno.ENOBUFS | errno.ENOMEM:
            return "the kernel is out of memory: give the machine more memory or fewer clients"
    return "check the kernel's log; restart Weir if the error persists"
