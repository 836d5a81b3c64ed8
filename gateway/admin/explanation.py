"""The quotas that concern one client: the value that applies for each kind, the overruled values, and the other limits."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from gateway.admin.json_text import JsonObject
from gateway.config.model import WeirConfig
from gateway.config.places import Places
from gateway.config.problems import KeyPath
from gateway.quotas.candidates import Candidate, CandidateTable
from gateway.quotas.entity import ANONYMOUS, MAX_CONNECTIONS, TOPICS, VOLUMES, DynamicQuotas, Resolution, Source
from gateway.quotas.group_tree import KindTree, lineage
from gateway.quotas.groups import ANY_LAG, Group, GroupRule, GroupTable
from gateway.quotas.kinds import BY_CONFIG_KEY, KINDS
from gateway.quotas.kinds.kind import QuotaKind
from gateway.quotas.quota_table import QuotaTable
from gateway.quotas.scope import BROKER, is_separate
from gateway.quotas.shadows import ShadowTable
from gateway.quotas.snapshot import wait_text

_FILE: Final = Source.FILE.value

_PRODUCE, _REQUESTS = BY_CONFIG_KEY["producer_byte_rate"], BY_CONFIG_KEY["request_rate"]
_FETCH = BY_CONFIG_KEY["consumer_byte_rate"]

_NO_RECENT_USE: Final = (
    "This gateway has seen no recent use by this client. It sends nothing through this gateway, or its name is another one:"
    " `weir quotas` lists the names."
)
_HIDDEN_NAMES: Final = (
    "Only clients whose mechanism hides the name, such as GSSAPI (Kerberos), have this user. Give that of others with --user."
)
_OF_BROKERS: Final = "The brokers may throttle the client as well, by quotas of their own: weir quotas import shows these."

_BUCKET: Final = ("user", "client_id", "ip", "group")


class ClientNames(NamedTuple):
    """A client by Kafka's names. `ip` "" if its address is not known. `claims` of its bearer token are such as `groups=etl`.

    `catch_up`: it reads far behind the end of the log.
    """

    user: str = ANONYMOUS
    client_id: str = ""
    ip: str = ""
    claims: tuple[str, ...] = ()
    catch_up: bool = False


class Explanations:
    """The quotas of one moment, to explain any number of clients. With thousands of entities, they take long to prepare."""

    def __init__(self, places: Places, dynamic: DynamicQuotas) -> None:
        self._places = places
        self._table = CandidateTable(places.quotas.rows, dynamic)
        self._shadows = ShadowTable(places.quotas.rows, dynamic)
        self._groups = GroupTable(places.quotas.groups)

    def of(self, client: ClientNames) -> dict[str, Any]:
        """The answer as JSON values, without the current use."""
        places, table = self._places, self._table
        config = places.config
        claims = frozenset([(name, text) for name, _, text in (claim.partition("=") for claim in client.claims)])
        behind = ANY_LAG if client.catch_up else 0
        match = self._groups.match(client.user, client.client_id, client.ip, claims, behind)
        groups = places.quotas.groups
        path = [] if match is None else lineage(match[0].name, {group.name: group.parent for group in groups})
        quotas = []
        for kind in KINDS.values():
            if "ip" not in kind.entity_types:
                own = table.of_client(kind.config_key, client.user, client.client_id)
                if kind.api is None or any(each.limit is not None for each in own[1]):
                    quotas.append(_quota(kind, *own, places))
                if match is not None and not own[0].exempt:
                    of_groups = [table.of_group(kind.config_key, name) for name in path]
                    quotas += [_quota(kind, *of_group, places) for of_group in of_groups if of_group[0].limit is not None]
                continue
            of_names = [table.of_user(kind.config_key, client.user)] if "user" in kind.entity_types else []
            of_names += [table.of_address(kind.config_key, client.ip)] if client.ip else []
            counting = [each for each in of_names if each[0].exempt or each[0].limit is not None]
            # Two rows without a limit would look the same.
            quotas += [_quota(kind, *each, places) for each in counting or of_names[:1]]
        return {
            "client": client._asdict(),
            "running": False,
            "enforce": config.quotas.enforce,
            "notes": _notes(client, config, places.quotas.groups),
            "group": match
            and {**_group(*match, places), "path": path[::-1], "shares": _shares(match[0], groups, table.quotas)},
            "quotas": quotas,
            "shadows": [_shadow(*each, places) for each in _shadows_of(client, path, self._shadows)],
            "connections": _connections(client, config, places, table),
            "topics": _topics(client, config, places, table),
            "volumes": _volumes(client, config, places, table),
            "binds": _binds(quotas, path[:-1]),
        }


def with_use(answer: Mapping[str, Any], rows: Sequence[JsonObject]) -> dict[str, Any]:
    """The answer with the current use of the client's buckets. A bucket without recent use has no row.

    With `scope: broker`, a quota is there once for each broker that has a bucket; only the first one has candidates.
    """
    real, shadows = ([row for row in rows if row["shadow"] is shadow] for shadow in (False, True))
    quotas = _with_rows(answer["quotas"], real)
    return {
        **answer,
        "running": True,
        "quotas": quotas,
        "shadows": _with_rows(answer["shadows"], shadows),
        "binds": [*_unknown(quotas), *_binds(quotas, (answer["group"] or {"path": ()})["path"][1:])],
    }


def _with_rows(quotas: Iterable[JsonObject], rows: Iterable[JsonObject]) -> list[dict[str, Any]]:
    by_bucket: dict[tuple[str, ...], list[JsonObject]] = {}
    for row in sorted(rows, key=lambda row: str(row["broker"])):
        by_bucket.setdefault((row["kind"], *(row[part] for part in _BUCKET)), []).append(row)
    used: list[dict[str, Any]] = []
    for quota in quotas:
        found = by_bucket.get((quota["kind"], *(quota["bucket"][part] for part in _BUCKET)))
        first, others = (None, []) if found is None else (found[0], found[1:])
        used += [{**quota, "use": first}, *({**quota, "use": row, "candidates": []} for row in others)]
    return used


def _notes(client: ClientNames, config: WeirConfig, groups: Sequence[Group]) -> list[str]:
    notes = []
    if client.user == ANONYMOUS and all(listener.sasl.required for listener in config.listeners):
        if all(listener.sasl.names_everyone for listener in config.listeners):
            return ["Every listener requires a login with a name, so no client has this user. Give the user with --user."]
        notes.append(_HIDDEN_NAMES)
    rules = [rule for group in groups for rule in group.rules]
    if not client.claims and (names := sorted({name for rule in rules for name, _ in rule.claims})):
        notes.append(f"Groups have rules for claims of the token ({', '.join(names)}). Give them with --claim NAME=VALUE.")
    if not client.ip and any(rule.network is not None for rule in rules):
        notes.append("Groups have rules for addresses. Give the client's address with --ip.")
    if not client.catch_up and any(rule.max_lag is not None for rule in rules):
        notes.append("Groups have rules for consumers that catch up. For such a consumer, give --catch-up.")
    return notes


def _group(group: Group, rule: GroupRule, places: Places) -> dict[str, str]:
    return {"name": group.name, "rule": str(rule), "set_in": places.of_entity(str(group.quota), _FILE)}


def _shares(group: Group, groups: Sequence[Group], table: QuotaTable) -> list[dict[str, Any]]:
    """The group's part of each capacity that it shares, if every group wants everything."""
    found = []
    for kind in KINDS.values():
        tree = KindTree(kind.config_key, groups, table) if kind.config_key in table.keys else None
        if tree is not None and tree.parents.get(group.name) is not None:
            position = tree.positions[group.name]
            found.append(
                {
                    "kind": kind.name,
                    "key": kind.config_key,
                    "unit": kind.limit_unit,
                    "weight": tree.shares[position].weight,
                    "guarantee": tree.shares[position].guarantee,
                    "ceiling": tree.limits[group.name],
                    "entitlement": tree.entitlements[position],
                }
            )
    return found


