"""The key `shadow` of rows of `quotas.entities` and `quotas.groups`: limits that are measured and delay nobody."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from typing import Annotated, Any

from pydantic import create_model

from gateway.config.section import Section, described, given, invalid
from gateway.quotas.entity import GROUP, EntityQuota
from gateway.quotas.kinds import KINDS, QuotaKind
from gateway.quotas.schedule import When


def shadow_key(
    name: str,
    kinds: Iterable[QuotaKind],
    key_of: Callable[[QuotaKind], tuple[object, object]],
    rates: Mapping[str, Any],
) -> tuple[object, object]:
    """The type and the description of the key, with a section `name`: the keys of the kinds, and `rates` of APIs."""
    keys: Any = {kind.config_key: key_of(kind) for kind in kinds}
    section: Any = create_model(name, __base__=Section, **keys, **rates)
    words = "Rates that Weir measures and reports beside the real ones, and that delay nobody."
    return Annotated[section | None, given("give it a rate, or remove the key")], described(
        words, None, absent="no shadow limits"
    )


def shadow_limits(section: Any) -> dict[str, float]:  # noqa: ANN401 - a model that is made at run time
    """The rates of a validated section by their quota keys."""
    if section is None:
        return {}
    found: dict[str, float] = {}
    for key in type(section).model_fields:
        limit = getattr(section, key)
        found |= limit if isinstance(limit, Mapping) else {} if limit is None else {key: limit}
    return found


def check_shadow(shadow: Mapping[str, float], types: Set[str], when: When | None, *, alone: bool) -> None:
    """Raises ValueError. `types` are those of the row's entity. `alone`: the row has neither limits nor an exemption."""
    for kind in KINDS.values():
        if kind.config_key in shadow and not types <= kind.entity_types:
            owners = " and ".join(sorted(kind.entity_types - {GROUP}))
            raise invalid(f"has shadow.{kind.config_key}, a quota of {owners}", "move it to a row of such an entity")
    if shadow and alone and when is not None:
        raise invalid(
            f"has shadow alone, so no limit of its entity would hold while the row counts ({when})",
            "repeat the entity's limits in this row, or remove until and schedule: a shadow limit delays nobody",
        )


def shadow_warnings(place: str, quota: EntityQuota) -> Iterator[str]:
    """One line for each shadow limit that never throttles, because the real limit of its row throttles before."""
    for key, limit in quota.shadow.items():
        real = quota.limits.get(key)
        if real is not None and real <= limit:
            yield (
                f"{place}.shadow.{key}: {limit:.12g} is not below the real {key} of {real:.12g}, so it never throttles"
                " — write a smaller rate"
            )
