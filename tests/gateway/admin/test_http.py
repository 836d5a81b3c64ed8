"""Pages as JSON: rows are encoded one by one, and the text is that of one encoder."""

import json
from dataclasses import dataclass

import pytest

from gateway.admin.http import json_page


@dataclass
class Row:
    name: str
    limit: float | None


async def text_of(body):
    return (await json_page(body)).text


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"rows": []},
        {"at": "now", "rows": [{"a": 1}, {"b": [1, {"c": None}]}], "units": {"produce": "B/s"}},
        {"rows": ({"a": 'quotes " and \n'}, 1.5, "text"), "none": None, "flag": True},
    ],
)
async def test_page_is_the_text_of_one_encoder(body):
    assert await text_of(body) == json.dumps(body)


async def test_dataclasses_become_objects():
    rows = [Row("etl", 5.0), Row("x", None)]
    expected = {"rows": [{"name": "etl", "limit": 5.0}, {"name": "x", "limit": None}], "one": {"name": "etl", "limit": 5.0}}
    assert json.loads(await text_of({"rows": rows, "one": rows[0]})) == expected


@pytest.mark.parametrize("value", [float("nan"), [float("inf")]])
async def test_numbers_that_json_lacks_are_refused(value):
    with pytest.raises(ValueError, match="not JSON compliant"):
        await json_page({"value": value})