def _quota(kind: QuotaKind, resolution: Resolution, candidates: Sequence[Candidate], places: Places) -> dict[str, Any]:
    applying = next((each for each in candidates if each.applies), None)
    return _resolved(kind, resolution, places) | {
        "exempt": resolution.exempt,
        "entity": "" if applying is None else str(applying.entity),
        "set_in": "" if applying is None else _place(applying, places),
        "candidates": [
            {
                "entity": str(each.entity),
                "limit": each.limit,
                "set_in": _place(each, places),
                "applies": each.applies,
                "reason": each.reason,
            }
            for each in candidates
        ],
    }


def _shadows_of(client: ClientNames, groups: Sequence[str], table: ShadowTable) -> Iterator[tuple[QuotaKind, Resolution]]:
    """The shadow limits of a client, of its address, and of `groups`: its own and those above."""
    for kind in KINDS.values():
        key = kind.config_key
        if "ip" in kind.entity_types:
            found = [table.resolve_user(key, client.user), *([table.resolve_ip(key, client.ip)] if client.ip else [])]
        else:
            found = [table.resolve(key, client.user, client.client_id)]
            found += [] if found[0].exempt else [table.resolve_group(key, group) for group in groups]
        yield from ((kind, each) for each in found if each.limit is not None)


def _shadow(kind: QuotaKind, resolution: Resolution, places: Places) -> dict[str, Any]:
    return _resolved(kind, resolution, places) | {
        "entity": str(resolution.entity),
        "set_in": places.of_entity(str(resolution.entity), _FILE),
        "candidates": [],
    }


