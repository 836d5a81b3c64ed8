"""The expected rows of each report over the scenario, computed in plain Python without the reports' code."""

import datetime as dt
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from math import ceil
from typing import Any

from gateway.events import GroupSample, ShadowSample
from tests.gateway.reports.scenario import (
    CONFIGS,
    EXPIRED_GRANTS,
    GROUP_RIGHTS,
    HOURS,
    MEMBER_OF,
    MINUTE,
    QUOTA_CHANGES,
    REJECTED_CONNECTIONS,
    SHADOWS,
    START,
    TOPIC_REJECTIONS,
    VOLUME_CHANGES,
    Bucket,
    Decision,
    Use,
    decisions,
    uses,
)

Rows = list[dict[str, Any]]
ENTITY = ("kind", "user", "client_id", "ip", "group")


def moment(milliseconds: int) -> dt.datetime:
    return dt.datetime(1970, 1, 1) + dt.timedelta(milliseconds=milliseconds)  # noqa: DTZ001


def _decisions_of() -> Mapping[tuple[Any, ...], list[Decision]]:
    found = defaultdict(list)
    for decision in decisions():
        found[decision.bucket.entity].append(decision)
    return found


def _minutes_of() -> Mapping[tuple[Any, ...], Mapping[int, list[Use]]]:
    """Return each entity's use by minute, summed over gateways. Each broker with quotas of its own has its own minutes."""
    found: dict[tuple[Any, ...], dict[int, list[Use]]] = defaultdict(lambda: defaultdict(list))
    for use in uses():
        broker = (use.bucket.quota or "").partition(" at broker ")[2]
        found[use.bucket.entity][use.at + int(broker or 0)].append(use)
    return found


