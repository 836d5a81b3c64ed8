"""`weir quotas restore`: puts the quotas of a restore file back at the brokers."""

import asyncio
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gateway.migration import MigrationError
from gateway.migration.access import Access
from gateway.migration.broker_admin import BrokerAdmin
from gateway.migration.broker_quotas import Entity, entity_text, number_text, waves
from gateway.migration.restore_file import RestoreFile
from gateway.migration.restore_rules import RestorePlan, restore_plan
from gateway.terminal_text import printable, printable_lines


@dataclass(frozen=True, slots=True)
class RestoreOptions:
    """`force`: set the file's quotas although the brokers' quotas have changed, or the cluster is another one."""

    dry_run: bool = False
    force: bool = False


def restore(path: Path, content: RestoreFile, access: Access, options: RestoreOptions) -> int:
    """Returns the exit code. Raises MigrationError, and KeyboardInterrupt with the remedy in its message."""
    try:
        return asyncio.run(_restore(path, content, access, options))
    except KeyboardInterrupt:
        raise KeyboardInterrupt("interrupted — repeat the command until it reports success: it sets the rest") from None


async def _restore(path: Path, content: RestoreFile, access: Access, options: RestoreOptions) -> int:
    async with BrokerAdmin(access) as admin:
        cluster = await admin.cluster()
        if cluster.cluster_id != content.cluster_id and not options.force:
            raise MigrationError(
                f"{path}: is of the cluster {content.cluster_id}, and the brokers are of {cluster.cluster_id} — name that"
                " cluster with --bootstrap-server, or add --force"
            )
        await admin.refuse_gateway()
        plan = restore_plan(content.lifted_quotas(), content.kept_quotas(), await admin.describe())
        # All quotas of the file: a broker may not yet know that a lift has removed a quota, and repeating a value is harmless.
        wanted: dict[Entity, Mapping[str, float | None]] = {**content.lifted_quotas()}
        print(printable_lines([str(cluster), *_lines(plan)]), flush=True)
        if plan.conflicts and not options.force:
            print(f"\nnot restored, because the brokers' quotas have changed since {content.written_at}:", file=sys.stderr)
            for conflict in plan.conflicts:
                print(printable(f"  {conflict}"), file=sys.stderr)
            print("add --force to set the file's quotas in any case; all other changes stay", file=sys.stderr)
            return 1
        await admin.alter(wanted, validate_only=True)
        if options.dry_run:
            print("dry run: the brokers would accept the quotas; nothing was changed")
            return 0
        try:
            await admin.alter_in_waves(cluster, reversed(waves(wanted)), wanted)
        except MigrationError as error:
            raise MigrationError(f"{error}; repeat the command until it reports success: it sets the rest") from None
    restored = sum(len(limits) for quotas in (plan.missing, plan.different) for limits in quotas.values())
    if restored:
        print(f"restored {restored} quotas; you may delete {path}")
    else:
        print("nothing to restore: the brokers have all quotas of the file")
    return 0


def _lines(plan: RestorePlan) -> list[str]:
    lines = []
    for title, quotas in (("to restore:", plan.missing), ("to overwrite:", plan.different)):
        if quotas:
            lines += [title, *(f"  {entity_text(entity)}: {_limits(limits)}" for entity, limits in quotas.items())]
    if plan.restored:
        lines.append(f"{plan.restored} of the file's quotas are at the brokers already")
    return [*lines, *(f"note: {note}" for note in plan.notes)]


def _limits(limits: Mapping[str, float]) -> str:
    return ", ".join(f"{key} {number_text(value)}" for key, value in limits.items())
