"""systemd's notify protocol (sd_notify): reports to the service manager that Weir serves, reloads or stops."""

import logging
import os
import socket

from gateway import clock

_ADDRESS = "NOTIFY_SOCKET"

_log = logging.getLogger("weir.service")


def ready() -> None:
    """The end of a start, or of a reload."""
    _notify("READY=1")


def reloading() -> None:
    """The begin of a reload, which `ready` ends. systemd 253 and later need its time."""
    _notify(f"RELOADING=1\nMONOTONIC_USEC={round(clock.monotonic() * 1e6)}")


def stopping(seconds: float) -> None:
    """The begin of a drain. systemd gives it `seconds`, even if TimeoutStopSec of the unit is shorter."""
    _notify(f"STOPPING=1\nEXTEND_TIMEOUT_USEC={round(seconds * 1e6)}")


def environment_of_children() -> dict[str, str]:
    """The environment without the service manager's address: systemd accepts messages of the main process only."""
    return {name: value for name, value in os.environ.items() if name != _ADDRESS}


def _notify(state: str) -> None:
    """Send `state`, if a service manager has started this process. A gateway serves its clients even if this fails."""
    address = os.environ.get(_ADDRESS, "")
    if not address:
        return
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
            sender.setblocking(False)
            # A name that begins with @ is one of Linux's abstract names.
            sender.sendto(state.encode(), f"\0{address[1:]}" if address.startswith("@") else address)
    except OSError as error:
        _log.warning("the service manager does not get %s: %s", state.partition("=")[0], error)
