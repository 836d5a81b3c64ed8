"""The rows of `quotas.groups`: rules that put clients into a group, and the numbers of all members together."""

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, Any, Final, NamedTuple

from pydantic import AfterValidator, Field, PlainSerializer, PlainValidator, TypeAdapter, create_model

from gateway.config.endpoints import as_network
from gateway.config.request_rates import rates_key
from gateway.config.section import GIVEN, Section, described, invalid
from gateway.config.shadow_rows import check_shadow, shadow_key, shadow_limits
from gateway.config.timed_rows import TimedKeys
from gateway.quotas.addresses import Network
from gateway.quotas.entity import DEFAULT, GROUP, OTHER
from gateway.quotas.entity_row import shadow_row
from gateway.quotas.group_tree import KindTree, lineage
from gateway.quotas.groups import CLAIMS_OF_ONE_TOKEN, DEFAULT_MAX_LAG, Group, GroupRule
from gateway.quotas.kinds import ROW_KINDS, QuotaKind
from gateway.quotas.kinds.fetch import KIND as FETCH
from gateway.quotas.kinds.request_rates import KEY as REQUEST_RATES
from gateway.quotas.kinds.request_rates import nested
from gateway.quotas.quota_table import QuotaTable
from gateway.quotas.schedule import When
from gateway.whole_number import MAX_INT64

MAX_RULES: Final = 2_000
"""The rules of all groups. Each rule is compared with the earlier ones, and with each new client."""

_MAX_TEXT = 255
_RESERVED = (DEFAULT.value, OTHER)


def _name(text: str) -> str:
    if text in _RESERVED:
        raise invalid("is a name that Weir uses for other entities", "give the group another name")
    return text


def _network(value: object) -> Network:
    return as_network(value, 'write a network such as "10.20.0.0/16" or "2001:db8::/32", or one address')


def _kept(claims: dict[str, str]) -> dict[str, str]:
    for name in sorted(CLAIMS_OF_ONE_TOKEN & claims.keys()):
        raise invalid(
            f"has {name}, which differs in each token, so no rule can match it", "use a claim of the client, such as sub or azp"
        )
    return claims


def _true(value: bool) -> bool:
    if not value:
        raise invalid("is false, and rules without it apply at any lag", "remove it, or write catch_up: true")
    return value


_Text = Annotated[str, Field(min_length=1, max_length=_MAX_TEXT)]
_Pattern = Annotated[Annotated[str, Field(max_length=_MAX_TEXT)] | None, GIVEN]


class MatchRow(Section):
    """One of `quotas.groups[].match`. All of its keys have to apply to a client."""

    user: _Pattern = described("Pattern of users: `*` is any text, `?` one character.", None)
    client_id: _Pattern = described("Pattern of client-ids, such as `job-*`.", None, alias="client-id")
    claim: Annotated[Annotated[dict[_Text, _Text], AfterValidator(_kept)] | None, GIVEN] = described(
        "Claims of the OAUTHBEARER token, by name. A claim with a list applies if one of its elements is equal.", None
    )
    ip: Annotated[Any, GIVEN, PlainValidator(_network, json_schema_input_type=str)] = described(
        "Network of the clients' addresses, such as `10.20.0.0/16` (IPv4 or IPv6).", None
    )
    catch_up: Annotated[Annotated[bool, AfterValidator(_true)] | None, GIVEN] = described(
        "Only consumers that read far behind the end of the log, see `max_lag_records`.", None, absent="the lag does not matter"
    )
    max_lag_records: Annotated[Annotated[int, Field(ge=1, le=MAX_INT64)] | None, GIVEN] = described(
        "With `catch_up`: a consumer that reads more than this behind the end of the log joins the group. It leaves the group"
        " below a tenth of this.",
        None,
        unit="records",
        absent=str(DEFAULT_MAX_LAG),
    )


