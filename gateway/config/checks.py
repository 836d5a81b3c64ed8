"""Checks across several keys: ports that collide, repeated entities, unsupported keys.

The checks use the parts of a file that are valid by themselves, so that one bad key hides no error elsewhere.
"""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from gateway.alter_queue import BROKER_ACLS
from gateway.config.document import Document
from gateway.config.endpoints import is_wildcard, plain_host
from gateway.config.entities import entity_quota
from gateway.config.group_checks import tree_problems
from gateway.config.group_rows import MAX_RULES, group_of, rule_row
from gateway.config.keys import SECTIONS
from gateway.config.model import AdminConfig, ListenerConfig, UpstreamConfig
from gateway.config.problems import KeyPath, Problem, key_path
from gateway.config.pydantic_errors import aliases, problem, without_indexes
from gateway.config.topic_keys import OWN_TOPICS
from gateway.quotas.entity import ClientQuotaEntity, EntityQuota
from gateway.quotas.groups import Group
from gateway.quotas.rule_cover import RuleCover
from gateway.quotas.schedule import When

_AT_BROKERS = (
    "measures broker threads, which a gateway can't see",
    "remove it and set it at the broker, whose throttle times pass through",
)

UNSUPPORTED: dict[tuple[str, ...], tuple[str, str]] = {
    ("quotas", "entities", "request_percentage"): _AT_BROKERS,
    ("quotas", "groups", "request_percentage"): _AT_BROKERS,
    ("quotas", "entities", "shadow", "request_percentage"): _AT_BROKERS,
    ("quotas", "groups", "shadow", "request_percentage"): _AT_BROKERS,
    ("quotas", "entities", "shadow", "max_connections"): (
        "is a number of connections, and shadow limits are rates",
        "remove it; `weir connections` shows the open connections of each user",
    ),
}
"""Keys of Kafka that this version does not support, by path without indexes: message and remedy."""

_Listeners = list[tuple[int, ListenerConfig]]
_Model = TypeVar("_Model", bound=BaseModel)


def split_unsupported(document: Document) -> tuple[object, list[Problem]]:
    """The document's data without the keys of `UNSUPPORTED`, and a problem for each of those. Aliases get their key's name."""
    problems: list[Problem] = []

    def cut(data: object, path: KeyPath) -> object:
        section = without_indexes(path)
        if section not in SECTIONS:
            return data
        if isinstance(data, list):
            return [cut(item, (*path, index)) for index, item in enumerate(data)]
        if not isinstance(data, Mapping):
            return data
        kept = {}
        in_snake_case = aliases(section)
        for given, value in data.items():
            key: Any = in_snake_case.get(str(given), given)
            child = (*section, str(key))
            if child in UNSUPPORTED:
                problems.append(problem(document, (*path, key), *UNSUPPORTED[child]))
            elif key != given and key in data:
                problems.append(problem(document, (*path, given), f"means the same as {key}", "keep one of them", value=value))
            else:
                if key != given and (line := document.lines.get((*path, given))) is not None:
                    document.lines[(*path, key)] = line
                kept[key] = cut(value, (*path, str(key)))
        return kept

    return cut(document.data, ()), problems


def cross_check(data: object, document: Document) -> list[Problem]:
    if not isinstance(data, Mapping):
        return []
    listeners = list(_valid_items(data.get("listeners"), ListenerConfig))
    return [
        *_ports(data, listeners, document),
        *_loops(data, listeners, document),
        *_entities(data, document),
        *_groups(data, document),
        *_workers(data, document),
        *_broker_acls(data, listeners, document),
        *_topics(data, document),
        *_notify_names(data, document),
    ]


@dataclass(frozen=True, slots=True)
class _Claim:
    """A key that takes the ports from `first` to `last` of `host`."""

    path: KeyPath
    host: str
    first: int
    last: int
    value: object

    def collides(self, other: "_Claim") -> bool:
        one, two = plain_host(self.host), plain_host(other.host)
        # Weir's IPv6 sockets take no IPv4 connections, and a listener binds the IPv4 address of a name.
        same_host = one == two or ((is_wildcard(one) or is_wildcard(two)) and (":" in one) == (":" in two))
        return same_host and self.first <= other.last and other.first <= self.last


