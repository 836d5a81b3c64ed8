"""The schema of the ledger's lines, made from the events, and the reasons to reject a line."""

from functools import reduce

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DoubleType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from gateway.events import EVENTS, FIELDS, VERSION, EventField

_TYPES: dict[type, DataType] = {
    int: LongType(),
    float: DoubleType(),
    str: StringType(),
    bool: BooleanType(),
    dict: MapType(StringType(), LongType()),
    tuple: ArrayType(StringType()),
}

CORRUPT = "_corrupt"
"""This column holds the whole line if it is not JSON or if a field has a wrong type."""

COLUMNS: dict[str, EventField] = {field.name: field for event in FIELDS.values() for field in event}
"""All fields of all events by name. A name has the same meaning in every event."""

EVENT_SCHEMA = StructType(
    [
        StructField("v", LongType()),
        StructField("type", StringType()),
        *(StructField(name, _TYPES[field.holds]) for name, field in COLUMNS.items()),
        StructField(CORRUPT, StringType()),
    ]
)

_HOUR_MS = 3_600_000


def parsed(line: Column) -> Column:
    """The line as a struct of `EVENT_SCHEMA`."""
    return F.from_json(line, EVENT_SCHEMA, {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT})


def rejection(event: Column, date: Column, hour: Column) -> Column:
    """The reason to reject a line, or null for a good one. `date` and `hour` are those of its folder."""
    in_its_hour = F.floor(event["time_ms"] / _HOUR_MS) == F.unix_date(date) * 24 + hour
    return (
        F.when(event.isNull() | event[CORRUPT].isNotNull(), "not JSON, or a field of a wrong type")
        .when(~event["v"].eqNullSafe(F.lit(VERSION)), F.lit(f"not of version {VERSION}"))
        .when(~F.coalesce(event["type"].isin(list(EVENTS)), F.lit(False)), "unknown type")
        .when(_lacks_a_field(event), "a required field is missing")
        .when(~in_its_hour, "not in the folder of its hour")
    )


def _lacks_a_field(event: Column) -> Column:
    lacks = [
        (event["type"] == name) & reduce(Column.__or__, (event[field.name].isNull() for field in fields if field.required))
        for name, fields in FIELDS.items()
    ]
    return reduce(Column.__or__, lacks)


def field_columns(event: Column) -> list[Column]:
    """The event's fields as columns, with defaults for omitted fields."""
    columns = []
    for name, field in COLUMNS.items():
        default = next(
            (one.default for fields in FIELDS.values() for one in fields if one.name == name and one.default is not None), None
        )
        columns.append((event[field.name] if default is None else F.coalesce(event[field.name], F.lit(default))).alias(name))
    return [event["type"].alias("type"), *columns]