def _rule(value: object) -> GroupRule:
    if isinstance(value, GroupRule):
        return value
    row = MatchRow.model_validate(value)
    if row.max_lag_records is not None and row.catch_up is None:
        raise invalid("has max_lag_records without catch_up", "add catch_up: true, or remove max_lag_records")
    max_lag = (row.max_lag_records or DEFAULT_MAX_LAG) if row.catch_up else None
    rule = GroupRule(row.user, row.client_id, frozenset((row.claim or {}).items()), row.ip, max_lag)
    if rule == GroupRule():
        raise invalid("is an empty rule", 'give it user, client-id, claim, ip or catch_up; user: "*" is every client')
    return rule


def rule_row(rule: GroupRule) -> dict[str, object]:
    network = None if rule.network is None else str(rule.network)
    parts = {"user": rule.user, "client-id": rule.client_id, "claim": dict(sorted(rule.claims)), "ip": network}
    lag = {} if rule.max_lag is None else {"catch_up": True, "max_lag_records": rule.max_lag}
    return {**{key: value for key, value in parts.items() if value}, **lag}


Rule = Annotated[
    GroupRule, PlainValidator(_rule, json_schema_input_type=MatchRow), PlainSerializer(rule_row, return_type=dict[str, object])
]


class _GroupKeys(Section):
    """The keys of a group's row except the quotas, which the registry of kinds adds."""

    name: Annotated[_Text, AfterValidator(_name)] = described(
        "Name of the group in metrics, tables, reports and the quota API."
    )
    parent: Annotated[_Text | None, GIVEN] = described(
        "Group above: its ceilings are divided among the groups below it.", None, absent="the group shares with no other group"
    )
    match: Annotated[tuple[Rule, ...], GIVEN, Field(strict=False, min_length=1)] = described(
        "Rules: a client belongs to the first group, in the file's order, with a rule that matches it. A group with groups"
        " below it has none.",
        (),
    )


class _TimedGroupKeys(TimedKeys, _GroupKeys):
    """The name and the rules come first, then the time."""


class _Numbers(NamedTuple):
    """The numbers of one kind in a row. A plain number is a ceiling."""

    guarantee: float | None = None
    ceiling: float | None = None
    weight: float | None = None


_Weight = Annotated[float, Field(ge=0.001, le=1_000_000)]


def _amount(kind: QuotaKind) -> tuple[Any, str, str]:
    """The type of a limit, its unit, and the beginning of its description."""
    words = kind.description.replace("the entity", "all members together")
    unit = f"{kind.unit.name} per second"
    return Annotated[int if kind.integral else float, Field(gt=0, le=MAX_INT64)], unit, f"{words[:1].upper()}{words[1:]}"


def _numbers(kind: QuotaKind) -> tuple[object, object]:
    """The type and the description of a kind's key: a number, or a table with some of the keys of `_Numbers`."""
    number, unit, words = _amount(kind)
    amount: Any = Annotated[number | None, GIVEN]
    keys: Any = {
        "guarantee": (
            amount,
            described("The part that all members may use at any time.", None, unit=unit, absent="no guarantee"),
        ),
        "ceiling": (
            amount,
            described("The most that all members may use together.", None, unit=unit, absent="that of the group above"),
        ),
        "weight": (
            Annotated[_Weight | None, GIVEN],
            described("Part of the rest that the guarantees leave, beside the other groups below `parent`.", None, absent="1"),
        ),
    }
    table: Any = create_model(f"Group{kind.title.title().replace(' ', '')}", __base__=Section, **keys)
    plain: TypeAdapter[float] = TypeAdapter(number, config=Section.model_config)

    def validated(value: object) -> _Numbers:
        if not isinstance(value, Mapping):
            return _Numbers(ceiling=plain.validate_python(value))
        row = table.model_validate(value)
        found = _Numbers(row.guarantee, row.ceiling, row.weight)
        if found == _Numbers():
            raise invalid("is empty", "give it guarantee, ceiling or weight, or remove it")
        if found.guarantee is not None and found.ceiling is not None and found.guarantee > found.ceiling:
            raise invalid(
                f"has the guarantee {found.guarantee:.16g} above its ceiling {found.ceiling:.16g}",
                "raise the ceiling, or lower the guarantee",
            )
        return found

    words += ": a ceiling, or a table with some of `guarantee`, `ceiling` and `weight`."
    numbers = Annotated[Any, PlainValidator(validated, json_schema_input_type=number | table)]
    return numbers, described(words, None, unit=unit, absent="no limit")


