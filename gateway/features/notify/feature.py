"""Watches the entities near or over their quotas, logs their episodes, and sends notifications.

One process of a host does this: the gateway itself, or the supervisor for all of its workers. So each episode is reported once
for a host. Gateways on other hosts report their own part.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Final

from gateway import clock
from gateway.background import BackgroundTask, BackgroundTasks
from gateway.config.places import Places
from gateway.feature import Feature
from gateway.features.notify.config import NEAR_RATIO, QUIET_SECONDS, NotifyConfig, NotifyTargetConfig
from gateway.features.notify.message import NoticeContext, json_body, sentence, slack_body
from gateway.features.notify.metrics import METRICS, NotifyReport
from gateway.features.notify.rules import EpisodeTable, Notice, ProcessRows, is_of_entity, is_wanted
from gateway.features.notify.webhook import Webhook
from gateway.quotas.snapshot import UsageRow
from gateway.steps import Steps
from gateway.time_slices import in_slices

LOOK_SECONDS: Final = 2.0
LAST_SECONDS: Final = 2.0
"""The maximum time for the last attempts of a gateway that stops. All targets have it together."""

_BODIES: Final[Mapping[str, Callable[[Notice, NoticeContext], Mapping[str, Any]]]] = {"json": json_body, "slack": slack_body}

_log = logging.getLogger("weir.episodes")


class Notify(Feature[NotifyConfig | None]):
    """Without a section, episodes are only logged.

    `rows` returns the use of entities by process, `places` the places of their quotas. `directory` is the config file's.
    """

    metrics = METRICS

    def __init__(
        self,
        section: NotifyConfig | None,
        gateway: str,
        rows: Callable[[], Awaitable[ProcessRows]],
        places: Callable[[], Places],
        directory: Path,
    ) -> None:
        """`gateway` is this gateway's name in notifications."""
        self._gateway = gateway
        self._rows = rows
        self._places = places
        self._directory = directory
        self._table = EpisodeTable(NEAR_RATIO, QUIET_SECONDS)
        self._section = section
        self._tasks: BackgroundTasks | None = None
        self._sending: dict[Webhook, BackgroundTask] = {}

    def start(self, tasks: BackgroundTasks) -> None:
        self._tasks = tasks
        self._task = tasks.start("watch episodes", self._watch)
        self._use(self._section)

    def apply(self, section: NotifyConfig | None) -> list[str]:
        """Episodes go on. If only the address of a target changes, its notifications wait on.

        After any other change they are lost and logged. If a target still has the name, they count as dropped.
        """
        before, self._section = self._section, section
        if section != before:
            self._use(section)
        return []

    def report(self) -> NotifyReport:
        return NotifyReport(
            len(self._table),
            self._table.left_out,
            {webhook.target.name: dict(webhook.results) for webhook in self._sending},
            {webhook.target.name: len(webhook) for webhook in self._sending},
        )

    async def stop(self) -> None:
        """Try each waiting notification once more. Takes at most `LAST_SECONDS`, and logs how many are lost."""
        await super().stop()
        sending = [(webhook, task, len(webhook) + webhook.results["sent"]) for webhook, task in self._sending.items()]
        for webhook, _, _ in sending:
            webhook.finish()
        if sending:
            await asyncio.wait([task.task for _, task, _ in sending], timeout=LAST_SECONDS)
        for webhook, task, all_sent in sending:
            task.cancel()
            if lost := all_sent - webhook.results["sent"]:
                name = webhook.target.name
                _log.error("notify target %s: the gateway stops, and waiting notifications are lost: %d", name, lost)

    def _use(self, section: NotifyConfig | None) -> None:
        self._table.near_ratio = NEAR_RATIO if section is None else section.near_ratio
        self._table.quiet_seconds = QUIET_SECONDS if section is None else section.quiet_seconds
        before, tasks = self._sending, self._tasks
        if tasks is None:
            return
        timeout = 0.0 if section is None else section.timeout_seconds
        known = {_without_address(webhook.target): webhook for webhook in before}
        counts = {webhook.target.name: webhook.results for webhook in before}
        self._sending = {}
        for target in () if section is None else section.targets:
            webhook = known.get(_without_address(target))
            if webhook is None:
                webhook = Webhook(target, self._directory, timeout)
                webhook.results = counts.get(target.name, webhook.results)
            else:
                webhook.target, webhook.timeout_seconds = target, timeout
            self._sending[webhook] = before.get(webhook) or tasks.start("send notifications", webhook.run)
        for webhook in before.keys() - self._sending.keys():
            before[webhook].cancel()
            if lost := len(webhook):
                webhook.results["dropped"] += lost
                name = webhook.target.name
                _log.error("notify target %s: a reload changed it, and waiting notifications are lost: %d", name, lost)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            await in_slices(self.look(await self._rows(), clock.monotonic(), clock.wall()))

    def look(self, rows: ProcessRows, now: float, wall: float) -> Steps[None]:
        """Report the events since the last look. `now` is monotonic."""
        notices = yield from self._table.observe(rows, now)
        if not notices:
            return
        places = self._places()
        for notice in notices:
            yield
            row = notice.row
            context = NoticeContext(
                self._gateway,
                wall,
                places.of_entity(row.level, row.source),
                places.config.quotas.enforce,
                None if self._section is None else self._section.page_url,
                shares=any(group.name == row.group and group.parent is not None for group in places.quotas.groups),
            )
            self._log(notice, context)
            for webhook in self._sending:
                if is_wanted(webhook.target.events, notice) and _is_watched(webhook.target, row):
                    webhook.offer(_BODIES[webhook.target.format](notice, context))

    def _log(self, notice: Notice, context: NoticeContext) -> None:
        row = notice.row
        names = {"user": row.user, "client_id": row.client_id, "ip": row.ip, "group": row.group, "broker": row.broker}
        _log.info(
            "%s",
            sentence(notice, context),
            extra={
                **{name: value for name, value in names.items() if value},
                "kind": row.kind,
                "event": notice.event,
                "limit": row.limit,
                "quota": row.level,
                "set_in": context.set_in,
                "since": round(notice.seconds, 1),  # deprecated in 0.3.0 in favour of `episode_seconds`
                "episode_seconds": round(notice.seconds, 1),
                "addresses": list(row.addresses),
                "reason": f"quota_{notice.event}",
            },
        )


def _without_address(target: NotifyTargetConfig) -> NotifyTargetConfig:
    return target.model_copy(update={"url": None, "url_file": None})


def _is_watched(target: NotifyTargetConfig, row: UsageRow) -> bool:
    return not target.entities or any(
        is_of_entity(entity.user or "", entity.client_id or "", entity.ip or "", row, entity.group or "")
        for entity in target.entities
    )
