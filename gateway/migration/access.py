"""The way to the brokers for a command: addresses, TLS and credentials, and the causes of a refused connection."""

import os
import ssl
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from gateway.cluster.brokers import Address, Brokers
from gateway.cluster.client import ClusterError, Connections, CredentialsError
from gateway.cluster.discovery import PROBE_SECONDS, sasl_mechanisms
from gateway.cluster.upstream import Upstream, problem_of
from gateway.config.endpoints import Server, ServerAddress
from gateway.config.model import WeirConfig
from gateway.config.sasl import no_own_mechanism
from gateway.migration import MigrationError, UsageError
from gateway.migration.client_properties import ClientProperties, read_properties
from gateway.proxy.counters import Counters
from gateway.proxy.tls.contexts import client_context
from protocol.errors import ProtocolError

_REMEDY = "check --bootstrap-server and --command-config"


@dataclass(frozen=True, slots=True)
class Access:
    """`options` returns aiokafka's connection options. `advice` is the remedy if brokers that offer these mechanisms refuse.

    `arguments` are those of the command line that give the same TLS and SASL settings again, with a space before each.
    `remedy` ends the message if no broker can be reached.
    """

    bootstrap: tuple[Address, ...]
    options: Callable[[], Mapping[str, Any]]
    tls: ssl.SSLContext | None
    advice: Callable[[Sequence[str]], str]
    client_id: str = "weir"
    timeout_ms: int = 10_000
    arguments: str = ""
    remedy: str = _REMEDY

    def connections(self) -> Connections:
        return Connections(self.options, self.client_id, self.timeout_ms)

    async def explained(self, error: ClusterError) -> MigrationError:
        """The error with its cause: aiokafka's text names none if TLS or SASL fails."""
        if isinstance(error, CredentialsError):
            return MigrationError(str(error))
        problems: list[str] = []
        for address in self.bootstrap:
            where = ServerAddress(*address)
            try:
                mechanisms = await sasl_mechanisms(address, self.tls)
            except OSError as problem:
                problems.append(f"{where} can't be reached: {reason_of(problem)}")
            except ProtocolError as problem:
                problems.append(f"{where} answers, but not as a Kafka broker does ({problem})")
            else:
                refused = bool(mechanisms) or "sasl_mechanism" in self.options()
                return MigrationError(f"{where}: {self.advice(mechanisms)}" if refused else f"{error} — {self.remedy}")
        return MigrationError(f"{'; '.join(problems)} — {self.remedy}")


def addresses(text: str) -> tuple[Address, ...]:
    """The addresses in `--bootstrap-server`: `host:port`, several with commas. Raises UsageError."""
    found = []
    for part in text.split(","):
        try:
            server = TypeAdapter(Server).validate_python(part.strip())
        except ValidationError:
            raise UsageError(
                f'--bootstrap-server: {part.strip()!r} is not an address — write "host:port" of a broker, several with commas'
            ) from None
        found.append((server.host, server.port))
    return tuple(found)


def by_properties(bootstrap: tuple[Address, ...], path: Path | None) -> Access:
    """Access by `--command-config`, or in plaintext without it. Raises MigrationError."""
    properties = ClientProperties("--command-config") if path is None else read_properties(path)
    tls = None
    if properties.tls is not None:
        try:
            tls = client_context(properties.tls)
        except OSError as error:
            names = ", ".join(sorted({str(file) for file in properties.tls.files.values()})) or "the system's authorities"
            reason = error.strerror or str(error) or "it is not PEM"
            raise MigrationError(
                f"{properties.source}: {names} can't be used: {reason} — name PEM files that Weir can read. Relative paths"
                f" start at the current directory, {Path.cwd()}"
            ) from None
    options: dict[str, Any] = {"security_protocol": properties.security_protocol}
    if tls is not None:
        options["ssl_context"] = tls
    if properties.sasl is not None:
        options |= {
            "sasl_mechanism": properties.sasl.mechanism,
            "sasl_plain_username": properties.sasl.username,
            "sasl_plain_password": properties.sasl.password,
        }
    return Access(
        bootstrap,
        lambda: options,
        tls,
        lambda mechanisms: _advice(properties, mechanisms),
        properties.client_id,
        properties.request_timeout_ms,
        "" if path is None else f" --command-config {path}",
    )


