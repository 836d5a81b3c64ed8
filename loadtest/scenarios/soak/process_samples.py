"""Memory and file descriptors of processes, from /proc."""

from collections import Counter
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

CLIENT, UPSTREAM, LISTENING, DEAD, LEDGER, OTHER = "client", "upstream", "listening", "dead", "ledger", "other"
"""Kinds of file descriptors. A dead one is a socket that the kernel's table of TCP connections lacks, such as that of a muted
client that has gone. An unfinished file of the ledger comes and goes."""

_LISTEN_STATE: Final = "0A"
_UNFINISHED: Final = ".jsonl.gz.part"
_SOCKET: Final = "socket:["
_TCP_TABLES: Final = ("/proc/net/tcp", "/proc/net/tcp6")


@dataclass(frozen=True)
class TcpSocket:
    local_port: int
    remote_port: int
    state: str


@dataclass(frozen=True)
class ProcessSample:
    """`anonymous` is the process's own memory in bytes, 0 if unknown. PSS has a share of the libraries' pages as well, which
    changes with the other Python processes of the machine. `cpu` is in seconds; `descriptors` counts them by kind.
    """

    role: str
    pid: int
    pss: int
    cpu: float
    descriptors: dict[str, int]
    anonymous: int = 0


def tcp_sockets() -> dict[str, TcpSocket]:
    """The open TCP sockets of this network namespace, by inode."""
    found = {}
    for table in _TCP_TABLES:
        for line in Path(table).read_text().splitlines()[1:]:
            fields = line.split()
            local, remote = (int(address.rpartition(":")[2], 16) for address in fields[1:3])
            found[fields[9]] = TcpSocket(local, remote, fields[3])
    return found


def kind_of(target: str, sockets: dict[str, TcpSocket], unix: Collection[str], clients: Collection[int],
            brokers: Collection[int]) -> str:  # fmt: skip
    """The kind of a descriptor by the text of its link. `clients` are the ports of listeners, `brokers` those of brokers."""
    if target.endswith(_UNFINISHED):
        return LEDGER
    if not target.startswith(_SOCKET) or (inode := target.removeprefix(_SOCKET).removesuffix("]")) in unix:
        return OTHER
    one = sockets.get(inode)
    if one is None:
        return DEAD
    if one.state == _LISTEN_STATE:
        return LISTENING
    if one.local_port in clients:
        return CLIENT
    return UPSTREAM if one.remote_port in brokers else OTHER


def other_inodes() -> set[str]:
    """The inodes of sockets of other families."""
    found = {line.split()[6] for line in Path("/proc/net/unix").read_text().splitlines()[1:]}
    for table in ("udp", "udp6", "netlink"):
        found |= {line.split()[9] for line in Path("/proc/net", table).read_text().splitlines()[1:]}
    return found


def sample(role: str, pid: int, clients: Collection[int], brokers: Collection[int]) -> ProcessSample:
    """Raises OSError if the process has ended."""
    directory = Path(f"/proc/{pid}")
    targets = []
    for descriptor in (directory / "fd").iterdir():
        with suppress(FileNotFoundError):  # closed since the folder was listed
            targets.append(str(descriptor.readlink()))
    # The tables are read after the links, so a socket that is missing there was closed, or is dead.
    sockets, unix = tcp_sockets(), other_inodes()
    kinds = Counter(kind_of(target, sockets, unix, clients, brokers) for target in targets)
    memory = dict(_kib(line) for line in (directory / "smaps_rollup").read_text().splitlines()[1:])
    stat = (directory / "stat").read_text().rpartition(")")[2].split()
    cpu = (int(stat[11]) + int(stat[12])) / 100
    return ProcessSample(role, pid, memory["Pss"], cpu, dict(kinds), memory["Pss_Anon"])


def _kib(line: str) -> tuple[str, int]:
    name, _, value = line.partition(":")
    return name, int(value.split()[0]) * 1024
