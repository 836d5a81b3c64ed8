"""Merges the JSON answers of several workers: pure functions."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from gateway.admin.json_text import JsonObject

_VOLUME_STATES = ("OPEN", "THROTTLE", "PAUSE")
_TOPIC_SUMS = ("appended_bytes", "throttled_bytes", "throttled_total")


def _if_configured(merge: Callable[[Sequence[JsonObject]], JsonObject]) -> Callable[[Sequence[JsonObject]], JsonObject]:
    """Merge the answers of the workers in which a feature is configured."""

    def merged(answers: Sequence[JsonObject]) -> JsonObject:
        configured = [answer for answer in answers if answer["configured"]]
        return merge(configured) if configured else {"configured": False}

    return merged


@_if_configured
def merge_topics(answers: Sequence[JsonObject]) -> JsonObject:
    """`/api/topics`: bytes are added; a topic is rejected if any worker rejects it.

    A rate is the highest of all, because workers that share the thresholds know the sum of their rates.
    """
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for answer in answers:
        for row in answer["rows"]:
            merged = rows.setdefault((row["topic"], row["broker"]), row)
            if merged is row:
                continue
            rows[row["topic"], row["broker"]] = {
                **merged,
                **{key: merged[key] + row[key] for key in _TOPIC_SUMS},
                "rate": max(merged["rate"], row["rate"]),
                "refused_bytes": merge_counts([merged["refused_bytes"], row["refused_bytes"]]),
                "rejected": merged["rejected"] or row["rejected"],
            }
    brokers: dict[str, dict[str, Any]] = {}
    for total in [total for answer in answers for total in (answer["brokers"] or [answer["total"]])]:
        same = brokers.setdefault(total["broker"], total)
        more = {"rate": max(same["rate"], total["rate"]), "over": same["over"] or total["over"]}
        brokers[total["broker"]] = {**same, **more}
    totals = list(brokers.values())
    busiest = max(totals, key=lambda total: float(total["rate"]))
    at_brokers = totals if any(answer["brokers"] for answer in answers) else []
    return {**answers[0], "total": busiest, "rows": list(rows.values()), "brokers": at_brokers}


@_if_configured
def merge_volumes(answers: Sequence[JsonObject]) -> JsonObject:
    """`/api/volumes`: all workers watch the same volumes, so the strictest answer counts."""
    return max(answers, key=lambda answer: (_VOLUME_STATES.index(answer["state"]), answer["delay_seconds"]))


@_if_configured
def merge_sharing(answers: Sequence[JsonObject]) -> JsonObject:
    """`/api/sharing`: each worker is a member, and the answer with the fewest peers counts."""
    return min(answers, key=lambda answer: (answer["reachable"], answer["members"]))


def merge_groups(answers: Sequence[JsonObject]) -> JsonObject:
    """`/api/groups`: every worker divides for all of them, so they differ by the age of their news alone."""
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for answer in answers:
        for row in answer["groups"]:
            merged = rows.setdefault((row["kind"], row["group"]), dict(row))
            merged["use"] = max(merged["use"], row["use"])
            merged["wants_more"] = merged["wants_more"] or row["wants_more"]
    return {"configured": len(rows) > 0, "groups": list(rows.values())}


def merge_config(own: JsonObject, answers: Iterable[tuple[int, JsonObject]]) -> JsonObject:
    """`/api/config`: the supervisor's own answer, and the difference of each worker to it. `answers` have the worker's number.

    `notify` is for the supervisor alone. The marks of its addresses differ by process.
    """
    wanted = {**own["config"], "notify": None}
    workers = [
        {
            "worker": number,
            "version": answer["version"],
            "current": {**answer["config"], "notify": None} == wanted,
            "last_reload": answer["last_reload"],
        }
        for number, answer in answers
    ]
    return {**own, "workers": workers}


def merge_facts(answers: Sequence[JsonObject], config: JsonObject) -> JsonObject:
    """A snapshot of the live page without its entities and its history. `config` is the supervisor's own part of it.

    If a worker has refused the last changed file, that is the last reload.
    """
    reloads = [answer["config"]["last_reload"] for answer in answers]
    refused = [reload for reload in reloads if reload is not None and not reload["success"]]
    latest = max(answers, key=lambda answer: answer["config"]["version"])
    now = merge_histories([[answer["now"]] for answer in answers if answer["now"] is not None])
    volumes = [{"configured": True, **answer["volumes"]} for answer in answers if answer["volumes"] is not None]
    brokers = {broker["id"]: broker for answer in answers for broker in answer["brokers"]}
    return {
        **latest,
        "config": {**config, "last_reload": refused[0]} if refused else config,
        "connections": sum(answer["connections"] for answer in answers),
        "now": now[-1] if now else None,
        "brokers": [brokers[broker] for broker in sorted(brokers)],
        "volumes": merge_volumes(volumes) if volumes else None,
    }


def merge_histories(histories: Sequence[Sequence[Mapping[str, float]]]) -> list[dict[str, float]]:
    """The sum of the live page's last minutes. Each worker has a point for each second, but not for the same moments."""
    merged = []
    for age in range(max(map(len, histories), default=0), 0, -1):
        points = [history[-age] for history in histories if len(history) >= age]
        merged.append(
            {
                "at": max(point["at"] for point in points),
                "muted": sum(point["muted"] for point in points),
                "throttles": sum(point["throttles"] for point in points),
            }
        )
    return merged


def merge_counts(counts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    merged: dict[str, float] = {}
    for each in counts:
        for name, count in each.items():
            merged[name] = merged.get(name, 0) + count
    return merged
