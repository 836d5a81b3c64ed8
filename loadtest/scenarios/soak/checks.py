"""The checks of a soak, as functions of its samples, journals and logs."""

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from loadtest.scenarios.soak.journal import Fate, Sent
from loadtest.scenarios.soak.observation import Counters, Observed, series
from loadtest.scenarios.soak.process_samples import CLIENT, DEAD, LISTENING, OTHER, UPSTREAM, ProcessSample
from loadtest.scenarios.soak.visitor import CALM
from protocol.cursor import LENGTH_BYTES

MOST_PERCENT_PER_HOUR: Final = 2.0
LEAST_MINUTES: Final = 20.0
"""A process whose samples behind its warm-up span less time has no slope."""

_NUMBERS: Final = re.compile(r"\d+")
_T_95: Final = 1.96
_BLOCK_SECONDS: Final = 300.0
"""Neighbouring samples are alike, so the regression uses the means of blocks. Their errors are nearly independent."""


@dataclass(frozen=True)
class Slope:
    """The growth of a process's memory in percent of its mean per hour, with the ends of the 95 % interval."""

    role: str
    pid: int
    minutes: float
    mean_mib: float
    percent_per_hour: float
    low: float
    high: float


def memory_slopes(samples: Sequence[Observed], warm_up: float) -> list[Slope]:
    """The slope of each process's anonymous memory, or of its PSS. The first `warm_up` seconds of each process do not count."""
    lives: dict[tuple[str, int], list[tuple[float, ProcessSample]]] = {}
    for seen in samples:
        for one in seen.processes:
            lives.setdefault((one.role, one.pid), []).append((seen.at, one))
    found = []
    for (role, pid), life in lives.items():
        warm = [(at, one) for at, one in life if at >= life[0][0] + warm_up]
        counted = [(at, one.anonymous) for at, one in warm if one.anonymous] or [(at, one.pss) for at, one in warm]
        if counted and counted[-1][0] - counted[0][0] >= LEAST_MINUTES * 60:
            found.append(_slope(role, pid, counted))
    return found


def _slope(role: str, pid: int, points: Sequence[tuple[float, float]]) -> Slope:
    first = points[0][0]
    blocks: dict[int, list[tuple[float, float]]] = {}
    for at, value in points:
        blocks.setdefault(int((at - first) / _BLOCK_SECONDS), []).append((at, value))
    means = np.array([np.mean(block, axis=0) for block in blocks.values()])
    hours, sizes = (means[:, 0] - means[:, 0].mean()) / 3600, means[:, 1]
    mean, spread = float(sizes.mean()), float((hours**2).sum())
    slope = float((hours * sizes).sum()) / spread
    rest = sizes - mean - slope * hours
    error = math.sqrt(float((rest**2).sum()) / max(len(sizes) - 2, 1) / spread)
    percent, margin = slope / mean * 100, _quantile(len(sizes) - 2) * error / mean * 100
    minutes = (points[-1][0] - first) / 60
    return Slope(role, pid, round(minutes, 1), round(mean / 2**20, 2), round(percent, 3),
                 round(percent - margin, 3), round(percent + margin, 3))  # fmt: skip


def _quantile(freedom: int) -> float:
    """Student's t for a two-sided interval of 95 %, by Cornish and Fisher's expansion."""
    z, freedom = _T_95, max(freedom, 1)
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)


def memory_problems(slopes: Iterable[Slope]) -> list[str]:
    """A sentence for each process that grows by more than `MOST_PERCENT_PER_HOUR`."""
    return [
        f"{slope.role} ({slope.pid}) grows by {slope.percent_per_hour:.2f} % an hour"
        for slope in slopes
        if slope.percent_per_hour > MOST_PERCENT_PER_HOUR
    ]


def descriptor_problems(
    before: Mapping[str, Mapping[str, int]], after: Mapping[str, Mapping[str, int]], own_upstream: int
) -> list[str]:
    """Compare the descriptors of the empty gateway by role and kind. `own_upstream` is the most connections to brokers of its
    own that a process may have after the run, beyond those before."""
    problems = []
    for role, kinds in after.items():
        earlier = before[role]
        problems += [
            f"{role}: {kinds.get(kind, 0)} {kind} descriptors after the run, {earlier.get(kind, 0)} before"
            for kind in (CLIENT, DEAD, LISTENING, OTHER)
            if kinds.get(kind, 0) > earlier.get(kind, 0)
        ]
        if kinds.get(UPSTREAM, 0) > earlier.get(UPSTREAM, 0) + own_upstream:
            problems.append(f"{role}: {kinds[UPSTREAM]} connections to brokers after the run, {earlier[UPSTREAM]} before")
    return problems


@dataclass(frozen=True)
class TopicBytes:
    """Bytes of one topic: acknowledged to clients, counted by the gateway, and in the brokers' logs.

    `stored_unacknowledged` are the bytes in the logs that no client knows to be there.
    """

    topic: str
    acknowledged: int
    counted: int
    stored: int
    log_files: int
    stored_unacknowledged: int


@dataclass(frozen=True)
class Ledgers:
    """The comparison of journal and logs. `problems` has a sentence for each violation."""

    topics: list[TopicBytes]
    fates: dict[str, int]
    problems: list[str]


