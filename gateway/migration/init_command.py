"""`weir init`: asks a broker, and writes a first weir.yaml with comments."""

import socket
import sys
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from gateway.cluster.discovery import sasl_mechanisms
from gateway.config.endpoints import AdvertisedHost, ServerAddress
from gateway.config.load import parse_config
from gateway.config.model import WeirConfig
from gateway.config.problems import ConfigError
from gateway.files.path_faults import new_file_fault
from gateway.files.whole_file import create_file
from gateway.migration import MigrationError, UsageError
from gateway.migration.access import Access, addresses, by_properties, reason_of
from gateway.migration.broker_admin import BrokerAdmin, NotAllowedError
from gateway.migration.client_properties import ClientProperties, read_properties
from gateway.migration.first_config import USUAL_BROKER_PORTS, ChosenPorts, FoundCluster, first_config, listener_host
from gateway.terminal_text import printable
from gateway.whole_number import MAX_PORT
from protocol.errors import ProtocolError

_BOOTSTRAP_PORTS = (29092, 19092, 9192, 26092, 23092, 16092, 13092)
"""Other programs often take the first ones. All are below 32768, where Linux begins to give ports to outgoing connections."""

_ADMIN_PORTS = (9644, *range(9646, 9744))
"""9645 is the volume agent's (`quotas.volumes.agent.admin_port`)."""


@dataclass(frozen=True, slots=True)
class InitOptions:
    """The options of the command line."""

    bootstrap_server: str
    command_config: Path | None
    out: Path
    advertised_host: str | None


async def init(options: InitOptions) -> None:
    """Write the file and print the next steps. Raises MigrationError if a check or a write fails; then no file stays."""
    out = options.out
    if not str(out).isprintable():
        raise UsageError(f"--out: {str(out)!r} has characters that can't be printed — name another file")
    bootstrap = addresses(options.bootstrap_server)
    access = by_properties(bootstrap, options.command_config)
    properties = ClientProperties("") if options.command_config is None else read_properties(options.command_config)
    _check_new(out)
    password_file = None
    if properties.sasl is not None:
        password_file = _password_file(out, properties.sasl.password)
        _check_new(password_file)
    advertised_host = None if options.advertised_host is None else _host(options.advertised_host)
    found, unreachable = await _ask(access)
    taken = {port for _, port in (*bootstrap, *found.brokers.values())}
    ports = choose_ports(found.brokers, listener_host(advertised_host), taken)
    text = first_config(found, bootstrap, properties, ports, advertised_host, password_file, str(out))
    config = _valid(text, out)
    _write(out, text, 0o644)
    if password_file is not None and properties.sasl is not None:
        try:
            _write(password_file, properties.sasl.password + "\n", 0o600)
        except MigrationError:
            out.unlink(missing_ok=True)  # the next attempt would refuse to overwrite it
            raise
    print(printable(f"{out}: written for {found}"))
    if password_file is not None:
        print(f"{password_file}: written, with the password of {options.command_config}; only you may read it")
    for line in unreachable:
        print(printable(f"warning: {line}"), file=sys.stderr)
    listener = config.listeners[0]
    print(f"clients connect to {ServerAddress(listener.advertised_host, listener.bootstrap_port)}")
    if found.quotas:
        print(f"the brokers have quotas of their own: weir quotas import --config {out}")
    print(f"next: add rows to quotas.entities, then: weir check --config {out} && weir serve --config {out}")


def _password_file(out: Path, password: str) -> Path:
    """The file beside `out` for the password. Raises MigrationError if Weir could not read the password back."""
    file = out.with_suffix(".password")
    if file == out:
        raise MigrationError(f"{out}: is the name of the file for the password — name a file with another ending with --out")
    if "\n" in password or "\r" in password:
        raise MigrationError("--command-config: the password has several lines, and Weir reads one — give the user another")
    return file


def _valid(text: str, out: Path) -> WeirConfig:
    """Raises MigrationError if Weir would refuse the text."""
    try:
        return parse_config(text, source=str(out))
    except ConfigError as error:
        problems = "; ".join(map(str, error.problems))
        raise MigrationError(f"{out}: not written, because Weir would refuse the file: {problems}") from None


def _check_new(out: Path) -> None:
    """Raises MigrationError if the file exists, or can't be made. Creates nothing."""
    if (fault := new_file_fault(out, "--out")) is not None:
        raise MigrationError(f"{out}: {' — '.join(fault)}")
    if out.is_symlink() or out.exists():
        raise MigrationError(f"{out}: exists, and init overwrites no file — remove it, or name another file with --out")


def _host(text: str) -> str:
    try:
        return TypeAdapter(AdvertisedHost).validate_python(text)
    except ValidationError as error:
        (details,) = error.errors(include_url=False)
        reason: str = details["ctx"]["message"]
        raise UsageError(f"--advertised-host: {text!r} {reason} — write one that clients can reach, without a port") from None


async def _ask(access: Access) -> tuple[FoundCluster, list[str]]:
    """The cluster, and a line for each broker that can't be reached at its advertised address."""
    async with BrokerAdmin(access) as admin:
        cluster = await admin.cluster()
        try:
            quotas: int | None = len(await admin.describe())
            await admin.refuse_gateway()
        except NotAllowedError:
            quotas = None
    mechanisms: tuple[str, ...] = ()
    unreachable = []
    for node_id, address in sorted(cluster.brokers.items()):
        try:
            mechanisms = await sasl_mechanisms(address, access.tls)
        except (OSError, ProtocolError) as error:
            problem = reason_of(error) if isinstance(error, OSError) else str(error)
            unreachable.append(
                f"broker {node_id} can't be reached at its advertised address {ServerAddress(*address)}: {problem}. Weir"
                " connects clients to it there — open the way from this host"
            )
    return FoundCluster(cluster.cluster_id, cluster.brokers, mechanisms, quotas), unreachable


def choose_ports(broker_ids: Iterable[int], host: str, taken: Collection[int]) -> ChosenPorts:
    """Ports that are free on this host now, and no broker's (`taken`). Raises MigrationError if there are none."""
    ids = sorted(broker_ids)
    count = max(USUAL_BROKER_PORTS, ids[-1] - ids[0] + 1)
    for first in _BOOTSTRAP_PORTS:
        # Broker N gets the first of the broker ports plus N, modulo their number.
        wanted = [first, *(first + 1 + node_id % count for node_id in ids)]
        # A broker on this host, within the range, would be refused as an address of the gateway itself.
        crossed = any(first <= port <= first + count for port in taken)
        if first + count <= MAX_PORT and not crossed and all(_is_free(host, port) for port in wanted):
            break
    else:
        raise MigrationError(
            f"no range of {count + 1} ports from {', '.join(map(str, _BOOTSTRAP_PORTS))} on is free of"
            " programs and brokers — stop those that use them"
        )
    admin = next((port for port in _ADMIN_PORTS if _is_free("127.0.0.1", port)), _ADMIN_PORTS[0])
    return ChosenPorts(first, count, admin)


def _is_free(host: str, port: int) -> bool:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
        return True


def _write(path: Path, text: str, mode: int) -> None:
    try:
        create_file(path, [text], mode=mode, durable=False)
    except OSError as error:
        raise MigrationError(
            f"{path}: can't be written: {error.strerror or error} — name a file in another folder with --out"
        ) from None
