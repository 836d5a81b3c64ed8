"""`weir quotas lift`: removes the brokers' quotas that Weir enforces, after it has written a restore file."""

import asyncio
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path

from gateway import clock
from gateway.admin.admin_client import AdminUnreachableError, ask
from gateway.config.endpoints import ServerAddress
from gateway.config.entities import entity_quota
from gateway.config.model import WeirConfig
from gateway.features.quota_api.state_file import StateFile
from gateway.migration import MigrationError, restore_file
from gateway.migration.access import Access, check_not_gateway
from gateway.migration.broker_admin import BrokerAdmin, Cluster
from gateway.migration.broker_quotas import Entity, Translation, translated, waves
from gateway.migration.lift_rules import GatewayQuotas, burst_notes, listed, loosened, obstacles, with_api_quotas
from gateway.quotas.schedule import lasting
from gateway.quotas.scope import BROKER
from gateway.terminal_text import printable, printable_lines


@dataclass(frozen=True, slots=True)
class LiftOptions:
    """`brokers` None: the number of live brokers. `admin`: admin addresses of running gateways to check as well."""

    restore_file: Path
    admin: Sequence[str] = ()
    brokers: int | None = None
    dry_run: bool = False
    yes: bool = False


@dataclass(frozen=True, slots=True)
class _Plan:
    cluster: Cluster
    translation: Translation
    obstacles: tuple[str, ...]
    text: str

    @property
    def lifted(self) -> dict[Entity, dict[str, float]]:
        found: dict[Entity, dict[str, float]] = {}
        for quota in self.translation.moved:
            found.setdefault(quota.entity, {})[quota.key] = quota.at_broker
        return found

    @property
    def kept(self) -> dict[Entity, dict[str, float]]:
        found: dict[Entity, dict[str, float]] = {}
        for quota in self.translation.kept:
            if isfinite(quota.value):  # JSON has no other numbers
                found.setdefault(quota.entity, {})[quota.key] = quota.value
        return found


def lift(config: WeirConfig, path: Path, access: Access, options: LiftOptions) -> int:
    """Returns the exit code. Raises MigrationError, and KeyboardInterrupt with the way back in its message."""
    check_not_gateway(config, access.bootstrap)
    # An existing file is refused below: after a lift, its repetition has nothing to lift, and that is no error.
    restore_file.check_folder(options.restore_file)
    plan = asyncio.run(_planned(config, path, access, options))
    print(plan.text, flush=True)
    if plan.obstacles:
        count = len(plan.obstacles)
        print(f"\nnot lifted, for {count} {'reason' if count == 1 else 'reasons'}:", file=sys.stderr)
        for obstacle in plan.obstacles:
            print(printable(f"  {obstacle}"), file=sys.stderr)
        return 1
    if not plan.translation.moved:
        print("nothing to lift")
        return 0
    restore_file.check_new(options.restore_file)
    asyncio.run(_validate(access, plan))
    if options.dry_run:
        print(f"dry run: the brokers would accept the removal; {options.restore_file} was not written, and nothing was changed")
        return 0
    if not options.yes:
        _confirm(len(plan.translation.moved), shared=config.sharing is not None, ask=input)
    try:
        asyncio.run(_carry_out(access, plan, options))
    except KeyboardInterrupt:
        if not options.restore_file.exists():
            raise
        raise KeyboardInterrupt(f"interrupted; {_gone(access, options)}") from None
    print(f"lifted {len(plan.translation.moved)} quotas; {_way_back(access, options)} exactly as they were")
    return 0


async def _planned(config: WeirConfig, path: Path, access: Access, options: LiftOptions) -> _Plan:
    gateways = len({*options.admin}) or 1
    copies = 1 if config.sharing is not None else config.workers * gateways
    api = await StateFile(config.state.file(path)).load()
    # Outside of their time, the other rows replace no quota of the brokers.
    rows, at_each_broker = lasting(config.quotas.entities), config.quotas.scope == BROKER
    file = with_api_quotas(GatewayQuotas(str(path), config.quotas.enforce, rows, copies, at_each_broker), api)
    running = [with_api_quotas(await _running_quotas(url, gateways), api) for url in options.admin]
    if copies > 1:  # one refusal names them all
        running = [replace(gateway, copies=1) for gateway in running]
    async with BrokerAdmin(access) as admin:
        cluster = await admin.cluster()
        check_not_gateway(config, list(cluster.brokers.values()))
        await admin.refuse_gateway()
        quotas = await admin.describe()
        await admin.ask_every_broker(cluster)
    count = len(cluster.brokers) if options.brokers is None else options.brokers
    in_scope = {at_each: translated(quotas, None if at_each else count) for at_each in (True, False)}
    translation = in_scope[at_each_broker]
    found = [each for gateway in (file, *running) for each in obstacles(in_scope[gateway.at_each_broker], gateway)]
    return _Plan(cluster, translation, tuple(found), _text(config, cluster, translation, file, options))