def _ceiling(kind: QuotaKind) -> tuple[object, object]:
    """The type and the description of a kind's key in `shadow`."""
    number, unit, words = _amount(kind)
    return number, described(f"{words}.", None, unit=unit, absent="no limit")


_FETCH: Final = FETCH.config_key
_KINDS: Final = [kind for kind in ROW_KINDS if GROUP in kind.entity_types]
_LIMITS: dict[str, Any] = {kind.config_key: _numbers(kind) for kind in _KINDS}
_RATES: dict[str, Any] = {REQUEST_RATES: rates_key("all members together")}
_SHADOW: Any = shadow_key("GroupShadow", _KINDS, _ceiling, _RATES)
GroupRow = create_model("GroupRow", __base__=_TimedGroupKeys, **_LIMITS, **_RATES, shadow=_SHADOW)
"""A row of `quotas.groups` in the file."""


def group_of(value: object) -> Group:
    """A validated row of `quotas.groups`. Raises ValueError: pydantic's for keys, or its custom one for the row."""
    if isinstance(value, Group):
        return value
    row: Any = GroupRow.model_validate(value)
    found: dict[str, _Numbers] = {key: numbers for key in _LIMITS if (numbers := getattr(row, key)) is not None}
    limits, guarantees, weights = (
        MappingProxyType({key: number for key, numbers in found.items() if (number := getattr(numbers, name)) is not None})
        for name in ("ceiling", "guarantee", "weight")
    )
    limits = MappingProxyType({**limits, **(row.request_rates or {})})
    shadow, when = MappingProxyType(shadow_limits(row.shadow)), row.when()
    check_shadow(shadow, {GROUP}, when, alone=not found and not row.request_rates)
    return Group(
        row.name, row.match, limits, when=when, shadow=shadow, parent=row.parent, guarantees=guarantees, weights=weights
    )


def _group_row(group: Group) -> dict[str, object]:
    return {
        "name": group.name,
        **({} if group.parent is None else {"parent": group.parent}),
        **({"match": [rule_row(rule) for rule in group.rules]} if group.rules else {}),
        **{key: _numbers_row(key, group) for key in _LIMITS if key in {**group.limits, **group.guarantees, **group.weights}},
        **nested({key: limit for key, limit in group.limits.items() if key not in _LIMITS}),
        **shadow_row(group.shadow),
        **(group.when.keys() if group.when else {}),
    }


def _numbers_row(key: str, group: Group) -> object:
    numbers = {"guarantee": group.guarantees.get(key), "ceiling": group.limits.get(key), "weight": group.weights.get(key)}
    given = {name: number for name, number in numbers.items() if number is not None}
    return given["ceiling"] if given.keys() == {"ceiling"} else given


GroupRows = Annotated[
    tuple[
        Annotated[Group, PlainValidator(group_of, json_schema_input_type=GroupRow), PlainSerializer(_group_row)],
        ...,
    ],
    Field(strict=False),
]


def group_warnings(groups: Sequence[Group]) -> Iterator[str]:
    """One line for each group without an effect of its own, and for each pattern that is probably meant as a principal."""
    yield from _unused_numbers(groups)
    yield from _unlimited_lanes(groups)
    yield from _timed_parents(groups)
    yield from _without_a_part(groups)
    related = {group.parent for group in groups} | {group.name for group in groups if group.parent is not None}
    for index, group in enumerate(groups):
        if not group.limits and not group.shadow and group.name not in related:
            yield (
                f"quotas.groups[{index}]: {group.name} has no ceiling, so it only keeps its members out of later groups — give"
                f" it one of {', '.join(_LIMITS)}, or remove it"
            )
        for number, rule in enumerate(group.rules):
            if rule.user is not None and rule.user.startswith("User:"):
                yield (
                    f'quotas.groups[{index}].match[{number}].user: "{rule.user}" is a principal, and groups have the plain name'
                    f" — write {rule.user.removeprefix('User:')}"
                )