def compare_with_logs(
    journal: Iterable[Sent], stored: Mapping[str, Counter[int]], counted: Mapping[str, float],
    log_files: Mapping[str, Sequence[int]],
) -> Ledgers:  # fmt: skip
    """Acknowledged batches are in the logs, once; refused and cut ones are not. The gateway counted all acknowledged bytes, and
    none that the logs lack."""
    by_topic: dict[str, dict[int, Sent]] = {}
    fates = Counter[str]()
    for sent in journal:
        by_topic.setdefault(sent.topic, {})[sent.number] = sent
        fates[sent.fate.name.lower()] += 1
    problems, topics = [], []
    for topic, numbers in stored.items():
        known = by_topic.get(topic, {})
        lost = [number for number, sent in known.items() if sent.fate == Fate.ACKNOWLEDGED and number not in numbers]
        wrong = [number for number, sent in known.items() if sent.fate in (Fate.REFUSED, Fate.CUT) and number in numbers]
        again = [number for number, count in numbers.items() if count > 1]
        foreign = [number for number in numbers if number not in known]
        for name, found in (("lost", lost), ("refused or cut, but stored", wrong), ("stored again", again),
                            ("unknown", foreign)):  # fmt: skip
            if found:
                problems.append(f"{topic}: {len(found)} batches are {name}, such as {found[0]:#x}")
        acknowledged = sum(sent.batch_bytes for sent in known.values() if sent.fate == Fate.ACKNOWLEDGED)
        all_stored = sum(known[number].batch_bytes * count for number, count in numbers.items() if number in known)
        unsure = all_stored - sum(
            sent.batch_bytes for number, sent in known.items() if sent.fate == Fate.ACKNOWLEDGED and number in numbers
        )
        figures = TopicBytes(topic, acknowledged, int(counted.get(topic, 0)), all_stored, max(log_files[topic]), unsure)
        problems += topic_problems(figures, exact=topic.startswith(CALM), whole=counted_whole(topic))
        topics.append(figures)
    return Ledgers(topics, dict(sorted(fates.items())), problems)


def counted_whole(topic: str) -> bool:
    """False for topics that clients used while a worker was killed: its counters lose the time since the last scrape."""
    epoch = topic.rpartition("-")[2]
    return epoch.isdecimal() and int(epoch) % 2 == 0


def topic_problems(figures: TopicBytes, *, exact: bool, whole: bool) -> list[str]:
    """With `exact`, the clients waited for each response, so the gateway has counted exactly the acknowledged bytes.

    Without `whole`, the gateway may have counted less.
    """
    problems = []
    if figures.log_files != figures.stored:
        problems.append(f"{figures.topic}: the log files have {figures.log_files} bytes, the batches in them {figures.stored}")
    least = figures.acknowledged if whole else 0
    if not least <= figures.counted <= figures.stored:
        problems.append(
            f"{figures.topic}: the gateway counted {figures.counted} bytes, not between {least} acknowledged and "
            f"{figures.stored} stored"
        )
    elif whole and exact and figures.counted != figures.acknowledged:
        problems.append(f"{figures.topic}: the gateway counted {figures.counted} bytes, acknowledged {figures.acknowledged}")
    return problems


def charge_problems(journal: Iterable[Sent], counters: Counters) -> list[str]:
    """The calm clients' quota was charged for each answered Produce, and for no byte that they have not sent."""
    least, most = Counter[str](), Counter[str]()
    for sent in journal:
        if sent.topic.startswith(CALM) and counted_whole(sent.topic):
            size = sent.frame_bytes - LENGTH_BYTES  # as in Kafka, the length field is free
            most[sent.topic] += size
            least[sent.topic] += size if sent.fate != Fate.UNANSWERED else 0
    problems = []
    for client_id in most:
        charged = counters.get(series("weir_quota_bytes_total", kind="produce", client_id=client_id), 0.0)
        if not least[client_id] <= charged <= most[client_id]:
            problems.append(
                f"{client_id}: the gateway charged {charged:.0f} bytes, not between the answered {least[client_id]} and the "
                f"sent {most[client_id]}"
            )
    return problems


EXPECTED_LOGS: Final = (
    "mutes its connection for",
    "is unreachable. Meanwhile this gateway",
    "closed in the middle of a request",
    "volumes: PAUSE:",
    "can't be reached",
    "can't be read",
    "can't be written",
    "can't be published",
    "volume usage is not known",
    "because newer usage",
    "not appended",
    "was ended by signal 9 (Killed); another is started",
)
"""Parts of the warnings and errors that the run's own faults cause."""


@dataclass(frozen=True)
class Logged:
    """Warnings and errors by level and start of the message, and those that no fault of the run explains."""

    counts: dict[str, int]
    tracebacks: int
    unexpected: list[str]


def read_log(lines: Iterable[str]) -> Logged:
    """`lines` are JSON, as Weir writes them; other lines are unexpected."""
    counts, unexpected, tracebacks = Counter[str](), [], 0
    for line in lines:
        try:
            entry: dict[str, Any] = json.loads(line)
        except ValueError:
            entry = {"level": "none", "msg": line}
        tracebacks += "Traceback" in line
        if entry["level"] in ("info", "debug"):
            continue
        message = str(entry["msg"])
        known = next((part for part in EXPECTED_LOGS if part in message), "")
        counts[f"{entry['level']}: {_NUMBERS.sub('N', known or message)[:120]}"] += 1
        if not known or "Traceback" in line:
            unexpected.append(line.strip()[:2000])
    return Logged(dict(counts.most_common()), tracebacks, unexpected)