def _ports(data: Mapping[str, Any], listeners: _Listeners, document: Document) -> Iterator[Problem]:
    """Listeners and the admin server that would bind one port twice, and names given twice."""
    claims: list[_Claim] = []
    names: dict[str, int] = {}
    for index, listener in listeners:
        if listener.name in names:
            message = f"is the name of listeners[{names[listener.name]}] too"
            remedy = "give each a name of its own"
            yield problem(document, ("listeners", index, "name"), message, remedy, value=listener.name)
        names.setdefault(listener.name, index)
        ports, port, host = listener.broker_ports, listener.bootstrap_port, listener.host
        claims.append(_Claim(("listeners", index, "bootstrap_port"), host, port, port, port))
        if ports is not None:
            claims.append(_Claim(("listeners", index, "broker_ports"), host, ports.first, ports.last, str(ports)))
    admin = _valid(data.get("admin", {}), AdminConfig)
    if admin is not None:
        claims.append(_Claim(("admin", "port"), admin.host, admin.port, admin.port, admin.port))
    for position, claim in enumerate(claims):
        for other in claims[:position]:
            if claim.collides(other):
                first, last = max(claim.first, other.first), min(claim.last, other.last)
                both = f"{first}" if first == last else f"{first}-{last}"
                message = f"takes port {both}, which {key_path(other.path)} takes too"
                yield problem(document, claim.path, message, "give each a port of its own", value=claim.value)


def _loops(data: Mapping[str, Any], listeners: _Listeners, document: Document) -> Iterator[Problem]:
    """Upstream addresses that are the gateway's own."""
    upstream = data.get("upstream")
    servers = upstream.get("bootstrap_servers") if isinstance(upstream, Mapping) else None
    valid = _valid({"bootstrap_servers": servers}, UpstreamConfig)
    if valid is None:
        return
    for position, (text, server) in enumerate(zip(servers or (), valid.bootstrap_servers, strict=True)):
        for index, listener in listeners:
            if listener.leads_here(server.host, server.port):
                message = f"is listeners[{index}] of this gateway"
                path: KeyPath = ("upstream", "bootstrap_servers", position)
                yield problem(document, path, message, "name a Kafka broker", value=text)


def _rows(data: Mapping[str, Any], key: str) -> list[Any]:
    """A list of `quotas` in the file. Empty if there is no such list: the section's own validation reports it."""
    quotas = data.get("quotas")
    rows = quotas.get(key) if isinstance(quotas, Mapping) else None
    return rows if isinstance(rows, list) else []


def _entities(data: Mapping[str, Any], document: Document) -> Iterator[Problem]:
    seen: dict[tuple[ClientQuotaEntity, When | None], tuple[int, EntityQuota]] = {}
    for index, row in enumerate(_rows(data, "entities")):
        try:
            quota: EntityQuota = entity_quota(row)
        except ValueError:  # the row's own validation reports it
            continue
        first, other = seen.setdefault((quota.entity, quota.when), (index, quota))
        if first != index:
            message = f"is the same entity as quotas.entities[{first}]: {quota}"
            if quota.when is not None:
                message += f", and counts at the same time: {quota.when}"
            remedy = "merge the two rows, or give one of them until or another schedule"
            if (quota.exempt and other.limits) or (other.exempt and quota.limits):  # the merged row would be refused
                remedy = "remove one of the two rows, or give the exempt one until or another schedule, to override the other"
            yield problem(document, ("quotas", "entities", index), message, remedy, value=row)


def _groups(data: Mapping[str, Any], document: Document) -> Iterator[Problem]:
    """Two groups with one name at a time, and rules that can never decide.

    A group with several rows, or with a time, hides no rule of another group for ever.
    """
    rows = _rows(data, "groups")
    groups: dict[int, Group] = {}
    for index, row in enumerate(rows):
        with suppress(ValueError):  # the row's own validation reports it
            groups[index] = group_of(row)
    timed = {group.name for group in groups.values() if group.when is not None}
    names: dict[tuple[str, When | None], int] = {}
    before: list[tuple[KeyPath, RuleCover]] = []
    count = 0
    for index, group in groups.items():
        path: KeyPath = ("quotas", "groups", index)
        first = names.setdefault((group.name, group.when), index)
        if first != index:
            message = f"is the name of quotas.groups[{first}] too"
            remedy = "give each group a name of its own, or give one of the rows until or another schedule"
            yield problem(document, (*path, "name"), message, remedy, value=group.name)
        for number, rule in enumerate(group.rules):
            here: KeyPath = (*path, "match", number)
            count += 1
            if count > MAX_RULES:
                yield problem(document, here, f"is beyond the {MAX_RULES} rules that all groups may have", "use wider patterns")
                return
            compared = RuleCover(rule)
            cover = next((other for other, earlier in before if earlier.covers(compared)), None)
            if group.name not in timed:
                before.append((here, compared))
            if cover is not None:
                message = f"can never match, because {key_path(cover)} stands before it and takes all of these clients"
                remedy = "move the narrower rule up, or remove it"
                yield problem(document, here, message, remedy, value=rule_row(rule))
    yield from tree_problems(groups, [row for row in rows if isinstance(row, Mapping)], document)


