"""The SVG chart is well-formed and shows its figures."""

from xml.etree import ElementTree

from loadtest.scenarios.evenness.chart import chart

SVG = "{http://www.w3.org/2000/svg}"


def test_chart_has_one_bar_per_second_and_overflow_marks() -> None:
    drawn = chart("a < b", {"first": [1000.0, 0.0, 5000.0], "second": [1000.0] * 3}, 1000.0, ("kB/s", 1000.0), 3)
    root = ElementTree.fromstring(drawn)
    bars = [bar for bar in root.iter(f"{SVG}rect") if bar.find(f"{SVG}title") is not None]
    heights = [float(bar.attrib["height"]) for bar in bars]
    assert heights == [75.0, 0.0, 150.0, 75.0, 75.0, 75.0]
    assert len(list(root.iter(f"{SVG}path"))) == 1
    assert "a < b" in [text.text for text in root.iter(f"{SVG}text")]
