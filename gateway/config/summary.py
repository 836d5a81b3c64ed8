"""The summary of a valid config, for `weir check`: its addresses, and the features that it switches on."""

from collections.abc import Iterator, Sequence

from gateway.alter_queue import BROKER_ACLS
from gateway.config.model import ListenerConfig, WeirConfig
from gateway.quotas.group_tree import lineage
from gateway.quotas.groups import Group
from gateway.quotas.scope import BROKER


def summary(config: WeirConfig) -> list[str]:
    """Three lines: addresses, features that are on, features that are off."""
    features = dict(_features(config))
    on = [f"{name} ({words})" if words else name for name, words in features.items() if words is not None]
    off = [name for name, words in features.items() if words is None]
    listeners = ", ".join(map(_listener, config.listeners))
    upstream = ", ".join(map(str, config.upstream.bootstrap_servers))
    return [
        f"{listeners}; upstream {upstream}{_security(config)}; admin {config.admin.host}:{config.admin.port}",
        f"on: {', '.join(on)}",
        f"off: {', '.join(off) or 'nothing'}",
    ]


def _listener(listener: ListenerConfig) -> str:
    ports = f" and {listener.broker_ports}" if listener.sni is None else f", brokers as {listener.sni}"
    return f"{listener.name} on {listener.host}:{listener.bootstrap_port}{ports}{' (TLS)' if listener.tls is not None else ''}"


def _security(config: WeirConfig) -> str:
    tls = config.upstream.tls
    layers = [] if tls is None else ["TLS" if tls.verify_hostname else "TLS, host names unchecked"]
    if config.upstream.sasl is not None:
        layers.append(config.upstream.sasl.mechanism)
    return f" ({', '.join(layers)})" if layers else ""


def _features(config: WeirConfig) -> Iterator[tuple[str, str | None]]:
    """Each feature, with words about it. None: it is off."""
    quotas, topics, volumes = config.quotas, config.quotas.topics, config.quotas.volumes
    limited = sum(bool(row.limits) for row in quotas.entities)
    exempt = sum(row.exempt or bool(row.exempt_from) for row in quotas.entities)
    scope = ", at each broker" if quotas.scope == BROKER else ""
    how = f"{quotas.algorithm}{scope}, {_enforced(quotas.enforce)}"
    yield "quotas", f"{limited} limited and {exempt} exempt; {how}" if quotas.entities else None
    yield "groups", f"{_groups(quotas.groups)}; {_enforced(quotas.enforce)}" if quotas.groups else None
    shadowed = sum(bool(row.shadow) for row in quotas.rows)
    yield "shadow limits", f"{shadowed} {'row' if shadowed == 1 else 'rows'}" if shadowed else None
    yield "topic quotas", None if topics is None else f"{topics.total} bytes/s, {_enforced(quotas.enforce)}"
    yield "volume quotas", None if volumes is None else f"source {volumes.source}, {_enforced(volumes.enforce)}"
    yield "connection limits", ", ".join(_limits(config))
    yield "quota API", _quota_admins(config)
    yield "sharing", None if config.sharing is None else f"topic {config.sharing.topic}"
    yield "workers", str(config.workers) if config.workers > 1 else None
    ledger = config.ledger
    yield "ledger", None if ledger is None else str(ledger.path) + (f" and topic {ledger.topic}" if ledger.topic else "")
    yield "notify", None if config.notify is None else f"to {', '.join(target.name for target in config.notify.targets)}"


def _groups(rows: Sequence[Group]) -> str:
    """Their number and levels, and the numbers that they have. Several rows of one name are one group."""
    parents = {row.name: row.parent for row in rows}
    lines = [lineage(row.name, {**parents, row.name: row.parent}) for row in rows]
    levels = max([len(line) for line in lines])
    limited = {row.name for row in rows if row.limits}
    counts = {
        "with a ceiling": len(limited),
        "with a guarantee": len({row.name for row in rows if row.guarantees}),
        "without a limit": len({line[0] for line in lines if limited.isdisjoint(line)}),
    }
    shown = ", ".join([f"{count} {words}" for words, count in counts.items() if count])
    return f"{len(parents)}{f' on {levels} levels' if levels > 1 else ''}: {shown}"


def _limits(config: WeirConfig) -> Iterator[str]:
    each = " in each worker" if config.workers > 1 and config.sharing is None else ""
    yield f"{config.connections.max_per_ip} per address{each}"
    if config.connections.max_connections is not None:
        yield f"{config.connections.max_connections} {each.strip() or 'in all'}"
    if config.connections.connection_creation_rate is not None:
        yield f"{config.connections.connection_creation_rate} new ones per second"
    limited = [each.name for each in config.listeners if each.max_connections or each.connection_creation_rate]
    if limited:
        yield f"listeners {', '.join(limited)}"


def _quota_admins(config: WeirConfig) -> str | None:
    if config.quota_admins == BROKER_ACLS:
        return "for users with the brokers' ACLs"
    return f"for {', '.join(config.quota_admins)}" if config.quota_admins else None


def _enforced(enforce: bool) -> str:
    return "enforced" if enforce else "only measured"
