"""`weir init`: asks a broker, and writes a first weir.yaml with comments."""

import os
import socket
import sys
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from gateway.cluster.discovery import sasl_mechanisms
from gateway.config.endpoints import AdvertisedHost
from gateway.config.load import load_config
from gateway.migration import MigrationError
from gateway.migration.access import Access, addresses, by_properties, reason_of
from gateway.migration.broker_admin import BrokerAdmin, NotAllowedError
from gateway.migration.client_properties import ClientProperties, read_properties
from gateway.migration.first_config import USUAL_BROKER_PORTS, ChosenPorts, FoundCluster, first_config
from protocol.errors import ProtocolError

_BOOTSTRAP_PORTS = (29092, 39092, 19092, 49092)
_ADMIN_PORTS = range(9644, 9744)


@dataclass(frozen=True, slots=True)
class InitOptions:
    """The options of the command line."""

    bootstrap_server: str
    command_config: Path | None
    out: Path
    advertised_host: str | None


async def init(options: InitOptions) -> None:
    """Write the file and print the next steps. Raises MigrationError before anything is written."""
    out = options.out
    bootstrap = addresses(options.bootstrap_server)
    access = by_properties(bootstrap, options.command_config)
    properties = ClientProperties("") if options.command_config is None else read_properties(options.command_config)
    password_file = None if properties.sasl is None else out.with_suffix(".password")
    _check_new(out, password_file)
    advertised_host = None if options.advertised_host is None else _host(options.advertised_host)
    found, unreachable = await _ask(access)
    taken = {port for _, port in (*bootstrap, *found.brokers.values())}
    ports = choose_ports(found.brokers, "127.0.0.1" if advertised_host is None else "0.0.0.0", taken)  # noqa: S104
    text = first_config(found, bootstrap, properties, ports, advertised_host, password_file, str(out))
    if password_file is not None and properties.sasl is not None:
        _write(password_file, properties.sasl.password + "\n", 0o600)
    _write(out, text, 0o644)
    config = load_config(out)
    print(f"{out}: written for {found}")
    if password_file is not None:
        print(f"{password_file}: written, with the password of {options.command_config}; only you may read it")
    for line in unreachable:
        print(f"warning: {line}", file=sys.stderr)
    listener = config.listeners[0]
    print(f"clients connect to {listener.advertised_host}:{listener.bootstrap_port}")
    if found.quotas:
        print(f"the brokers have quotas of their own: weir quotas import --config {out}")
    print(f"next: add rows to quotas.entities, then: weir check --config {out} && weir serve --config {out}")


def _check_new(out: Path, password_file: Path | None) -> None:
    """Raises MigrationError if one of the files exists, or can't be made. Creates nothing."""
    if out.is_dir():
        raise MigrationError(f"{out}: is a folder — name the new file in it with --out")
    for file in (out, password_file):
        if file is not None and (file.is_symlink() or file.exists()):
            raise MigrationError(f"{file}: exists, and init overwrites no file — remove it, or name another file with --out")
    if not out.parent.is_dir():
        raise MigrationError(f"{out}: the folder {out.parent} does not exist — create it, or name another file with --out")
    if not os.access(out.parent, os.W_OK | os.X_OK):
        raise _unwritable(out, "no permission to write to its folder")


def _host(text: str) -> str:
    try:
        return TypeAdapter(AdvertisedHost).validate_python(text)
    except ValidationError as error:
        (details,) = error.errors(include_url=False)
        reason: str = details["ctx"]["message"]
        raise MigrationError(
            f"--advertised-host: {text!r} {reason} — write one that clients can reach, without a port"
        ) from None


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
                f"broker {node_id} can't be reached at its advertised address {address[0]}:{address[1]}: {problem}. Weir"
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
        if first + count <= 65_535 and not crossed and all(_is_free(host, port) for port in wanted):
            break
    else:
        raise MigrationError(
            f"no range of {count + 1} ports from {', '.join(map(str, _BOOTSTRAP_PORTS))} on is free of"
            " programs and brokers — stop those that use them"
        )
    admin = next((port for port in _ADMIN_PORTS if _is_free("127.0.0.1", port)), _ADMIN_PORTS[0])
    return ChosenPorts(first, count, admin)


def _is_free(host: str, port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
        return True


def _write(path: Path, text: str, mode: int) -> None:
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise _unwritable(path, error.strerror or str(error)) from None


def _unwritable(path: Path, reason: str) -> MigrationError:
    return MigrationError(f"{path}: can't be written: {reason} — name a file in another folder with --out")
