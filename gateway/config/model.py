"""The sections of the config file. They are validated and frozen, so no later code checks them again."""

from collections.abc import Iterator
from datetime import datetime
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import (
    ConfigDict,
    Field,
    model_validator,
)

from gateway.alter_queue import BROKER_ACLS
from gateway.config.endpoints import (
    AdvertisedHost,
    AllowedHost,
    Host,
    Port,
    Ports,
    Server,
    answers_to,
    is_host,
    is_loopback,
    is_wildcard,
    plain_host,
    plain_name,
)
from gateway.config.entities import EntityRows, exemption_warnings, name_warnings
from gateway.config.group_rows import GroupRows, group_warnings
from gateway.config.proxy_protocol import ProxyProtocolConfig
from gateway.config.sasl import SENT_AS_IT_IS, ListenerSaslConfig, UpstreamSaslConfig
from gateway.config.section import Section, WindowConfig, described, filled_in, invalid
from gateway.config.shadow_rows import shadow_warnings
from gateway.config.tls import ListenerTlsConfig, Sni, UpstreamTlsConfig, is_dns_name
from gateway.config.unreached_rows import unreached_warnings
from gateway.features.connection_quotas.config import AcceptSection, ConnectionsConfig
from gateway.features.controller_mutations.config import MutationsConfig
from gateway.features.ledger.config import LedgerConfig
from gateway.features.notify.config import NotifyConfig
from gateway.features.quota_api.config import NAMELESS, QuotaAdminsKey, StateConfig
from gateway.features.sharing.config import SharingConfig
from gateway.features.topic_quotas.config import TopicsConfig
from gateway.features.volume_quotas.config import VolumesConfig
from gateway.quotas.entity import RATES, TOPICS, VOLUMES, EntityQuota
from gateway.quotas.kinds import small_quota_warning
from gateway.quotas.schedule import lasting, rows_at
from gateway.whole_number import MAX_PORT

_MAX_WORKERS = 256


class UpstreamConfig(Section):
    """`upstream`: the Kafka cluster that the gateway stands in front of."""

    bootstrap_servers: Annotated[tuple[Server, ...], Field(strict=False, min_length=1)] = described(
        "Addresses of some brokers, as `host:port`. Weir finds the other brokers by itself."
    )
    tls: UpstreamTlsConfig | None = described(
        "TLS towards brokers; `{}` for its defaults.", None, absent="connections to brokers without TLS"
    )
    sasl: UpstreamSaslConfig | None = described(
        "Login of Weir's own connections. Clients' connections keep their own credentials.", None, absent="no login"
    )


class ListenerConfig(AcceptSection):
    """One of `listeners`: the addresses that clients connect to.

    Each broker has one of `broker_ports`. With `sni`, all brokers are behind `bootstrap_port`, selected by name, and
    `broker_ports` is None.
    """

    model_config = ConfigDict(json_schema_extra=filled_in("host", "advertised_host", "broker_ports"))

    name: Annotated[str, Field(min_length=1)] = described(
        "Name of the listener in metrics and logs; several listeners need different names.", "clients"
    )
    host: Host = described("Address that Weir binds.", absent="`127.0.0.1`")
    advertised_host: AdvertisedHost = described(
        "Name or address that clients get for all brokers (Kafka: `advertised.listeners`).", absent="the same as `host`"
    )
    bootstrap_port: Port = described("Port in the clients' `bootstrap.servers`.")
    broker_ports: Ports | None = described(
        "First and last port of single brokers. Broker N gets the first port plus N, or else the next free port.",
        absent="the 100 ports after `bootstrap_port`; none with `sni`",
    )
    tls: ListenerTlsConfig | None = described("TLS of this listener.", None, absent="clients connect without TLS")
    sni: Sni | None = described(
        "Name of each broker, with `{id}` for its id, such as `broker-{id}.example.com`. All brokers then share one port.",
        None,
    )
    sasl: ListenerSaslConfig = described("Authentication of clients.", ListenerSaslConfig())
    proxy_protocol: ProxyProtocolConfig = described("Addresses of clients behind a balancer.", ProxyProtocolConfig())

    @model_validator(mode="before")
    @classmethod
    def _defaults(cls, data: object) -> object:
        """The defaults that depend on other keys. The validators of those keys report their errors."""
        if not isinstance(data, dict):
            return data
        filled: dict[Any, Any] = {"host": "127.0.0.1", **data}
        host, port = filled["host"], filled.get("bootstrap_port")
        filled.setdefault("advertised_host", host if is_host(host) else "127.0.0.1")
        if data.get("sni") is not None:
            filled.setdefault("broker_ports", None)
        elif isinstance(port, int) and 0 < port <= MAX_PORT:
            filled.setdefault("broker_ports", f"{port + 1}-{port + 100}")
        else:
            filled.setdefault("broker_ports", "1-1")
        return filled

    @model_validator(mode="after")
    def _one_way_to_brokers(self) -> "ListenerConfig":
        if self.sni is None:
            if self.broker_ports is None:
                raise invalid("has no broker_ports", 'write the first and the last port, such as "29093-29192"')
            return self
        if self.tls is None:
            raise invalid("has sni without tls, and only TLS has the server name", "add tls, or remove sni")
        if self.broker_ports is not None:
            raise invalid("has both sni and broker_ports, two ways to select a broker", "remove one of them")
        if not is_dns_name(self.advertised_host):
            raise invalid(
                f"has sni, and clients can't send the advertised_host {self.advertised_host} as a server name",
                "set advertised_host to the name that clients put into bootstrap.servers, such as kafka.example.com",
            )
        return self

    def leads_here(self, host: str, port: int) -> bool:
        """True if clients of the address reach this listener.

        A wildcard listener takes connections to the machine's loopback address. localhost has an address of each family.
        """
        name, own = plain_host(host), plain_host(self.host)
        if self.sni is not None and port == (self.sni.port or self.bootstrap_port) and self.sni.node_id(name) is not None:
            return True
        if port != self.bootstrap_port and (self.broker_ports is None or port not in self.broker_ports.ports):
            return False
        same_family = (":" in own) == (":" in name) or plain_name(host) == "localhost"
        return name in {own, plain_host(self.advertised_host)} or (is_wildcard(own) and is_loopback(name) and same_family)


