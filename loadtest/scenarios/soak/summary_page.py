"""The results of a soak as a page of Markdown, and its memory and descriptors over time as a picture."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from loadtest.scenarios.soak.checks import Slope
from loadtest.scenarios.soak.evaluation import Verdict
from loadtest.scenarios.soak.observation import Observed
from loadtest.scenarios.svg import Drawing

_WIDTH, _PANEL, _TOP, _LEFT, _RIGHT, _GAP = 860, 150, 46, 70, 20, 54
_LINES: Final = 5


def markdown(verdict: Verdict) -> str:
    figures = verdict.figures
    state = "whole run" if verdict.whole else "the run goes on, so counters and logs are not compared yet"
    parts = [
        f"# Soak: {figures['minutes']:g} minutes\n",
        f"{state}. Problems: {len(verdict.problems) or 'none'}.\n",
        *(f"- {problem[:400]}" for problem in verdict.problems[:30]),
        "\n## Memory\n",
        "Growth is in percent of the mean per hour, with the 95 % interval.\n",
        _table(
            ["process", "pid", "minutes", "mean MiB", "growth", "interval"],
            [
                [one.role, one.pid, one.minutes, one.mean_mib, f"{one.percent_per_hour:+.2f}", interval(one)]
                for one in verdict.slopes
            ],
        ),
        "\n## Descriptors of the empty gateway\n",
        _descriptors(figures["descriptors"]),
        "\n## Events\n",
        _table(["event", "times"], [[name, count] for name, count in sorted(figures["events"].items())]),
        "\n## Counters of the gateway\n",
        _table(["counter", "value"], [[f"`{name}`", f"{value:,.0f}"] for name, value in figures["gateway"].items() if value]),
        f"\nThrottled requests: {figures['throttled_requests']:,.0f}. CPU seconds: {_listed(figures['cpu_seconds'])}.",
        "\n## Clients\n",
        f"{figures['clients'].get('visits', 0):,} connections.\n",
        _table(["count", "times"], [[name, f"{count:,}"] for name, count in figures["clients"].get("counts", {}).items()]),
        "\n## Warnings and errors in the log\n",
        _table(["message", "times"], [[name, count] for name, count in verdict.logged.counts.items()]),
    ]
    if verdict.ledgers is not None:
        rows = [
            [
                one.topic,
                *(
                    f"{value:,}"
                    for value in (one.acknowledged, one.counted, one.stored, one.log_files, one.stored_unacknowledged)
                ),
            ]
            for one in verdict.ledgers.topics
        ]
        parts += [
            "\n## Counters and logs, in bytes\n",
            _table(
                [
                    "topic",
                    "acknowledged",
                    "counted by Weir",
                    "batches in the logs",
                    "log files",
                    "stored, unclear",
                ],
                rows,
            ),
            f"\nBatches by fate: {_listed(verdict.ledgers.fates)}.",
        ]
    return "\n".join(parts) + "\n"


def _listed(counts: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {count:,.0f}" for name, count in counts.items())


def interval(slope: Slope) -> str:
    return f"{slope.low:+.2f} to {slope.high:+.2f}"


def _descriptors(descriptors: dict[str, dict[str, dict[str, int]]]) -> str:
    rows = [
        [moment, role, sum(kinds.values()), ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))]
        for moment, roles in descriptors.items()
        for role, kinds in (roles or {}).items()
    ]
    return _table(["run", "process", "descriptors", "kinds"], rows)


def _table(heads: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(str(cell) for cell in line)} |" for line in lines)


def chart(samples: Sequence[Observed], events: Sequence[tuple[float, str]]) -> str:
    """An SVG with a panel for memory in MiB and one for descriptors of each process. `events` are moments and names."""
    roles = sorted({one.role for seen in samples for one in seen.processes})
    panels = [(f"{role}: {unit}", role, unit) for role in roles for unit in ("memory in MiB", "descriptors")]
    drawing = Drawing(_WIDTH, _TOP + len(panels) * (_PANEL + _GAP), "Memory and descriptors over the soak", _LEFT)
    first, last = samples[0].at, max(samples[-1].at, samples[0].at + 60)
    right = _WIDTH - _RIGHT
    anonymous = all(one.anonymous for seen in samples for one in seen.processes)

    def x(at: float) -> float:
        return _LEFT + (at - first) / (last - first) * (right - _LEFT)

    for number, (title, role, unit) in enumerate(panels):
        top = _TOP + 20 + number * (_PANEL + _GAP)
        bottom = top + _PANEL
        drawing.text(_LEFT, top - 13, title, bold=True)
        lives: dict[int, list[tuple[float, float]]] = {}
        for seen in samples:
            for one in seen.processes:
                if one.role == role:
                    memory = (one.anonymous if anonymous else one.pss) / 2**20
                    value = memory if unit == "memory in MiB" else float(sum(one.descriptors.values()))
                    lives.setdefault(one.pid, []).append((seen.at, value))
        highest = max((value for life in lives.values() for _, value in life), default=1.0) * 1.1 or 1.0
        for line in range(_LINES):
            part = line / (_LINES - 1)
            y = bottom - part * _PANEL
            drawing.line((_LEFT, y), (right, y))
            drawing.text(_LEFT - 6, y + 4, f"{part * highest:.0f}", anchor="end")
        for at, name in events:
            if role in name:
                drawing.line((x(at), top), (x(at), bottom), dashes="2 3")
        for life in lives.values():
            drawing.steps((x(at), bottom - value / highest * _PANEL) for at, value in life)
        minutes = (last - first) / 60
        for tenth in range(0, 11, 2):
            drawing.text(_LEFT + tenth / 10 * (right - _LEFT), bottom + 16, f"{minutes * tenth / 10:.0f} min", anchor="middle")
    return drawing.svg()
