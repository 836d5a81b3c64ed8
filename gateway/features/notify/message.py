"""The bodies of notifications: JSON with fields, and a text for Slack and its like."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlencode

from gateway.clock import iso
from gateway.features.notify.rules import NEAR, THROTTLED, Notice
from gateway.quotas.kinds import KINDS
from gateway.quotas.snapshot import UsageRow
from gateway.terminal_text import printable

VERSION: Final = 1
_SHOWN_ADDRESSES: Final = 5
_LONGEST_NAME: Final = 255
_BACKTICK: Final = r"\x60"


@dataclass(frozen=True, slots=True)
class NoticeContext:
    """The surroundings of a notice. `wall` is its time in seconds since 1970, `set_in` the place of the quota.

    `shares`: the entity is a group with a parent, so the used fraction is that of its present share.
    `page_url` is the admin port's address for readers; None: no links.
    """

    gateway: str
    wall: float
    set_in: str
    enforce: bool
    page_url: str | None = None
    shares: bool = False


def json_body(notice: Notice, context: NoticeContext) -> dict[str, Any]:
    row = notice.row
    kind = KINDS[row.kind]
    return {
        "version": VERSION,
        "event": notice.event,
        "at": iso(context.wall),
        "gateway": context.gateway,
        "entity": {
            "user": row.user or None,
            "client_id": row.client_id or None,
            "ip": row.ip or None,
            "group": row.group or None,
        },
        "broker": row.broker or None,
        "kind": row.kind,
        "key": kind.config_key,
        "unit": kind.limit_unit,
        "limit": row.limit,
        "rate": row.rate,
        "used_ratio": row.used_ratio,
        "quota": {"entity": row.level, "set_in": context.set_in},
        "enforced": context.enforce,
        "episode_began": iso(context.wall - notice.seconds),
        "episode_seconds": round(notice.seconds, 3),
        "throttled_requests": notice.throttled_requests,
        "peak_used_ratio": notice.peak_ratio,
        "addresses": list(row.addresses),
        "page": _page(notice, context),
    }


def slack_body(notice: Notice, context: NoticeContext) -> dict[str, Any]:
    """`text` in Slack's mrkdwn, which Mattermost and Rocket.Chat read as Markdown.

    Names are inline code on one line, so that no client can mention a channel, place a link or add a line to the text.
    """
    text = sentence(notice, context, _as_code)
    page = _page(notice, context)
    return {"text": text if page is None else f"{text} <{_escaped(page)}|Details>"}


def sentence(notice: Notice, context: NoticeContext, show: Callable[[str], str] = str) -> str:
    """The event as text, also for the log. `show` makes names harmless for the reader of the text."""
    row = notice.row
    kind = KINDS[row.kind]
    entity = ", ".join(f"{key} {show(name[:_LONGEST_NAME])}" for key, name in _names(row).items())
    limit = "no limit" if row.limit is None else kind.text(row.limit)
    place = (f" at broker {row.broker}" if row.broker else "") + (f" ({context.set_in})" if context.set_in else "")
    quota = f"{kind.config_key} {limit} of {show(row.level)}{place}"
    whole, own = ("share", f"its present share of {quota}") if context.shares else ("quota", f"its quota {quota}")
    if notice.event == NEAR:
        return f"{entity} uses {row.used_ratio:.0%} of {own}. Throttling begins at 100%."
    if notice.event == THROTTLED:
        addresses = f" Addresses: {', '.join(row.addresses[-_SHOWN_ADDRESSES:])}." if row.addresses else ""
        use = f"use {kind.text(row.rate)}, {row.used_ratio:.0%} of the {whole}"
        if not context.enforce:
            state = f"is over, and not throttled by, the unenforced {whole} {'of ' if context.shares else ''}{quota}: {use}"
        elif context.shares:
            state = f"is throttled by {own}: {use}"
        else:
            # No used fraction: it is that of the burst, about 100% for a throttled client, whatever its rate.
            state = f"is throttled by {quota}: mean rate {kind.text(row.rate)} with the burst"
        return f"{entity} {state}.{addresses}"
    throttled = f"{notice.throttled_requests:,} requests were throttled" if THROTTLED in notice.reported else "no throttle"
    return (
        f"{entity} has been below {own} for {notice.quiet_seconds:,.0f} s. In the"
        f" {notice.seconds - notice.quiet_seconds:,.0f} s before: {throttled}, peak {notice.peak_ratio:.0%} of the {whole}."
    )


def _as_code(name: str) -> str:
    """The name as inline code. A backtick would end the code, so it becomes an escape as control characters do."""
    return f"`{_escaped(printable(name).replace('`', _BACKTICK))}`"


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _page(notice: Notice, context: NoticeContext) -> str | None:
    if context.page_url is None:
        return None
    return f"{context.page_url.rstrip('/')}/entities?{urlencode(_names(notice.row))}"


def _names(row: UsageRow) -> dict[str, str]:
    """The parts of the entity that have a name."""
    parts = (("user", row.user), ("client-id", row.client_id), ("ip", row.ip), ("group", row.group))
    return {key: name for key, name in parts if name}