async def _running_quotas(admin: str, gateways: int) -> GatewayQuotas:
    """`gateways` is the number of all. Raises MigrationError if the admin server does not answer as Weir's does."""
    try:
        answer = await ask(admin, "/api/config", "warnings")
        config = answer["config"]
        quotas = config["quotas"]
        rows = lasting([entity_quota(row) for row in quotas["entities"]])
        name = f"the gateway at {admin} (config version {answer['version']})"
        # The file's `sharing` takes effect at a restart.
        copies = 1 if config.get("sharing") is not None else int(config.get("workers", 1)) * gateways
        return GatewayQuotas(name, quotas["enforce"] is True, rows, copies, quotas.get("scope") == BROKER)
    except AdminUnreachableError as error:
        raise MigrationError(f"--admin: {error}") from None
    except (ValueError, KeyError, TypeError) as error:
        raise MigrationError(
            f"--admin {admin}: answers, but not as Weir does ({error}) — name Weir's admin.host and admin.port"
        ) from None


def _text(config: WeirConfig, cluster: Cluster, translation: Translation, file: GatewayQuotas, options: LiftOptions) -> str:
    lines = [str(cluster)]
    if translation.moved:
        lines += ["to lift from the brokers:", *(f"  {line}" for line in listed(translation.moved, translation.brokers, file))]
    if translation.kept:
        lines += ["left at the brokers:", *(f"  {quota.text}" for quota in translation.kept)]
    notes = [f"note: {note}" for note in loosened(translation, file.rows)]
    if translation.moved:
        notes.append("note: clients that connect to the brokers directly have no quota after the lift")
        notes += [f"note: {note}" for note in burst_notes(config.quotas.window.samples, config.quotas.window.seconds)]
        if not options.admin:
            notes.append("note: only the file was compared; --admin URL also compares the config that a gateway runs with")
        if config.sharing is None:
            notes.append(
                "note: the config has no `sharing`, so N gateways give each client N times its limit;"
                " lift counts gateways only by --admin"
            )
        if config.quota_admins:
            notes.append("note: quotas that were set through Weir's quota API count if state.path is on this host")
    return printable_lines([*lines, *notes])


async def _validate(access: Access, plan: _Plan) -> None:
    """Let the brokers check the removal before anything is written."""
    async with BrokerAdmin(access) as admin:
        await admin.alter(_removal(plan), validate_only=True)


async def _carry_out(access: Access, plan: _Plan, options: LiftOptions) -> None:
    async with BrokerAdmin(access) as admin:
        await admin.refuse_gateway()
        again = translated(await admin.describe(), plan.translation.brokers)
        if again.moved != plan.translation.moved:
            raise MigrationError("the brokers' quotas have changed since they were listed above — run the command again")
        content = restore_file.restore_file(
            plan.cluster.cluster_id,
            [str(ServerAddress(*address)) for address in access.bootstrap],
            plan.lifted,
            plan.kept,
            clock.wall(),
        )
        restore_file.write(options.restore_file, content)
        removal = _removal(plan)
        try:
            await admin.alter_in_waves(plan.cluster, waves(removal), removal)
        except MigrationError as error:
            raise MigrationError(f"{error}; {_gone(access, options)}") from None


def _gone(access: Access, options: LiftOptions) -> str:
    return f"some quotas may be gone: {_way_back(access, options)}"


def _way_back(access: Access, options: LiftOptions) -> str:
    return f"`weir quotas restore {options.restore_file}{access.arguments}` puts them back"


def _removal(plan: _Plan) -> dict[Entity, dict[str, float | None]]:
    return {entity: dict.fromkeys(limits) for entity, limits in plan.lifted.items()}


def _confirm(count: int, *, shared: bool, ask: Callable[[str], str]) -> None:
    """Without `shared`, the question is also about other gateways: lift can't know of them."""
    if not sys.stdin.isatty():
        raise MigrationError("stdin is not a terminal, so nobody can confirm the lift — add --yes")
    only = (
        "" if shared else "Do all clients use one gateway? Without `sharing`, N gateways give each client N times its limit. "
    )
    try:
        answer = ask(f"{only}Remove these {count} quotas from the brokers? Type yes: ")
    except EOFError:
        answer = ""
    if answer.strip().lower() != "yes":
        raise MigrationError("not confirmed, so nothing has been changed — type yes, or add --yes")
