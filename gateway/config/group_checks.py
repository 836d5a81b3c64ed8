"""Checks of the tree of groups: parents, rules and guarantees."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gateway.config.document import Document
from gateway.config.group_rows import rule_row
from gateway.config.problems import KeyPath, Problem, nearest
from gateway.config.pydantic_errors import problem
from gateway.quotas.group_tree import MAX_LEVELS, lineage
from gateway.quotas.groups import Group


def tree_problems(groups: Mapping[int, Group], rows: Sequence[Mapping[str, Any]], document: Document) -> Iterator[Problem]:
    """The problems of valid `groups`, by their indexes in `quotas.groups`. `rows` has the invalid sections as well."""
    lasting = {group.name: group for group in groups.values() if group.when is None}
    names, parents = ([row.get(key) for row in rows] for key in ("name", "parent"))
    found: list[Problem] = []
    for index, group in groups.items():
        path: KeyPath = ("quotas", "groups", index)
        if group.parent is not None:
            found += _parent_problems(group, {**lasting, group.name: group}, names, (*path, "parent"), document)
        if group.name in parents and group.rules:
            message = f"has clients, and {_below(group.name, rows)} is below it: clients belong to the lowest groups"
            remedy = "move its rules to a group of their own below it"
            found.append(problem(document, (*path, "match"), message, remedy, value=[rule_row(rule) for rule in group.rules]))
        if group.name in parents and group.shadow:
            message = f"is a limit of clients, and {group.name} has groups in place of clients"
            found.append(problem(document, (*path, "shadow"), message, "move it to the groups below"))
        if group.name not in parents and not group.rules:
            message = "has no match, and no group below it, so it has no clients"
            found.append(problem(document, path, message, "add match, or remove the group", value=group.name))
    yield from found
    if not found:
        indexes = {id(group): index for index, group in groups.items()}
        seen: set[KeyPath] = set()
        for group in [*lasting.values(), *(group for group in groups.values() if group.when is not None)]:
            for each, key, message in _guarantees({**lasting, group.name: group}):
                path = ("quotas", "groups", indexes[id(each)], key)
                if path not in seen:
                    seen.add(path)
                    remedy = "lower the guarantees, or raise the ceiling"
                    yield problem(document, path, message, remedy, value=each.limits[key])
            if group.when is None and len(lasting) == len(groups):
                return  # without times, one look shows everything


def _parent_problems(
    group: Group, others: Mapping[str, Group], names: Sequence[object], path: KeyPath, document: Document
) -> Iterator[Problem]:
    above = group.parent or ""
    if above not in others:
        if above in names:
            return  # the parent's row has a problem of its own, unless all of its rows count for a time
        meant = nearest(above, [name for name in names if isinstance(name, str) and name != group.name])
        yield problem(
            document, path, "is not a group", f"did you mean {meant}?" if meant else "add a group of this name", value=above
        )
        return
    parents = {name: each.parent for name, each in others.items()}
    line = lineage(group.name, parents)
    if parents.get(line[-1]) == group.name:
        message = f"puts {group.name} below itself: {' < '.join([*line, parents[line[-1]] or ''])}"
        yield problem(document, path, message, "remove parent from one of these groups", value=above)
    elif len(line) == MAX_LEVELS and parents.get(line[-1]) not in (None, *line):
        message = f"puts {group.name} more than {MAX_LEVELS - 1} levels below its first group"
        yield problem(document, path, message, "remove a group between them", value=above)


def _below(name: str, rows: Sequence[Mapping[str, Any]]) -> str:
    return next(str(row.get("name")) for row in rows if row.get("parent") == name)


def _guarantees(groups: Mapping[str, Group]) -> Iterator[tuple[Group, str, str]]:
    """The groups with too small a ceiling for the guarantees below them, with the quota key and a message."""
    parents = {name: group.parent for name, group in groups.items()}
    order = sorted(groups, key=lambda name: -len(lineage(name, parents)))
    for key in dict.fromkeys(key for group in groups.values() for key in group.guarantees):
        below: dict[str, list[tuple[str, float]]] = {}
        for name in order:
            group = groups[name]
            parts = below.get(name, [])
            whole = sum(amount for _, amount in parts)
            if whole > group.limits.get(key, whole):
                shown = ", ".join(f"{each} {amount:.16g}" for each, amount in parts[:5]) + (", ..." if len(parts) > 5 else "")
                yield group, key, f"is below the guarantees of the groups below it, {whole:.16g} in all ({shown})"
            amount = max(group.guarantees.get(key, 0.0), whole)
            if group.parent is not None and amount:
                below.setdefault(group.parent, []).append((name, amount))