def _workers(data: Mapping[str, Any], document: Document) -> Iterator[Problem]:
    """Several workers without sharing: their quotas of the API would differ, and they would write one state file."""
    workers = data.get("workers", 1)
    if isinstance(workers, int) and workers > 1 and data.get("quota_admins") and data.get("sharing", {}) is None:
        message = "lets clients set quotas through Weir, and several workers share such quotas only through a topic"
        remedy = "write 'sharing: {}', which creates the topic, or remove quota_admins, or set workers to 1"
        yield problem(document, ("quota_admins",), message, remedy)


def _broker_acls(data: Mapping[str, Any], listeners: _Listeners, document: Document) -> Iterator[Problem]:
    """Clients that the brokers know by another name than Weir: their certificates end at Weir.

    If Weir itself logs in by SASL, the brokers' listener demands SASL of clients as well. SASL's user overrides TLS's.
    """
    upstream = _valid(data.get("upstream"), UpstreamConfig)
    if data.get("quota_admins") != BROKER_ACLS or upstream is None or upstream.sasl is not None:
        return
    remedy = 'list principals, such as ["User:admin"]; if clients use SASL, set upstream.sasl'
    if upstream.tls is not None and upstream.tls.cert is not None:
        message = (
            "lets brokers judge clients by upstream.tls.cert, Weir's own certificate: all clients would have Weir's rights"
        )
        yield problem(document, ("quota_admins",), message, remedy, value=BROKER_ACLS)
    for index, listener in listeners:
        if listener.tls is not None and listener.tls.client_auth != "none":
            message = (
                f"lets brokers judge clients, and the certificates of listeners[{index}].tls.client_ca never reach a broker"
            )
            yield problem(document, ("quota_admins",), message, remedy, value=BROKER_ACLS)


def _topics(data: Mapping[str, Any], document: Document) -> Iterator[Problem]:
    """Two features with one topic: neither can read the records of the other."""
    seen: dict[str, KeyPath] = {}
    for *path, key in OWN_TOPICS:
        raw: Any = data
        for part in path:
            raw = raw.get(part) if isinstance(raw, Mapping) else None
        section = None if raw is None else _valid(raw, SECTIONS[tuple(path)])
        name = getattr(section, key, None)
        if name is None:
            continue
        first = seen.setdefault(name, tuple(path))
        if first != tuple(path):
            message = f"is a topic that {key_path(first)} uses as well"
            yield problem(document, (*path, key), message, "give each a topic of its own", value=name)


def _notify_names(data: Mapping[str, Any], document: Document) -> Iterator[Problem]:
    """Targets of notifications with one name: logs and metrics could not tell them apart."""
    notify = data.get("notify")
    targets = notify.get("targets") if isinstance(notify, Mapping) else None
    names: dict[str, int] = {}
    for index, target in enumerate(targets if isinstance(targets, list) else ()):
        name = target.get("name") if isinstance(target, Mapping) else None
        if isinstance(name, str) and names.setdefault(name, index) != index:
            message = f"is the name of notify.targets[{names[name]}] too"
            yield problem(document, ("notify", "targets", index, "name"), message, "give each a name of its own", value=name)


def _valid(raw: object, model: type[_Model]) -> _Model | None:
    try:
        return model.model_validate(raw)
    except ValidationError:
        return None


def _valid_items(raw: object, model: type[_Model]) -> Iterator[tuple[int, _Model]]:
    for index, item in enumerate(raw if isinstance(raw, list) else ()):
        valid = _valid(item, model)
        if valid is not None:
            yield index, valid