def _lines(groups: Sequence[Group]) -> Iterator[list[Group]]:
    """Each group, and then the groups above it, the lowest first."""
    by_name = {group.name: group for group in groups}
    parents = {group.name: group.parent for group in groups}
    for group in groups:
        yield [by_name[name] for name in lineage(group.name, parents)]


def _unlimited_lanes(groups: Sequence[Group]) -> Iterator[str]:
    """One line for each rule for consumers that catch up whose group does not limit consumers."""
    for index, line in enumerate(_lines(groups)):
        group = line[0]
        limited = {key for each in line for key in {**each.limits, **each.shadow}}
        if _FETCH in limited or not limited:
            continue  # a group without any limit has a warning of its own
        for number, rule in enumerate(group.rules):
            if rule.max_lag is not None:
                yield (
                    f"quotas.groups[{index}].match[{number}].catch_up: {group.name} has no {_FETCH}, so consumers that catch up"
                    f" are not limited — give it {_FETCH}, or a parent with a ceiling of it"
                )


def _unused_numbers(groups: Sequence[Group]) -> Iterator[str]:
    """One line for each guarantee and weight without effect, because no group above has a ceiling to divide."""
    for index, (group, *above) in enumerate(_lines(groups)):
        for key in {**group.guarantees, **group.weights}:
            if not any(key in each.limits for each in above):
                names = " and ".join(
                    name for name, numbers in (("guarantee", group.guarantees), ("weight", group.weights)) if key in numbers
                )
                ancestor = f"give {above[-1].name} a ceiling" if above else "give the group a parent with a ceiling"
                yield (
                    f"quotas.groups[{index}].{key}: no group above {group.name} has a ceiling of {key} to divide, so {names}"
                    f" has no effect — {ancestor}"
                )


def _without_a_part(groups: Sequence[Group]) -> Iterator[str]:
    """One line for each group that gets nothing while all groups beside it want their guarantees."""
    lasting = [group for group in groups if group.when is None]
    table = QuotaTable([group.quota for group in lasting])
    for key in table.keys:
        tree = KindTree(key, lasting, table)
        for position, group in enumerate(tree.groups):
            name, above = group.name, tree.parents[group.name]
            if above is not None and tree.tree.entitlements[position] < tree.entitlements[position]:  # it gets the least part
                index = next(index for index, each in enumerate(groups) if each is group)
                yield (
                    f"quotas.groups[{index}]: the guarantees beside {name} fill the {key} of {above}, so {name} only gets what"
                    " they leave — lower them, or give it one"
                )


def _timed_parents(groups: Sequence[Group]) -> Iterator[str]:
    """One line for each parent whose rows all count for a time, unless the groups below it count for the same time."""
    lasting = {group.name for group in groups if group.when is None}
    warned: set[str] = set()
    for index, group in enumerate(groups):
        if group.when is None or group.name in lasting or group.name in warned:
            continue
        times = {row.when for row in groups if row.name == group.name}
        below = [*dict.fromkeys(row.name for row in groups if row.parent == group.name and row.when not in times)]
        if below:
            warned.add(group.name)
            key = "until" if group.when.schedule is None else "schedule"
            others = len(times) - 1
            more = f" or in {others} other time{'s' if others > 1 else ''}" if others else ""
            names = f"{', '.join(below[:5])}{', ...' if len(below) > 5 else ''}"
            yield (
                f"quotas.groups[{index}].{key}: {group.name} counts only {_time_text(group.when)}{more}. At other times, the"
                f" groups below it ({names}) have no limits but their own ceilings — add a row of {group.name} without schedule"
                " and until"
            )


def _time_text(when: When) -> str:
    return str(when) if when.until is not None else f"in {when}"