def by_config(bootstrap: tuple[Address, ...] | None, config: WeirConfig, path: Path) -> Access:
    """Access as the gateway itself has it: `upstream.tls` and `upstream.sasl`, its servers by default."""
    servers = bootstrap or tuple((server.host, server.port) for server in config.upstream.bootstrap_servers)
    upstream = Upstream(config.upstream, path.parent, Brokers(list(servers)), Counters())

    def advice(mechanisms: Sequence[str]) -> str:
        if not upstream.login.has_credentials:
            return _advice(ClientProperties(f"upstream.sasl of {path}"), mechanisms)
        if problem := no_own_mechanism(mechanisms):
            return problem
        return f"{upstream.login.advice(tuple(mechanisms))}; or name other credentials with --command-config"

    secured = config.upstream.tls is not None or config.upstream.sasl is not None
    arguments = f" --config {path}" if secured else ""
    remedy = f"check upstream.bootstrap_servers and upstream.tls in {path}" if bootstrap is None else _REMEDY
    return Access(servers, upstream.client_options, upstream.context, advice, arguments=arguments, remedy=remedy)


def reason_of(error: OSError) -> str:
    """The cause of a failed connection."""
    if not isinstance(error, ssl.SSLError) and error.errno is not None and error.errno > 0:
        return os.strerror(error.errno)  # asyncio's own text has no reason
    return problem_of(error, PROBE_SECONDS)


def _advice(properties: ClientProperties, mechanisms: Sequence[str]) -> str:
    sasl, source = properties.sasl, properties.source
    offered = ", ".join(mechanisms)
    if problem := no_own_mechanism(mechanisms):
        return problem
    if sasl is None:
        return (
            f"the brokers require SASL ({offered}), and {source} is not set — give --command-config a file with"
            " security.protocol, sasl.mechanism and sasl.jaas.config"
        )
    if not mechanisms:
        return f"the brokers require no SASL, and {source} has sasl.mechanism — set security.protocol to PLAINTEXT or SSL"
    if sasl.mechanism not in mechanisms:
        return f"the brokers offer {offered}, not {sasl.mechanism} — correct sasl.mechanism in {source}"
    return (
        f"the brokers refuse the user {sasl.username} with {sasl.mechanism} — correct username and password in"
        f" sasl.jaas.config of {source}"
    )


def access_of(bootstrap: str | None, command_config: Path | None, config: WeirConfig | None, path: Path | None) -> Access:
    """Access as the options of a command say. Raises MigrationError.

    `--command-config` overrides the TLS and SASL settings of the config file, `--bootstrap-server` its servers.
    """
    servers = None if bootstrap is None else addresses(bootstrap)
    if command_config is None and config is not None and path is not None:
        return by_config(servers, config, path)
    if servers is None and config is not None:
        servers = tuple((server.host, server.port) for server in config.upstream.bootstrap_servers)
    if servers is None:
        raise MigrationError("--bootstrap-server: is missing — give the address of a broker")
    return by_properties(servers, command_config)


def check_not_gateway(config: WeirConfig, found: Sequence[Address]) -> None:
    """Raises MigrationError if one of the addresses is a listener of this config: Weir would answer with its own quotas."""
    for host, port in found:
        for listener in config.listeners:
            if listener.leads_here(host, port):
                raise MigrationError(
                    f"{host}:{port} is the listener {listener.name} of this gateway, which answers with its own quotas — name a"
                    " broker's own address with --bootstrap-server"
                )
