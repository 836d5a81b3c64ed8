import io

from rich.console import Console

from gateway.admin.group_table import group_table
from gateway.features.groups.feature import Groups
from gateway.quotas.engine import QuotaEngine
from gateway.quotas.group_buckets import INTERVAL_SECONDS
from gateway.workers.answers import merge_groups
from tests.gateway.quotas.greedy_clients import START
from tests.gateway.quotas.test_group_shares import ALL, KEY, MB8, group, settings


def answer(lent=True):
    engine = QuotaEngine(
        settings(ALL, group("b", guarantee=MB8 / 2), group("x", weight=3, clients=False), group("a", "x")), START
    )
    engine.group_buckets.measure(START)
    if lent:
        engine.acquire_path("produce", "a", "", START)[1].charge(MB8, START)
    engine.group_buckets.divide(engine.group_buckets.measure(START + 0.2), INTERVAL_SECONDS, START + 0.2)
    groups = Groups(engine, list, shared=False)
    answer = groups.as_json(groups.report())
    for row in answer["groups"]:
        row["use"] = 0.0  # the average until now by the real clock
    return {"configured": True, **answer}


def text(of):
    console = Console(width=160, file=io.StringIO())
    console.print(group_table(of))
    return [" ".join(line.replace("│", " ").split()) for line in console.file.getvalue().splitlines()]


def test_table_shows_lending_and_borrowing_below_each_parent():
    lines = text(answer())
    assert lines[4:8] == [
        "produce all 0 B/s 7.63 MiB/s 7.63 MiB/s 7.63 MiB/s",
        "b 0 B/s 0 B/s -4.77 MiB/s 4.77 MiB/s 3.81 MiB/s 1",
        "x 0 B/s 7.63 MiB/s +4.77 MiB/s 2.86 MiB/s 3",
        "a 0 B/s 7.63 MiB/s +4.77 MiB/s 2.86 MiB/s 1 yes",
    ]


def test_whole_capacity_is_lent_to_nobody():
    assert [row["lent"] for row in answer(lent=False)["groups"]][:2] == [0.0, 0.625 * MB8]


def test_table_without_groups_names_the_remedy():
    assert text({"groups": []})[0].startswith("No groups share a capacity. Give groups in quotas.groups a parent")


def test_workers_answers_become_one():
    idle, busy = answer(lent=False), answer()
    busy["groups"][3]["use"] = 7.0
    merged = merge_groups([idle, busy])["groups"]
    assert [(row["group"], row["use"], row["wants_more"]) for row in merged] == [
        ("all", 0.0, False), ("b", 0.0, False), ("x", 0.0, False), ("a", 7.0, True),
    ]  # fmt: skip


def test_answer_has_the_unit_and_the_place_in_the_tree():
    row = answer()["groups"][3]
    assert (row["kind"], row["unit"], row["parent"], row["level"]) == ("produce", "bytes/s", "x", 2)
    assert KEY == "producer_byte_rate"