def _resolved(kind: QuotaKind, resolution: Resolution, places: Places) -> dict[str, Any]:
    return {
        "kind": kind.name,
        "key": kind.config_key,
        "unit": kind.limit_unit,
        "limit": resolution.limit,
        "bucket": _bucket(resolution),
        "at_each_broker": is_separate(resolution.tags, kind.name, by_broker=places.config.quotas.scope == BROKER),
        "use": None,
    }


def _bucket(resolution: Resolution) -> dict[str, str]:
    user, client_id = resolution.tags.shown
    return {
        "user": user,
        "client_id": client_id,
        "ip": resolution.tags.ip or "",
        "group": resolution.tags.group or "",
    }


def _place(candidate: Candidate, places: Places) -> str:
    return places.of_entity(str(candidate.entity), candidate.source.value)


def _connections(client: ClientNames, config: WeirConfig, places: Places, table: CandidateTable) -> list[dict[str, Any]]:
    """The maximum of the user's connections, and the limits on connections that stand outside of `quotas`."""
    section = config.connections
    found: list[dict[str, Any]] = []
    of_user, candidates = table.of_user(MAX_CONNECTIONS, client.user)
    if of_user.limit is not None:
        row = next(each for each in candidates if each.applies)
        found.append({"scope": str(row.entity), "key": MAX_CONNECTIONS, "limit": int(of_user.limit), "unit": "connections",
                      "set_in": _place(row, places)})  # fmt: skip

    def add(scope: str, path: KeyPath, value: int | None, *, given: bool, unit: str = "connections") -> None:
        if value is not None:
            found.append({"scope": scope, "key": path[-1], "limit": value, "unit": unit,
                          "set_in": places.of_key(path, given=given)})  # fmt: skip

    override = section.max_per_ip_overrides.get(client.ip)
    given = "max_per_ip" in section.model_fields_set
    if override is not None:
        add(f"address {client.ip}", ("connections", "max_per_ip_overrides", client.ip), override, given=True)
    else:
        add(f"address {client.ip}" if client.ip else "each address", ("connections", "max_per_ip"), section.max_per_ip,
            given=given)  # fmt: skip
    add("all listeners", ("connections", "max_connections"), section.max_connections, given=True)
    add("all listeners", ("connections", "connection_creation_rate"), section.connection_creation_rate, given=True,
        unit="connections/s")  # fmt: skip
    for index, listener in enumerate(config.listeners):
        scope = f"listener {listener.name}"
        add(scope, ("listeners", index, "max_connections"), listener.max_connections, given=True)
        add(scope, ("listeners", index, "connection_creation_rate"), listener.connection_creation_rate, given=True,
            unit="connections/s")  # fmt: skip
    return found


def _exempt_by(name: str, client: ClientNames, places: Places, table: CandidateTable) -> str | None:
    """The row that exempts the client from these quotas, and its line."""
    row = table.exempting(name, client.user, client.client_id)
    return None if row is None else f"{row.entity} ({places.of_entity(str(row.entity.shortened()), _FILE)})"


def _topics(client: ClientNames, config: WeirConfig, places: Places, table: CandidateTable) -> dict[str, Any] | None:
    topics = config.quotas.topics
    if topics is None:
        return None
    return {
        "exempt_by": _exempt_by(TOPICS, client, places, table),
        "enforce": config.quotas.enforce,
        "total": topics.total,
        "at_each_broker": config.quotas.scope == BROKER,
        "explicit": dict(topics.explicit),
        "unit": "bytes/s",
        "set_in": places.of_key(("quotas", "topics"), given=True),
    }


