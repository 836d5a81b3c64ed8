"""Messages about an address that cannot be bound."""

import errno
import socket

import pytest

from gateway.binding import why_not


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (
            OSError(errno.EADDRINUSE, "error while attempting to bind on address ('127.0.0.1', 1): address already in use"),
            "Address already in use — stop the other process on this port, or choose another port",
        ),
        (OSError(errno.EACCES, "Permission denied"), "Permission denied — choose a port above 1023, or give Weir the right"),
        (OSError(errno.EADDRNOTAVAIL, "no"), "Cannot assign requested address — set admin.host to an address of this machine"),
        (socket.gaierror(-2, "Name or service not known"), "Name or service not known — set admin.host to an address"),
        (OSError("odd"), "odd — set admin.host"),
    ],
    ids=["in use", "forbidden", "elsewhere", "unknown", "without a number"],
)
def test_bind_error_has_cause_and_remedy(error: OSError, says: str) -> None:
    assert why_not(error, "admin.host").startswith(says)