class QuotasConfig(Section):
    """`quotas`: the limits of clients, topics and volumes, and the algorithms that measure use."""

    enforce: bool = described(
        "`false`: Weir measures use and reports throttles, but no rate delays a client. docs/explanation/quotas.md has all"
        " limits that it turns off.",
        True,
    )
    algorithm: Literal["token_bucket", "window"] = described(
        "Algorithm of byte rates: a token bucket, which flows evenly, or Kafka's sampled window (KIP-13).", "token_bucket"
    )
    window: WindowConfig = described("Window over which use counts; it sets the burst too.", WindowConfig())
    scope: Literal["cluster", "broker"] = described(
        "Reach of each limit: the whole cluster, or each broker by itself, so that a broker's figures can be copied.", "cluster"
    )
    mutations: MutationsConfig = described("Algorithm of controller mutations.", MutationsConfig())
    entities: EntityRows = described(
        "Quotas by entity, with Kafka's entities, keys and precedence. Of several rows of an entity, all but one have `until`"
        " or `schedule`.",
        (),
    )
    groups: GroupRows = described(
        "Groups of clients, with a ceiling for all members together, or with a part of a capacity that groups share. Of several"
        " rows of a group, all but one have `until` or `schedule`.",
        (),
    )
    max_entities: Annotated[int, Field(ge=1, le=1_000_000)] = described(
        "Entities with a bucket of their own, for each kind of quota. Further entities of a user, or of the address of"
        " anonymous clients, share one bucket per quota level until there is room. One user or address has at most three"
        " quarters of the places. The client-ids of one connection, except for its first, take only the first half of the"
        " places. With `scope: broker`, an entity counts once for each broker.",
        10_000,
        unit="entities",
    )
    topics: TopicsConfig | None = described("Quotas of topics.", None, absent="topics have no quotas")
    volumes: VolumesConfig | None = described(
        "Protection of the brokers' disks; `{}` for its defaults.", None, absent="volumes are not watched"
    )

    @property
    def rows(self) -> tuple[EntityQuota, ...]:
        """The quotas of all entities, groups included."""
        return (*self.entities, *(group.quota for group in self.groups))

    def at(self, moment: datetime) -> "tuple[QuotasConfig, datetime | None]":
        """The section with only the rows that count at a moment (UTC), and the moment of the next change. None: never."""
        entities, entities_change = rows_at(self.entities, moment)
        groups, groups_change = rows_at(self.groups, moment)
        changes = [change for change in (entities_change, groups_change) if change is not None]
        return self.model_copy(update={"entities": entities, "groups": groups}), min(changes, default=None)

    def lasting(self) -> "QuotasConfig":
        """The section without the rows that count for a time."""
        return self.model_copy(update={"entities": lasting(self.entities), "groups": lasting(self.groups)})

    @property
    def row_lists(self) -> tuple[tuple[str, tuple[EntityQuota, ...]], ...]:
        """The rows by the path of their list, those of groups as quotas."""
        return ("quotas.entities", self.entities), ("quotas.groups", tuple(group.quota for group in self.groups))

    def changed_meanings(self) -> list[str]:
        """Warnings for keys that used to do more: `exempt` and `enforce` also held for topic and volume quotas once."""
        found = []
        guards = [key for key in (TOPICS, VOLUMES) if getattr(self, key) is not None]
        for index, quota in enumerate(self.entities):
            if guards and quota.exempt and not quota.exempt_from and quota.entity.ip is None:
                found.append(
                    f"quotas.entities[{index}].exempt: true exempts {quota} from rates alone, where it used to include"
                    f" quotas.{' and quotas.'.join(guards)} — write [{', '.join([RATES, *guards])}], or [{RATES}]"
                )
        if not self.enforce and self.volumes is not None and "enforce" not in self.volumes.model_fields_set:
            found.append(
                "quotas.volumes.enforce: is true by default, so full disks stop producers although quotas.enforce is false"
                " — write true or false here"
            )
        return found


