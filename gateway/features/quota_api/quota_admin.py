"""Checks, saves and applies the quotas that clients set through the API, one request after the other."""

import asyncio
import logging
from collections.abc import Callable, Container, Mapping, Sequence, Set
from dataclasses import replace
from typing import NamedTuple
from weakref import WeakValueDictionary

from gateway import clock
from gateway.alter_queue import AlterQueue, AlterTask, QuotaName
from gateway.alterations import Alteration, Change, MadeChange, QuotaApiError
from gateway.features.quota_api.host_names import HostNames
from gateway.features.quota_api.rules import ListedQuotas, alteration, altered, check_room, described, ips, undone
from gateway.features.quota_api.state_file import NotSavedError, QuotaStore
from gateway.observer import Outlet
from gateway.quotas.engine import QuotaEngine
from gateway.quotas.entity import ClientQuotaEntity, DynamicQuotas
from gateway.quotas.kinds import small_quota_warning
from gateway.steps import Steps
from protocol.bodies.client_quotas import Component, DescribedEntity
from protocol.error_codes import ErrorCode

RETRY_SECONDS = 60.0
"""The time after which Weir tries again to undo changes and to resolve host names. The next request undoes changes earlier."""

LOG_BATCH = 100
"""The log lines in one turn of the event loop. Thousands of log lines take a tenth of a second."""

_CHANGED = "quota changed through the API"
_REMOVED = "quota removed through the API"
_UNDONE = "quota change through the API is undone, because the broker has refused its part"

_log = logging.getLogger("weir.quota_api")


