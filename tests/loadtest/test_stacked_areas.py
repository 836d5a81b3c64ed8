"""The picture of groups over time shows their rates, their division and the script's events."""

from xml.etree import ElementTree

from loadtest.scenarios.three_groups.__main__ import GROUPS, division
from loadtest.scenarios.three_groups.stacked_areas import GroupNumbers, Period, Timeline, stacked_areas

SVG = "{http://www.w3.org/2000/svg}"
PLOT, BOTTOM, CAPACITY = 280, 84 + 280, 10.0


def height(rate: float) -> float:
    return round(BOTTOM - PLOT * rate / (CAPACITY * 1.2), 1)


def test_areas_stand_upon_each_other_and_lines_at_the_division() -> None:
    periods = [
        Period(0, 1, "b starts", ["b"], {"a": 0.0, "b": 10.0}, {"a": 0.0, "b": 9.0}),
        Period(1, 3, "a starts", ["a", "b"], {"a": 6.0, "b": 4.0}, {"a": 5.5, "b": 4.0}),
    ]
    rates = {"a": [0.0, 5.0, 6.0], "b": [9.0, 4.0, 4.0]}
    groups = {"a": GroupNumbers(weight=1, guarantee=5.0), "b": GroupNumbers(weight=1, ceiling=4.0)}
    root = ElementTree.fromstring(stacked_areas("x < y", Timeline(CAPACITY, groups, 1, rates, periods)))
    outlines = [path.attrib["d"].strip("Mz ").split(" L") for path in root.iter(f"{SVG}path")]
    heights = [[float(point.split()[1]) for point in outline[:6]] for outline in outlines]
    assert heights == [[height(rate) for rate in (0, 0, 5, 5, 6, 6)], [height(rate) for rate in (9, 9, 9, 9, 10, 10)]]
    lines = [[float(point.split(",")[1]) for point in each.attrib["points"].split()] for each in root.iter(f"{SVG}polyline")]
    assert lines == [[height(rate) for rate in (0, 0, 6, 6)], [height(10)] * 4]
    words = [text.text for text in root.iter(f"{SVG}text")]
    assert {"x < y", "b starts", "a starts", "9.0", "5.5", "ceiling", "guarantee of a: 5 MB/s"} <= set(words)
    assert [bar.findtext(f"{SVG}title") for bar in root.iter(f"{SVG}rect")][1:] == ["a runs", "b runs", "b runs"]


def test_script_divides_as_the_rules_say() -> None:
    assert division(["payments", "search", "batch"]) == {"payments": 5.0, "search": 2.0, "batch": 1.0}
    assert division(["search", "batch"]) == {"payments": 0.0, "search": GROUPS["search"].ceiling, "batch": 5.0}
