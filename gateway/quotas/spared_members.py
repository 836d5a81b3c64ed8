"""Shorter waits than a bucket's debt, for members of consumer groups (`gateway.proxy.membership`). The debt itself stays."""

from typing import Final

from gateway.quotas.bucket import LEAST_DELAY, Bucket, QuotaVerdict
from gateway.quotas.entity import short_name
from gateway.quotas.owned_places import owner_of

MEMBERS_PER_SECOND: Final = 10
"""The members of consumer groups that may come back while a bucket is in debt. A rate of requests may be smaller than that."""

MAX_LINES: Final = 16
"""The maximum number of lines of waiting members, for each bucket. The last one is for all further clients."""

_FURTHER: Final = "further"


def shorten(bucket: Bucket, delay: float, shorter: float) -> None:
    """Correct the bucket's counters, as a client waits for a shorter time than its verdict says."""
    bucket.throttle_seconds_total += shorter - delay
    bucket.totals.correct(delay, shorter)


def line_of(bucket: Bucket, user: str, client_id: str, ip: str) -> str:
    """The line for `let_in` of a client of the bucket: its owner's, or in a user's own bucket that of its client-id."""
    return owner_of(user, ip) if bucket.resolution.tags.user is None else short_name(client_id)


def let_in(bucket: Bucket, line: str, verdict: QuotaVerdict, now: float) -> QuotaVerdict:
    """Shorten the wait of a connection's first request, as a member of a consumer group may come back with it.

    At most `MEMBERS_PER_SECOND` such requests pass in spite of a debt, so that reconnecting gains little. All lines that
    wait share them evenly. No turn is taken back: for the old turns of one line, a second one adds half as many, a third one a
    third. So up to 3.4 times as many pass with `MAX_LINES`.
    """
    if not verdict[1]:
        return verdict
    lines = bucket.member_lines
    for each in [each for each, free in lines.items() if free <= now]:
        del lines[each]
    if line not in lines and len(lines) >= MAX_LINES - 1:
        line = _FURTHER
    wait = max(lines.get(line, now) - now, 0.0)
    latest = now + min(wait, verdict[0])
    turn = bucket.first_requests.member_turn(latest, now)
    if turn < latest:  # a member that is gone has left it
        wait = max(turn - now, 0.0)
    elif wait >= verdict[0]:
        return verdict
    else:
        lines[line] = now + wait + len({*lines, line}) / MEMBERS_PER_SECOND
    shorten(bucket, verdict[0], wait)
    return (wait, True) if wait >= LEAST_DELAY else (0.0, False)
