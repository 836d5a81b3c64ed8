"""The text of a first weir.yaml for a running cluster: the settings that it needs, and examples of the others as comments."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gateway.cluster.brokers import Address
from gateway.config.endpoints import ServerAddress
from gateway.config.keys import SECTIONS
from gateway.migration.client_properties import ClientProperties
from gateway.terminal_text import printable_lines

USUAL_BROKER_PORTS = 100
"""Ports for brokers without `broker_ports`."""

EXAMPLES: Mapping[str, str] = {
    "quotas.volumes": "volumes: {soft: {type: MinFreePercentage, level: 15}, hard: {type: MinFreePercentage, level: 5}}",
    "quotas.topics": "topics: {total.bytes.in.per.sec.threshold: 104857600}",
    "connections": "connections: {max_per_ip: 1000}",
    "ledger": "ledger: {path: ./throttle-ledger}  # below the working directory",
    "quota_admins": 'quota_admins: ["User:admin"]',
    "sharing": "sharing: {}",
    "workers": "workers: 2",
}
"""One line for each optional feature, by key; the words above it come from the config model."""


@dataclass(frozen=True, slots=True)
class FoundCluster:
    """The answers of a cluster. `quotas` counts its own quotas by entity; None: this user may not read them."""

    cluster_id: str
    brokers: Mapping[int, Address]
    mechanisms: tuple[str, ...]
    quotas: int | None

    def __str__(self) -> str:
        ids = ", ".join(map(str, sorted(self.brokers)))
        return f"cluster {self.cluster_id} with {'broker' if len(self.brokers) == 1 else 'brokers'} {ids}"


@dataclass(frozen=True, slots=True)
class ChosenPorts:
    """The first port of the listener and the port of the admin server. `brokers` is the number of ports for brokers."""

    bootstrap: int
    brokers: int
    admin: int


def listener_host(advertised_host: str | None) -> str:
    """The address that the listener binds: only clients on this host can reach it without an advertised host."""
    if advertised_host is None:
        return "127.0.0.1"
    return "::" if ":" in advertised_host else "0.0.0.0"  # noqa: S104


def first_config(
    found: FoundCluster,
    bootstrap: Sequence[Address],
    properties: ClientProperties,
    ports: ChosenPorts,
    advertised_host: str | None,
    password_file: Path | None,
    name: str,
) -> str:
    """A file that `weir check` accepts. `name` is its name in comments."""
    lines = [
        f"# Weir in front of {found}. Written by `weir init`.",
        f"# Check it: weir check --config {name}",
        f"# Run it:   weir serve --config {name}",
        "# Weir reloads this file when it changes. The page Configuration of the documentation has all keys.",
        "",
        *_upstream(found, bootstrap, properties, password_file),
        "",
        *_listeners(found, properties, ports, advertised_host),
        "",
        *_quotas(found, name),
        "",
        f"# {_words('admin')} Only this host can reach it, and it has no password.",
        f"admin: {{port: {ports.admin}}}",
    ]
    for key, example in EXAMPLES.items():
        if "." not in key:
            lines += ["", f"# {_words(key)}", f"# {example}"]
    return printable_lines(lines) + "\n"  # the comments have texts of the brokers


def _words(path: str) -> str:
    """The description of a key in the config model."""
    *parent, key = path.split(".")
    return SECTIONS[tuple(parent)].model_fields[key].description or ""


def _upstream(
    found: FoundCluster, bootstrap: Sequence[Address], properties: ClientProperties, password_file: Path | None
) -> list[str]:
    servers = [*bootstrap, *(address for _, address in sorted(found.brokers.items()) if address not in bootstrap)]
    texts = [_text(str(ServerAddress(*address))) for address in servers[: max(3, len(bootstrap))]]
    lines = [f"# {_words('upstream.bootstrap_servers')}", "upstream:", f"  bootstrap_servers: [{', '.join(texts)}]"]
    if properties.tls is not None:
        tls = properties.tls
        files = {"ca": tls.ca, "cert": tls.cert, "key": tls.key}
        keys = [f"{key}: {_text(str(file.absolute()))}" for key, file in files.items() if file is not None]
        keys += [] if tls.verify_hostname else ["verify_hostname: false"]
        lines += [f"  tls: {{{', '.join(keys)}}}"]
    if properties.sasl is not None and password_file is not None:
        sasl = properties.sasl
        user = f"mechanism: {sasl.mechanism}, username: {_text(sasl.username)}"
        lines += [f"  # {_words('upstream.sasl')}", f"  sasl: {{{user}, password_file: {_text(password_file.name)}}}"]
    return lines


def _listeners(found: FoundCluster, properties: ClientProperties, ports: ChosenPorts, advertised_host: str | None) -> list[str]:
    host = listener_host(advertised_host)
    clients = ServerAddress(advertised_host or host, ports.bootstrap)
    first, last = ports.bootstrap + 1, ports.bootstrap + ports.brokers
    lines = [
        f"# Clients connect to {clients}. Each broker has one of the ports {first} to {last}.",
        "listeners:",
        "  - name: clients",
        f"    bootstrap_port: {ports.bootstrap}",
    ]
    if ports.brokers != USUAL_BROKER_PORTS:
        lines.append(f"    broker_ports: {first}-{last}")
    if advertised_host is None:
        lines += ["    # For clients on other hosts:", "    # host: 0.0.0.0", "    # advertised_host: weir.example.com"]
    else:
        lines += [f"    host: {_text(host)}", f"    advertised_host: {_text(advertised_host)}"]
    if found.mechanisms:
        lines.append(
            f"    # Clients authenticate with the brokers through Weir ({', '.join(found.mechanisms)}); nothing to set."
        )
    words = "the brokers' listener has TLS, this listener has none. For TLS" if properties.tls is not None else "for TLS"
    lines += [f"    # {words[:1].upper()}{words[1:]}:", "    # tls: {cert: listener.pem, key: listener.key}"]
    return lines


def _quotas(found: FoundCluster, name: str) -> list[str]:
    if found.quotas is None:
        own = ["# This user may not read the brokers' own quotas (DescribeConfigs on the cluster)."]
    elif found.quotas:
        entities = "1 entity" if found.quotas == 1 else f"{found.quotas} entities"
        own = [
            f"# The brokers have quotas for {entities}, and still enforce them. To move them here:",
            f"#   weir quotas import --config {name}",
        ]
    else:
        own = ["# The brokers have no quotas of their own."]
    # Without a login, all clients are one user.
    kind, name_of_one = ("user", "alice") if found.mechanisms else ("client-id", "etl")
    return [
        "# No client is limited yet.",
        *own,
        "quotas:",
        "  # entities:",
        f'  #   - {{{kind}: "<default>", producer_byte_rate: 1048576, consumer_byte_rate: 2097152}}',
        f"  #   - {{{kind}: {name_of_one}, producer_byte_rate: 10485760}}",
        "",
        f"  # {_words('quotas.enforce')}",
        "  enforce: true",
        "",
        f"  # {_words('quotas.volumes')}",
        f"  # {EXAMPLES['quotas.volumes']}",
        "",
        f"  # {_words('quotas.topics')}",
        f"  # {EXAMPLES['quotas.topics']}",
    ]


def _text(value: str) -> str:
    """YAML's double-quoted style on one line. Characters that can't be printed are escaped."""
    return '"' + "".join(_escaped(char) for char in value) + '"'


def _escaped(char: str) -> str:
    if char in '"\\':
        return f"\\{char}"
    return char if char.isprintable() else f"\\U{ord(char):08X}"