class QuotaAdmin:
    """Describes a gateway's quotas, and carries out the changes in `queue`.

    `run` carries out changes after `start`. If it is cancelled, it answers the requests under way with an error. The next `run`
    carries out the other ones.
    """

    def __init__(
        self,
        engine: QuotaEngine,
        store: QuotaStore,
        queue: AlterQueue,
        outlet: Outlet,
        *,
        groups: Callable[[], Container[str | None]] = lambda: (),
        on_quotas: Callable[[DynamicQuotas], None] = lambda _: None,
        applied: Callable[[], None] = lambda: None,
    ) -> None:
        """`groups` returns the names of all groups of the config file, also of those outside of their schedule.

        After a change, all quotas of the API go to `on_quotas` and then to the engine. Then `applied` is called.
        """
        self._engine = engine
        self._store = store
        self._queue = queue
        self._outlet = outlet
        self._groups = groups
        self._on_quotas = on_quotas
        self._applied = applied
        self._quotas: DynamicQuotas = {}
        self._latest: WeakValueDictionary[QuotaName, MadeChange] = WeakValueDictionary()  # of requests that are under way
        self._host_names = HostNames()
        self._addresses: dict[str, str] = {}  # by the `ip` of an entity: an address or a host name
        self._unresolved: frozenset[str] = frozenset()  # host names without an address: their quotas apply to no client
        self._retry_due = False
        self._timer: asyncio.TimerHandle | None = None

    async def start(self) -> None:
        """Apply the saved quotas. Raises ConfigError if the saved quotas can't be read."""
        self._quotas = await self._store.load()
        await self._look_up(_ips_of(self._quotas))
        if self._quotas:
            count = len(self._quotas)
            _log.info("%d %s quotas that were set through the API", count, "entity has" if count == 1 else "entities have")
            await self._apply(self._quotas)

    async def run(self) -> None:
        if self._queue.followed is not None:  # an earlier `run` has failed to apply these
            self._queue.arrived.set()
        try:
            while True:
                if self._timer is None and (self._queue.undos or self._unresolved):
                    self._timer = asyncio.get_running_loop().call_later(RETRY_SECONDS, self._retry)
                await self._queue.arrived.wait()
                await self._carry_out()
        finally:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

    def _retry(self) -> None:
        self._timer = None
        self._retry_due = True
        self._queue.arrived.set()

    def describe(self, components: Sequence[Component], *, strict: bool) -> Steps[list[DescribedEntity]]:
        """The quotas of the file and the API that match a filter. All are those of the call, whatever changes during the steps.

        The steps raise QuotaApiError if the filter is invalid.
        """
        quotas = ListedQuotas(self._quotas, self._engine.settings.quotas, self._engine.table)
        return described(quotas, components, strict=strict)

    async def _carry_out(self) -> None:
        """Apply the changes of other gateways, and carry out all waiting requests with one save."""
        if self._retry_due:
            self._retry_due = False
            await self._look_up(self._unresolved)
            if not self._unresolved.isdisjoint(self._addresses):
                await self._apply(self._quotas)
        self._queue.arrived.clear()  # here, so that a restart sees requests that came before
        tasks, undos = self._queue.take(), self._queue.undos.copy()
        try:
            unread = await self._catch_up() if tasks or undos else None
            await self._follow()
            await self._alter(tasks, undos, unread)
        except asyncio.CancelledError:
            # A second try would lose the quotas for an undo, if the first one has been saved.
            _fail(tasks, "Weir was interrupted, so the change may take effect later, or not at all.")
            raise
        except Exception:
            _fail(tasks, "Weir failed to carry out the change.")
            raise

    async def _catch_up(self) -> NotSavedError | None:
        """Let `followed` have the latest quotas: otherwise a request seems to change nothing, and is not saved."""
        try:
            await self._store.catch_up()
        except NotSavedError as error:
            return error
        return None

    async def _follow(self) -> None:
        followed = self._queue.followed
        if followed is not None:
            await self._look_up(_ips_of(followed) - self._unresolved)
            changed = sum(self._quotas.get(entity) != followed.get(entity) for entity in {**self._quotas, **followed})
            _log.info("quotas of %d entities were changed through another gateway", changed)
            await self._apply(followed)
            self._followed_up(followed)

    def _followed_up(self, quotas: DynamicQuotas) -> None:
        if self._queue.followed is quotas:  # otherwise newer quotas wait for the next call
            self._queue.followed = None

    async def _alter(
        self, tasks: Sequence[AlterTask], undos: list[tuple[AlterTask, list[MadeChange]]], unread: NotSavedError | None
    ) -> None:
        """With `unread`, the changes of other gateways are unknown, and no change is made."""
        await self._look_up(set().union(*(ips(task.request.entries) for task in tasks)))
        quotas = self._quotas
        made: list[_Changes] = []
        for task, changes in undos:
            await asyncio.sleep(0)  # `altered` copies all quotas: some milliseconds for 100 000 entities
            back = undone(changes, quotas)
            quotas = altered(quotas, back)
            made.append(_Changes(task, back, undone=True))
        found: list[tuple[AlterTask, Alteration]] = []
        for task in tasks:
            await asyncio.sleep(0)  # as above
            wanted, after = self._judge(task, quotas)
            task.made = {
                (each.entity, each.key): MadeChange(each, quotas.get(each.entity, {}).get(each.key)) for each in wanted.changes
            }
            found.append((task, wanted))
            if not task.request.validate_only:
                quotas = after
        changing = [each for each in found if each[1].changes and not each[0].request.validate_only]
        if unread is None:
            unread = await self._confirm(changing, quotas)
        if quotas != self._quotas or (unread is not None and changing):
            made += [_Changes(task, wanted.changes, undone=False) for task, wanted in changing]
            try:
                if unread is not None:
                    raise unread
                await self._take_over(quotas, made)
            except NotSavedError as error:
                text = "quotas set through the API can't be saved: %s, %s — %s"
                _log.warning(text, error, error.outcome, error.remedy, extra={"reason": "quotas_not_saved"})
                for _, wanted in changing:
                    wanted.fail_changes(
                        ErrorCode.UNKNOWN_SERVER_ERROR, f"Weir can not save the change ({error}), {error.outcome}."
                    )
                undos = []  # those in the queue are tried again
        del self._queue.undos[: len(undos)]
        for task, wanted in changing:
            self._link(task, wanted)
        for task, wanted in found:
            task.alteration = wanted
            task.done()

    def _link(self, task: AlterTask, wanted: Alteration) -> None:
        """Let an undo of earlier changes find these changes, unless they have failed."""
        for entity, key, _ in wanted.changes:
            made = task.made[entity, key]
            earlier = self._latest.get((entity, key))
            if earlier is not None:
                earlier.later = made
            self._latest[entity, key] = made

    def _judge(self, task: AlterTask, quotas: DynamicQuotas) -> tuple[Alteration, DynamicQuotas]:
        """The task's valid changes and its errors, and the quotas after it: `quotas` if the rules refuse them."""
        if task.rules is None:
            wanted = alteration(task.request.entries, self._addresses.__contains__, self._groups())
        else:
            wanted = task.rules.alteration(task.request)
        after = altered(quotas, wanted.changes)
        try:
            check_room(quotas, after)
            if task.rules is not None:
                task.rules.check(quotas, after)
        except QuotaApiError as error:
            wanted.fail_changes(error.code, error.message)
            return wanted, quotas
        return wanted, after

    async def _confirm(self, changing: list[tuple[AlterTask, Alteration]], after: DynamicQuotas) -> NotSavedError | None:
        """Let the store keep the quotas that already have the value that was asked for."""
        asked: dict[ClientQuotaEntity, dict[str, None]] = {}
        for _, wanted in changing:
            for entity, key, _ in wanted.changes:
                if self._quotas.get(entity, {}).get(key) == after.get(entity, {}).get(key):
                    asked.setdefault(entity, {})[key] = None
        try:
            await self._store.confirm(asked)
        except NotSavedError as error:
            return error
        return None

    async def _take_over(self, quotas: DynamicQuotas, made: list["_Changes"]) -> None:
        """Save and apply the quotas, and log each change in `made`. Raises NotSavedError before anything has changed."""
        quotas = await self._store.save(self._quotas, quotas)
        self._queue.followed = quotas  # newer than those before; the next `run` applies them if this one is interrupted
        await self._look_up(_ips_of(quotas) - self._unresolved)
        latest: dict[tuple[ClientQuotaEntity, str], float | None] = {}
        for task, changes, is_undone in made:
            principal = f"User:{task.user}"
            for number, (entity, key, value) in enumerate(changes):
                if number % LOG_BATCH == LOG_BATCH - 1:
                    await asyncio.sleep(0)
                text = _UNDONE if is_undone else _REMOVED if value is None else _CHANGED
                _log.info(text, extra={"by": principal, "entity": str(entity), "key": key, "value": value})
                old = latest.get((entity, key), self._quotas.get(entity, {}).get(key))
                latest[entity, key] = value
                self._outlet.limit_changed(entity, key, old, value, principal)
                warning = None if value is None else small_quota_warning(key, value, str(entity))
                if warning is not None:
                    _log.warning("%s: %s", key, warning)
        await self._apply(quotas)
        self._followed_up(quotas)

    async def _apply(self, quotas: DynamicQuotas) -> None:
        unresolved = frozenset(_ips_of(quotas).difference(self._addresses))
        if unresolved - self._unresolved:
            _log.warning(
                "quotas set through the API apply to no client, because DNS has no address for %s. Weir tries again every %g s."
                " Correct DNS, or set the quotas for the addresses", ", ".join(sorted(unresolved)), RETRY_SECONDS,
            )  # fmt: skip
        self._unresolved = unresolved
        effective = _of_clients(quotas, self._addresses)
        try:
            prepared = await asyncio.to_thread(self._engine.prepare, replace(self._engine.settings, dynamic=effective))
        except RuntimeError:  # no thread can be started
            prepared = ()
        # A reload may have changed the other settings in the meantime. The engine then computes the tables again.
        self._quotas = quotas
        self._on_quotas(quotas)
        self._engine.apply(replace(self._engine.settings, dynamic=effective), clock.monotonic(), prepared)
        self._applied()

    async def _look_up(self, names: Set[str]) -> None:
        """Find the address of each name. A name may be an address."""
        unknown = [name for name in names if name not in self._addresses]
        if not unknown:
            return
        found = await self._host_names.addresses(unknown)
        known = {entity.ip for entity in self._quotas}
        known |= names
        self._addresses = {name: address for name, address in self._addresses.items() if name in known}
        self._addresses |= found


class _Changes(NamedTuple):
    """The changes of one task. `undone`: they undo earlier ones of the task."""

    task: AlterTask
    changes: list[Change]
    undone: bool


def _fail(tasks: Sequence[AlterTask], message: str) -> None:
    """Answer the tasks that have no answer yet. Weir reads no further request of a client until it has answered this one."""
    for task in tasks:
        if task.alteration is None:
            task.alteration = Alteration()
            for entry in task.request.entries:
                task.alteration.fail(entry.entity, ErrorCode.UNKNOWN_SERVER_ERROR, message)
            task.done()


def _of_clients(quotas: DynamicQuotas, addresses: Mapping[str, str]) -> DynamicQuotas:
    """The quotas of clients and addresses. An address may have been given as a host name, or in another spelling."""
    found = dict(quotas)
    for entity in [entity for entity in quotas if entity.topic is not None or isinstance(entity.ip, str)]:
        limits = found.pop(entity)
        if isinstance(entity.ip, str):
            found[ClientQuotaEntity(ip=addresses.get(entity.ip, entity.ip))] = limits
    return found


def _ips_of(quotas: DynamicQuotas) -> set[str]:
    return {entity.ip for entity in quotas if isinstance(entity.ip, str)}