class AdminConfig(Section):
    """`admin`: the address of metrics, probes, the live page and the admin API."""

    host: Host = described("Address that the admin server binds. It has no password.", "127.0.0.1")
    port: Port = described("Port of the admin server.", 9644)
    allowed_hosts: Annotated[tuple[AllowedHost, ...], Field(strict=False)] = described(
        "Names that requests may use, beside IP addresses, localhost and the host's own names. A name that begins with a dot"
        " stands for itself and all names below it.",
        (),
        changes="reload",
    )


class WeirConfig(Section):
    """A whole config file that has been validated."""

    upstream: UpstreamConfig = described("The Kafka cluster behind Weir.", changes="restart")
    listeners: Annotated[tuple[ListenerConfig, ...], Field(strict=False, min_length=1)] = described(
        "The addresses that clients connect to.", changes="restart"
    )
    quotas: QuotasConfig = described("Limits of clients, topics and volumes.", QuotasConfig())
    connections: ConnectionsConfig = described("Bounds on client connections.", ConnectionsConfig())
    admin: AdminConfig = described("Metrics, probes, the live page and the admin API.", AdminConfig(), changes="restart")
    ledger: LedgerConfig | None = described("Throttle events and use, for the reports.", None, absent="no ledger")
    notify: NotifyConfig | None = described(
        "Webhooks that report entities near or over their quotas.", None, absent="episodes are only logged"
    )
    workers: Annotated[int, Field(ge=1, le=_MAX_WORKERS)] = described(
        "Processes that share the listeners' ports: one for each processor that Weir may use.",
        1,
        unit="processes",
        changes="restart",
    )
    quota_admins: QuotaAdminsKey = described(
        "Clients that may read and change quotas with `kafka-configs.sh` through Weir: principals, such as `User:admin`."
        " `broker_acls`: those with DescribeConfigs and AlterConfigs on Cluster at the brokers.",
        (),
    )
    state: StateConfig = described("Files that Weir keeps over restarts.", StateConfig(), changes="restart")
    sharing: SharingConfig | None = described(
        "One quota over several gateways; `{}` for its defaults.",
        None,
        absent="each gateway grants the whole quotas; with several `workers`, the defaults below",
    )

    @model_validator(mode="before")
    @classmethod
    def _workers_share(cls, data: object) -> object:
        # More processes do not mean larger quotas.
        if isinstance(data, dict) and isinstance(workers := data.get("workers"), int) and workers > 1:
            return {"sharing": {}, **data}
        return data

    def warnings(self) -> list[str]:
        """One line for each valid key that is probably a mistake."""
        found: list[str] = []
        rows = [(f"{key}[{index}]", quota) for key, some in self.quotas.row_lists for index, quota in enumerate(some)]
        for place, quota in rows:
            for key, limit in quota.limits.items():
                warning = small_quota_warning(key, limit, str(quota))
                if warning is not None:
                    found.append(f"{place}.{key}: {warning}")
            found += shadow_warnings(place, quota)
        found += exemption_warnings(self.quotas.entities)
        found += name_warnings(self.quotas.entities)
        found += unreached_warnings(self.quotas.entities)
        found += group_warnings(self.quotas.groups)
        if self.notify is not None:
            found += self.notify.warnings({group.name for group in self.quotas.groups})
            found += self._dead_links(self.notify.page_url)
        found += self.quotas.changed_meanings()
        if not self.quotas.entities and not self.quotas.groups:
            found.append("quotas.entities: is empty, so no client is limited — add entities")
        elif not self.quotas.enforce:
            found.append("quotas.enforce: is false, so Weir measures and delays no client — set it to true when the trial ends")
        for place, key, section, effect in self._sections_that_may_be_off():
            if key in section.model_fields_set and getattr(section, key) is None:
                found.append(f"{place}{key}: is empty, {effect}")
        found += [line for index, listener in enumerate(self.listeners) for line in listener.proxy_protocol.warnings(index)]
        if self.sharing is None and self.workers > 1:
            found.append(
                f"sharing: is empty, so each of the {self.workers} workers gives every client its whole quota"
                " — write {} for its defaults, or remove it"
            )
        elif self.sharing is None and "sharing" in self.model_fields_set:
            found.append("sharing: is empty, so no other gateway shares these quotas — write {} for its defaults, or remove it")
        if self.upstream.tls is not None and not self.upstream.tls.verify_hostname:
            found.append(
                "upstream.tls.verify_hostname: is false, so each certificate by the same authorities passes for a broker's"
                " — put the brokers' names into theirs, and remove the key"
            )
        found += self._anonymous_admins()
        found += self._readable_secrets()
        if not is_loopback(self.admin.host):
            found.append(
                f"admin.host: {self.admin.host} is reachable from other machines, and the admin server has no "
                "password — use a firewall or NetworkPolicy, or bind 127.0.0.1 outside Kubernetes"
            )
        return found

    def _dead_links(self, page_url: str | None) -> Iterator[str]:
        """Reasons why readers of notifications can't open their links. Another port than Weir's own is that of a proxy."""
        parts = urlsplit(page_url or "")
        name, admin = plain_name(parts.hostname or "localhost"), self.admin
        if is_loopback(name):
            return
        if is_loopback(admin.host) and parts.port == admin.port:
            yield (
                f"notify.page_url: leads to admin.port, and other machines can't reach {admin.host} — put a proxy in front, or"
                " write `admin: {host: 0.0.0.0}` behind a firewall"
            )
        if not answers_to(name, admin.host, admin.allowed_hosts):
            yield (
                f"notify.page_url: {name} is not in admin.allowed_hosts, so the admin server refuses the link, unless its"
                " machine has this name — add it there"
            )

    def _anonymous_admins(self) -> Iterator[str]:
        """Administrators without a name, where clients log in. Without logins, every client is ANONYMOUS on purpose."""
        sasl = [listener.sasl for listener in self.listeners]
        logins = self.upstream.sasl is not None or any(each.required for each in sasl)
        if logins and NAMELESS in self.quota_admins and not all(each.names_everyone for each in sasl):
            yield (
                f"quota_admins: {NAMELESS} stands for all clients with a hidden name, so every Kerberos user may change quotas"
                f" — write {BROKER_ACLS}, which asks the brokers"
            )

    def _readable_secrets(self) -> Iterator[str]:
        """Logins without TLS, of Weir and of clients. The brokers' mechanism is known by Weir's own login alone."""
        sasl = self.upstream.sasl
        if sasl is None or sasl.mechanism not in SENT_AS_IT_IS:
            return
        if self.upstream.tls is None:
            yield (
                f"upstream.sasl.mechanism: {sasl.mechanism} sends the secret in plain text, and without upstream.tls the"
                " network can read it — add upstream.tls, or use SCRAM-SHA-512"
            )
        for index, listener in enumerate(self.listeners):
            if listener.tls is None and not is_loopback(listener.host):
                yield (
                    f"listeners[{index}].tls: is missing, and the network can read the secrets of clients with"
                    f" {sasl.mechanism}, Weir's own mechanism — add tls, or let clients use SCRAM-SHA-512"
                )

    def _sections_that_may_be_off(self) -> Iterator[tuple[str, str, Section, str]]:
        """(path of the parent, key, the parent, effect and remedy of an empty section)"""
        yield "quotas.", "volumes", self.quotas, "volumes are not watched — write {} for its defaults, or remove it"
        yield "quotas.", "topics", self.quotas, "topics are not limited — fill it in, or remove it"
        yield "", "ledger", self, "no ledger is written — give it a path, or remove it"
        yield "", "notify", self, "Weir sends no notifications — give it targets, or remove it"
        yield (
            "upstream.",
            "tls",
            self.upstream,
            "Weir connects to brokers without TLS — write {} for its defaults, or remove it",
        )
        yield "upstream.", "sasl", self.upstream, "Weir does not authenticate — fill it in, or remove it"
        for index, listener in enumerate(self.listeners):
            yield f"listeners[{index}].", "tls", listener, "clients connect without TLS — fill it in, or remove it"