def _last_limit(entity: tuple[Any, ...]) -> tuple[str | None, float | None]:
    """Return the entity's last quota and the highest limit of its last hour."""
    seen: list[tuple[int, Bucket]] = [(use.at, use.bucket) for use in uses() if use.bucket.entity == entity]
    seen += [(decision.at, decision.bucket) for decision in decisions() if decision.bucket.entity == entity]
    last_hour = max(at // (60 * MINUTE) for at, _ in seen)
    limits = [bucket.limit for at, bucket in seen if at // (60 * MINUTE) == last_hour and bucket.limit is not None]
    return seen[-1][1].quota, max(limits, default=None)


def active_seconds(minute: Sequence[Use]) -> int:
    """Return the seconds of the busiest gateway. Partial samples count as those of one gateway, at most 60."""
    whole = [use.seconds or 60 for use in minute if not use.partial]
    return max(*whole, min(60, sum(use.seconds or 60 for use in minute if use.partial)), 0)


def _busiest(seconds: Iterable[tuple[str, int]]) -> int:
    """Return the largest sum of a gateway."""
    found: dict[str, int] = defaultdict(int)
    for gateway, count in seconds:
        found[gateway] += count
    return min(60, max(found.values()))


def _sum(values: Iterable[int | None]) -> int:
    return sum(value for value in values if value is not None)


def top_throttled() -> Rows:
    all_ms = sum(decision.ms for decision in decisions() if decision.enforced)
    rows = []
    for entity, of_entity in _decisions_of().items():
        held = [decision for decision in of_entity if decision.enforced]
        noted = [decision for decision in of_entity if not decision.enforced]
        longest = max(of_entity, key=lambda decision: decision.ms)
        quota, limit = _last_limit(entity)
        rows.append(
            dict(zip(ENTITY, entity, strict=True))
            | {
                "quota": quota,
                "limit": limit,
                "throttled": len(held),
                "throttle_ms": sum(decision.ms for decision in held),
                "throttle_max_ms": longest.ms,
                "share": round(sum(decision.ms for decision in held) / all_ms, 4) if held else None,
                "throttled_minutes": len({decision.at // MINUTE for decision in held}),
                "noted": len(noted),
                "noted_ms": sum(decision.ms for decision in noted),
                "amount": float(sum(decision.amount for decision in of_entity)),
                "peak_rate": max((decision.rate for decision in of_entity if decision.rate is not None), default=None),
                "since": moment(min(decision.at for decision in of_entity)),
                "until": moment(max(decision.at for decision in of_entity)),
                "address": longest.address,
                "broker": longest.broker,
                "api": longest.api,
            }
        )
    return rows


def upper(value: int) -> int:
    """Return the upper bound of the value's histogram slot: exact below 32, then 16 slots per power of two."""
    if value < 32:
        return value
    step = 2 ** (len(f"{value:b}") - 5)
    return (value // step + 1) * step - 1


def _at_rank(values: Sequence[int], thousandths: int) -> int:
    """Return the value at the nearest rank."""
    return sorted(values)[ceil(len(values) * thousandths / 1000) - 1]


def throttle_percentiles() -> Rows:
    times: dict[tuple[Any, ...], list[int]] = defaultdict(list)
    for decision in decisions():
        at = moment(decision.at)
        times[at.date(), at.hour, decision.bucket.kind, decision.enforced].append(decision.ms)
    return [
        dict(zip(("date", "hour", "kind", "enforced"), key, strict=True))
        | {"throttled": len(values)}
        | {
            name: upper(_at_rank(values, thousandths))
            for name, thousandths in (("p50_ms", 500), ("p90_ms", 900), ("p99_ms", 990), ("p999_ms", 999))
        }
        for key, values in times.items()
    ]


def utilisation() -> Rows:
    rows = []
    for entity, minutes in _minutes_of().items():
        with_limit = [of for of in minutes.values() if of[0].bucket.limit]
        seconds = [active_seconds(of) for of in with_limit]
        limited = [
            (sum(use.amount for use in of), (of[0].bucket.limit or 0) * active)
            for of, active in zip(with_limit, seconds, strict=True)
        ]
        if not limited:
            continue
        quota, limit = _last_limit(entity)
        held = {decision.at // MINUTE for decision in _decisions_of().get(entity, []) if decision.enforced}
        above_80 = sum(used >= 0.8 * allowed for used, allowed in limited)
        above_100 = sum(used >= allowed for used, allowed in limited)
        rows.append(
            dict(zip(ENTITY, entity, strict=True))
            | {
                "quota": quota,
                "limit": limit,
                "minutes": len(limited),
                "active_seconds": sum(seconds),
                "used_amount": sum(used for used, _ in limited),
                "mean_utilisation": round(sum(used for used, _ in limited) / sum(allowed for _, allowed in limited), 4),
                "peak_utilisation": round(max(used / allowed for used, allowed in limited), 4),
                "above_80_minutes": above_80,
                "above_80_fraction": round(above_80 / len(limited), 4),
                "above_100_minutes": above_100,
                "above_100_fraction": round(above_100 / len(limited), 4),
                "throttled_minutes": len(held),
                "throttled_fraction": round(len(held) / len(limited), 4),
            }
        )
    return rows


def noisy_neighbours() -> Rows:
    bytes_used: dict[int, dict[tuple[Any, Any], int]] = defaultdict(lambda: defaultdict(int))
    latency: dict[tuple[Any, Any], dict[int, tuple[float, int]]] = defaultdict(dict)
    for use in uses():
        who = (use.bucket.user, use.bucket.client_id)
        if use.bucket.group is not None:
            continue
        if use.bucket.kind in ("produce", "fetch"):
            bytes_used[use.at // MINUTE][who] += use.amount
        if use.latency_ms is not None:
            latency[who][use.at // MINUTE] = (use.latency_ms, use.requests)
    held: dict[int, dict[tuple[Any, Any], int]] = defaultdict(lambda: defaultdict(int))
    for decision in decisions():
        if decision.bucket.kind == "volume":  # every other kind is the client's own quota
            held[decision.at // MINUTE][decision.bucket.user, decision.bucket.client_id] += decision.ms
    slowed: dict[int, set[tuple[Any, Any]]] = defaultdict(set)
    for who, minutes in latency.items():
        for minute, (total, requests) in minutes.items():
            of_hour = [one for other, one in minutes.items() if other // 60 == minute // 60]
            usual = sum(one for one, _ in of_hour) / sum(one for _, one in of_hour)
            if total / requests >= 2 * usual and total / requests >= usual + 10:
                slowed[minute].add(who)
    pairs: dict[tuple[Any, ...], list[tuple[int | None, bool, int, int]]] = defaultdict(list)
    for minute in held.keys() | slowed.keys():
        top = sorted(bytes_used[minute].items(), key=lambda item: -item[1])[:3]
        for who in held[minute].keys() | slowed[minute]:
            for other, used in top:
                if used > bytes_used[minute].get(who, 0) and not _same_client(who, other):
                    everyone = sum(bytes_used[minute].values())
                    pairs[(*who, *other)].append((held[minute].get(who), who in slowed[minute], used, everyone))
    return [
        dict(zip(("user", "client_id", "by_user", "by_client_id"), pair, strict=True))
        | {
            "minutes": len(together),
            "slowed_minutes": sum(slow for _, slow, _, _ in together),
            "held_minutes": sum(ms is not None for ms, _, _, _ in together),
            "held_ms": _sum(ms for ms, _, _, _ in together),
            "by_bytes": float(sum(used for _, _, used, _ in together)),
            "by_share": round(sum(used for _, _, used, _ in together) / sum(everyone for _, _, _, everyone in together), 4),
        }
        for pair, together in pairs.items()
    ]


def _same_client(one: tuple[Any, Any], other: tuple[Any, Any]) -> bool:
    """Return True if two entities share a name, and no name differs."""
    names = [(name, its) for name, its in zip(one, other, strict=True) if name is not None and its is not None]
    return bool(names) and all(name == its for name, its in names)


def right_sizing() -> Rows:
    rows = []
    for entity, minutes in _minutes_of().items():
        held: dict[int, int] = defaultdict(int)
        for decision in _decisions_of().get(entity, []):
            if decision.enforced:
                held[decision.at // MINUTE] += decision.ms
        rates, wanted, free = [], 0, 0.0
        for at, of in minutes.items():
            amount, seconds = sum(use.amount for use in of), active_seconds(of)
            if amount > 0 and at // MINUTE in held:
                wanted += amount
                free += max(seconds - held[at // MINUTE] / 1000, seconds / 10)
            elif amount > 0:
                rates.append(ceil(amount * 60 / seconds))
        rows.append(
            dict(zip(ENTITY, entity, strict=True))
            | {
                "minutes": len(rates),
                "limit_now": _last_limit(entity)[1],
                "throttled_minutes": len(held),
                "throttled_fraction": round(len(held) / (len(rates) + len(held)), 4),
                "demand_estimate": round(wanted / free, 3) if free else None,
            }
            | {
                f"limit_for_{percent}_percent": round(upper(_at_rank(rates, 1000 - 10 * percent)) / 60, 3) if rates else None
                for percent in (0, 1, 5, 10, 25)
            }
        )
    return rows


def mutations() -> Rows:
    rows = []
    for entity, minutes in _minutes_of().items():
        if entity[0] != "controller_mutation":
            continue
        amounts = [sum(use.amount for use in of) for of in minutes.values()]
        held = _decisions_of()[entity]
        longest = max(held, key=lambda decision: decision.ms)
        quota, limit = _last_limit(entity)
        rows.append(
            {
                "user": entity[1],
                "client_id": entity[2],
                "group": entity[4],
                "quota": quota,
                "limit": limit,
                "mutations": float(sum(amounts)),
                "peak_minute": float(max(amounts)),
                "requests": sum(use.requests for of in minutes.values() for use in of),
                "throttled": len(held),
                "throttled_mutations": float(sum(decision.amount for decision in held)),
                "throttle_ms": sum(decision.ms for decision in held),
                "throttle_max_ms": longest.ms,
                "api": longest.api,
                "address": longest.address,
                "since": moment(min(decision.at for decision in held)),
            }
        )
    return rows


def topics() -> Rows:
    rows = []
    for topic, reason in (("payments", "quota"), ("logs", "quota"), ("logs", "MESSAGE_TOO_LARGE")):
        of_topic = [each for each in TOPIC_REJECTIONS if (each.topic, each.reason) == (topic, reason)]
        last = max(of_topic, key=lambda each: each.last_ms)
        rows.append(
            {
                "topic": topic,
                "reason": reason,
                "enforced": True,
                "user": "greedy",
                "client_id": None,
                "rejections": sum(each.count for each in of_topic),
                "bytes": sum(each.amount for each in of_topic),
                "peak_rate": max(each.rate for each in of_topic if each.rate),
                "limit": last.limit,
                "peak_total_rate": max(each.total_rate for each in of_topic if each.total_rate),
                "total_limit": 1e7,
                "since": moment(min(each.time_ms for each in of_topic)),
                "until": moment(last.last_ms),
            }
        )
    return rows


def volumes() -> Rows:
    ends = [START + minute * MINUTE for minute in (50, 121, 60 * HOURS, 71, 116, 100, 100)]
    return [
        {
            "gateway": change.gateway,
            "since": moment(change.time_ms),
            "until": moment(end),
            "seconds": (end - change.time_ms) / 1000,
            "state": change.state,
            "previous": change.previous,
            "enforced": change.enforced,
            "factor": change.factor,
            "reason": change.reason,
            "broker": 2,
            "volume": "/var/kafka",
            "capacity_bytes": 1000,
            "consumed_bytes": change.consumed_bytes,
            "used": (change.consumed_bytes or 0) / 1000,
        }
        for change, end in zip(VOLUME_CHANGES, ends, strict=True)
    ]


def client_manners() -> Rows:
    rows: Rows = []
    for entity, of_entity in _decisions_of().items():
        early = [decision.early_ms for decision in of_entity if decision.early_ms is not None]
        if early:
            rows.append(
                {"what": "early_sends", "reason": None, "listener": None}
                | dict(zip(ENTITY, entity, strict=True))
                | {
                    "address": max(of_entity, key=lambda decision: decision.ms).address,
                    "count": len(early),
                    "throttled": len(of_entity),
                    "early_fraction": round(len(early) / len(of_entity), 4),
                    "early_mean_ms": round(sum(early) / len(early), 3),
                    "early_max_ms": max(early),
                    "since": moment(min(decision.at for decision in of_entity)),
                    "until": moment(max(decision.at for decision in of_entity)),
                }
            )
    refusals = (("10.0.0.9", "max_per_ip", None), ("10.0.0.8", "authentication", None), ("10.0.0.8", "max_per_user", "greedy"))
    for address, reason, user in refusals:
        rejected = [each for each in REJECTED_CONNECTIONS if (each.address, each.reason) == (address, reason)]
        rows.append(
            {
                "what": "connections_rejected",
                "kind": "connection",
                "user": user,
                "client_id": None,
                "ip": None,
                "group": None,
                "address": address,
                "reason": reason,
                "listener": "clients",
                "count": sum(each.count for each in rejected),
                "throttled": None,
                "early_fraction": None,
                "early_mean_ms": None,
                "early_max_ms": None,
                "since": moment(min(each.time_ms for each in rejected)),
                "until": moment(max(each.last_ms for each in rejected)),
            }
        )
    return rows


def shadow_limits() -> Rows:
    def figures(samples: list[ShadowSample]) -> dict[str, object]:
        minutes = {at: [each for each in samples if each.time_ms == at] for at in {each.time_ms for each in samples}}
        waited = sum(each.throttle_ms for each in samples) / 1000
        seconds = sum(_busiest((each.gateway, each.active_seconds) for each in some) for some in minutes.values())
        return {
            "kind": "produce",
            "user": samples[0].user,
            "client_id": None,
            "ip": None,
            "group": samples[0].group,
            "quota": samples[0].quota,
            "limit": samples[0].limit,
            "active_minutes": len(minutes),
            "throttled_minutes": sum(any(each.count for each in some) for some in minutes.values()),
            "active_seconds": seconds,
            "used_amount": sum(each.amount for each in samples),
            "throttled": sum(each.count for each in samples),
            "throttle_ms": sum(each.throttle_ms for each in samples),
            "throttle_max_ms": max(each.throttle_max_ms for each in samples),
            "delayed_fraction": round(waited / (waited + seconds), 4),
            "since": moment(min(each.time_ms for each in samples)),
            "until": moment(max(each.time_ms for each in samples) + MINUTE),
        }

    parts: dict[object, list[ShadowSample]] = {}
    for each in SHADOWS:
        parts.setdefault((each.quota, each.limit), []).append(each)
    return [figures(samples) for samples in parts.values()]


def config_changes() -> Rows:
    config = CONFIGS[0]
    nothing = dict.fromkeys(
        ("quota", "kind", "old_limit", "new_limit", "source", "principal", "result", "config_version", "changes")
    )
    return [
        {"time": moment(config.time_ms), "what": "config", "gateways": 3}
        | nothing
        | {"result": "success", "config_version": "7, 8, 9", "changes": "one; two"}
        | _around(config.time_ms, lambda bucket: True, CONFIGS[-1].time_ms),
        *(
            {"time": moment(quota.time_ms), "what": "quota_change", "gateways": gateways}
            | nothing
            | {"quota": "user=greedy", "kind": "produce", "old_limit": quota.old_limit, "new_limit": quota.new_limit}
            | {"source": "api", "principal": "User:admin"}
            | _around(quota.time_ms, lambda bucket: bucket.entity == ("produce", "greedy", None, None, None))
            for quota, gateways in ((QUOTA_CHANGES[0], 2), (QUOTA_CHANGES[2], 1), (QUOTA_CHANGES[3], 1))
        ),
        {"time": moment(EXPIRED_GRANTS[0].time_ms), "what": "grant_expired", "gateways": 2}
        | nothing
        | {"quota": "user=greedy"}
        | _around(EXPIRED_GRANTS[0].time_ms, lambda bucket: False),
    ]


def _around(at: int, concerns: Any, last: int | None = None) -> dict[str, Any]:
    """Return the figures of the 60 minutes before the minute of `at`, and of the 60 minutes after that of the last report."""
    minute, end = at // MINUTE, (at if last is None else last) // MINUTE
    row: dict[str, Any] = {}
    for name, span in (("before", range(minute - 60, minute)), ("after", range(end + 1, end + 61))):
        used = [use for use in uses() if use.at // MINUTE in span and concerns(use.bucket)]
        held = [decision for decision in decisions() if decision.at // MINUTE in span and concerns(decision.bucket)]
        row[f"{name}_minutes"] = len({each.at // MINUTE for each in (*used, *held)})
        row[f"{name}_throttled"] = sum(decision.enforced for decision in held)
        row[f"{name}_throttle_ms"] = sum(decision.ms for decision in held if decision.enforced)
        # The members have the use of a group in rows of their own.
        row[f"{name}_amount"] = float(sum(use.amount for use in used if use.bucket.group is None))
    return row


def groups() -> Rows:
    used: dict[tuple[str, int], int] = defaultdict(int)
    for use in uses():
        if use.bucket.group is not None:
            used[use.bucket.group, use.at // MINUTE] += use.amount
    rights: dict[tuple[str, int], list[GroupSample]] = defaultdict(list)
    for sample in GROUP_RIGHTS:
        rights[sample.group, sample.time_ms // MINUTE].append(sample)
    hours: dict[tuple[int, str], list[int]] = defaultdict(list)
    for group, minute in used.keys() | rights.keys():
        hours[minute // 60, group].append(minute)

    def above(group: str, minute: int) -> float:
        return used[group, minute] - rights[group, minute][0].entitlement * 60

    def lent(group: str, minute: int) -> float:
        siblings = [above(each, minute) for each in ("payments", "batch", "night")]
        taken, left = sum(one for one in siblings if one > 0), -sum(one for one in siblings if one < 0)
        return min(1.0, taken / left) * max(0.0, -above(group, minute)) if left else 0.0

    def row(hour: int, group: str, minutes: list[int]) -> dict[str, Any]:
        sampled = [rights[group, minute] for minute in minutes if (group, minute) in rights]
        parent = sampled[0][0].parent if sampled else None
        borrowed = [max(0.0, above(group, minute)) for minute in minutes] if parent else []
        waited = {some[0].time_ms // MINUTE: _busiest((each.gateway, each.waited_seconds) for each in some) for some in sampled}
        held = [each for each in decisions() if each.bucket.group == group and each.at // MINUTE // 60 == hour]
        return {
            "date": moment(hour * 60 * MINUTE).date(),
            "hour": hour % 24,
            "kind": "produce",
            "group": group,
            "parent": parent,
            "used_amount": float(sum(used[group, minute] for minute in minutes)),
            "guarantee": sampled[0][0].guarantee if sampled else None,
            "entitlement": sampled[0][0].entitlement if sampled else None,
            "lent_amount": round(sum(lent(group, minute) for minute in minutes), 3) if parent else None,
            "borrowed_amount": round(sum(borrowed), 3) if parent else None,
            "borrowed_minutes": sum(one > 0 for one in borrowed),
            "waited_seconds": sum(waited.values()) if sampled else None,
            "short_minutes": sum(w >= 30 and used[group, at] < 0.97 * 400 * w for at, w in waited.items()),
            "throttled": len(held),
            "throttle_ms": sum(each.ms for each in held),
        }

    return [row(hour, group, minutes) for (hour, group), minutes in hours.items()]


def _owners(bucket: Bucket) -> list[tuple[str, str]]:
    """Return the owner, and `no group` for a client outside of all groups."""
    if bucket.group is not None:
        return [("parent group" if bucket.group == "cluster" else "group", bucket.group)]
    outside = [] if bucket.user in MEMBER_OF else [("no group", "")]
    if bucket.user not in (None, "ANONYMOUS", "<other>"):
        return [("user", str(bucket.user)), *outside]
    if bucket.client_id and bucket.user != "<other>":
        return [("client-id", bucket.client_id), *outside]
    return [("unowned", ""), *outside]


def _use_of_owners(first: int) -> Mapping[tuple[str, ...], dict[str, Any]]:
    """Return the figures by the first characters of the date (10: days, 7: months), owner and kind."""
    intervals: dict[tuple[str, ...], dict[int, int]] = defaultdict(lambda: defaultdict(int))
    for use in uses():
        if use.bucket.kind in ("produce", "fetch"):
            for owner in _owners(use.bucket):
                key = (str(moment(use.at).date())[:first], *owner, use.bucket.kind)
                intervals[key][use.at // (5 * MINUTE)] += use.amount
    return {
        key: {
            "used_bytes": None if "group" in key[1] else sum(of.values()),
            "group_bytes": sum(of.values()) if "group" in key[1] else None,
            "peak_rate": _half_up(max(of.values()) / 300),
            "rate_95": _half_up(_at_rank(list(of.values()), 950) / 300),
        }
        for key, of in intervals.items()
    }


def _half_up(value: float) -> int:
    return int(value + 0.5)


def chargeback() -> Rows:
    return [
        {"date": dt.date.fromisoformat(day), "owner_type": owner_type, "owner": owner, "kind": kind} | figures
        for (day, owner_type, owner, kind), figures in _use_of_owners(10).items()
    ]


def trend() -> Rows:
    """All hours of the scenario are in one month."""
    nothing = dict.fromkeys(
        ("before_bytes", "before_group_bytes", "peak_rate_before", "rate_95_before", "change_fraction", "days_before")
    )
    return [
        {"month": dt.date.fromisoformat(f"{month}-01"), "owner_type": owner_type, "owner": owner, "kind": kind, "days": 2}
        | nothing
        | figures
        for (month, owner_type, owner, kind), figures in _use_of_owners(7).items()
    ]


EXPECTED = {
    make.__name__: make
    for make in (
        top_throttled,
        throttle_percentiles,
        utilisation,
        noisy_neighbours,
        right_sizing,
        mutations,
        topics,
        volumes,
        client_manners,
        shadow_limits,
        config_changes,
        chargeback,
        trend,
        groups,
    )
}