def _volumes(client: ClientNames, config: WeirConfig, places: Places, table: CandidateTable) -> dict[str, Any] | None:
    volumes = config.quotas.volumes
    if volumes is None:
        return None
    return {
        "exempt_by": _exempt_by(VOLUMES, client, places, table),
        "enforce": volumes.enforce,
        "soft": f"{volumes.soft.type} {volumes.soft.level:g}",
        "hard": f"{volumes.hard.type} {volumes.hard.level:g}",
        "set_in": places.of_key(("quotas", "volumes"), given=True),
    }


def _unknown(quotas: Sequence[Mapping[str, Any]]) -> list[str]:
    """A sentence if the gateway has no row of a client with quotas: its name may be wrong. Rows of its address do not count."""
    limited = [quota for quota in quotas if quota["limit"] is not None and not quota["bucket"]["ip"]]
    if not limited or any(quota["use"] is not None for quota in limited):
        return []
    return [_NO_RECENT_USE]


def _binds(quotas: Iterable[Mapping[str, Any]], children: Sequence[str]) -> list[str]:
    """Sentences on the quotas that bind: by their use now if that is known, else by the size of the client's requests.

    `children` are the client's groups with a parent.
    """
    limited = [quota for quota in quotas if quota["limit"] is not None]
    # Of a client's own limit and its group's, the smaller one binds.
    by_kind = {quota["kind"]: quota for quota in sorted(limited, key=lambda quota: -float(quota["limit"]))}
    if not limited:
        return ["No quota of requests or addresses applies, so none would bind.", _OF_BROKERS]
    used = [quota for quota in limited if quota["use"] is not None]
    if used:
        most = max(used, key=lambda quota: float(quota["use"]["used_ratio"]))
        text = _binds_now(most, "the present share of " if most["bucket"]["group"] in children else "")
        return [text] if most["use"]["throttle_left"] > 0.0 else [text, _OF_BROKERS]
    found = []
    for kind, words in ((_PRODUCE, "Produce request"), (_FETCH, "Fetch answer")):
        if kind.name in by_kind and _REQUESTS.name in by_kind:
            size = by_kind[kind.name]["limit"] / by_kind[_REQUESTS.name]["limit"]
            found.append(
                f"{_REQUESTS.config_key} binds while the average {words} is below {kind.unit.text(size)},"
                f" {kind.config_key}{_together(by_kind[kind.name])} above that size."
            )
        elif kind.name in by_kind:
            found.append(f"{kind.config_key} binds at {kind.text(by_kind[kind.name]['limit'])}{_together(by_kind[kind.name])}.")
    reported = {_PRODUCE.name, _FETCH.name} | ({_REQUESTS.name} if found else set())
    others = [
        quota
        for quota in limited
        if quota["kind"] not in reported and (quota is by_kind[quota["kind"]] or "ip" in KINDS[quota["kind"]].entity_types)
    ]
    found += [f"{each['key']} binds at {KINDS[each['kind']].text(each['limit'])} of {each['entity']}." for each in others]
    return [*found, _OF_BROKERS]


def _together(quota: Mapping[str, Any]) -> str:
    if quota["at_each_broker"]:
        return " at each broker"
    return f" of {quota['entity']}, for all members together" if quota["bucket"]["group"] else ""


def _binds_now(quota: Mapping[str, Any], part: str) -> str:
    use, kind = quota["use"], KINDS[quota["kind"]]
    if use["throttle_left"] > 0.0:
        since = f" since {use['throttled_since']}" if use.get("throttled_since") else ""
        return (
            f"{kind.config_key} binds now{since}: the client waits {wait_text(use['throttle_left'])}, because it has used more"
            f" than {part}{kind.text(quota['limit'])} of {quota['entity']}{_at_broker(use)}."
        )
    return (
        f"No quota binds now. {kind.config_key} is the nearest: {use['used_ratio']:.0%} of {part}{kind.text(quota['limit'])}"
        f" of {quota['entity']}{_at_broker(use)} is used, and throttling begins at 100%."
    )


def _at_broker(use: JsonObject) -> str:
    return f" at broker {use['broker']}" if use["broker"] else ""
