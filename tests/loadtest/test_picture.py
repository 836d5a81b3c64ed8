"""The demo computes its figures from the gateway's counters."""

import io

from rich.console import Console

from loadtest.demo.clients import Role
from loadtest.demo.picture import Tally, line, table

GREEDY = Role("greedy", "produce", "clicks", 1024, None, "sends without a pause")
SHY = Role("shy", "fetch", "clicks", 1024, 512, "reads little")


def row(role: Role, total: int, throttled: int = 0) -> dict[str, object]:
    return {"client_id": role.name, "kind": role.kind, "amount_total": total, "throttled_total": throttled}


def test_rate_covers_time_since_last_look() -> None:
    tally = Tally([GREEDY], settle=0.0)
    (first,) = tally.look([row(GREEDY, 4096)], {}, 1.0)
    (second,) = tally.look([row(GREEDY, 5120, 7)], {"greedy": 0.25}, 3.0)
    assert (first.rate, second.rate, second.used, second.throttled, second.throttle_time) == (4096.0, 512.0, 0.5, 7, 0.25)


def test_mean_excludes_the_settling_time_of_its_client() -> None:
    tally = Tally([GREEDY], settle=5.0)
    tally.look([], {}, 1.0)
    for second, total in ((2.0, 90_000), (7.0, 100_000), (12.0, 105_120)):
        tally.look([row(GREEDY, total, 3)], {}, second)
    assert tally.mean(GREEDY) == 1024.0
    assert tally.summary() == ["  greedy        1.00 KiB/s of 1.00 KiB/s (100.0 %)"]


def test_unseen_client_is_named() -> None:
    tally = Tally([GREEDY, SHY], settle=0.0)
    tally.look([row(GREEDY, 1), {**row(SHY, 5), "kind": "produce"}], {}, 1.0)
    assert tally.unseen() == ["shy"]
    assert tally.summary()[1].split(maxsplit=1) == ["shy", "no requests arrived"]


def test_terminal_and_log_show_the_same() -> None:
    looks = Tally([GREEDY, SHY], settle=0.0).look([row(GREEDY, 1024, 5), row(SHY, 512)], {"greedy": 0.06}, 1.0)
    console = Console(width=160, record=True, file=io.StringIO())
    console.print(table(looks, "http://127.0.0.1:9644", 12.0, None))
    drawn = console.export_text()
    for text in (
        "Ctrl-C ends it",
        "1.00 KiB/s",
        "100%",
        "5 requests",
        "60 ms",
        "reads little",
        "http://127.0.0.1:9644/metrics",
    ):
        assert text in drawn
    assert line(looks, 12.0) == (
        "  12 s  greedy 1.00 KiB/s of 1.00 KiB/s (100%) 5 throttled, throttle time 60 ms | shy 512 B/s of 1.00 KiB/s (50%)"
    )
