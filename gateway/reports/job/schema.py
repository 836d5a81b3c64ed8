"""The schema of the ledger's lines, made from the events, and the reasons to reject a line."""

from collections.abc import Callable
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

NO_JSON = "not JSON, or a field of a wrong type or size"
"""A reason to reject a line."""

_HOUR_MS = 3_600_000
_LARGEST = 2**47 - 1
"""The largest whole number: 140 TB, or ms until the year 6429. The order of throttles shifts it by 16 bits."""
_UNBOUNDED = ("broker", "capacity_bytes", "consumed_bytes")
"""Whole numbers that no report adds up. The capacity of a network file system may be 8 EiB."""
_UNCHECKED = ("time_ms", *_UNBOUNDED)
_LARGEST_FLOAT = 2.0**63
_SUMMANDS = 2.0**16
"""So many of the largest amounts still add up to a whole number of 64 bits."""
_SLOTS = r'^\{("([1-9]?[0-9]|[1-6][0-9]{2}|70[0-3])":[0-9]{1,14},?)*\}$'
"""JSON with slots up to that of 2**47 - 1 ms. `upper_of` overflows for some slots from 900 on."""


def parsed(line: Column) -> Column:
    """The line as a struct of `EVENT_SCHEMA`."""
    return F.from_json(line, EVENT_SCHEMA, {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT})


def rejection(field: Callable[[str], Column], date: Column, hour: Column) -> Column:
    """The reason to reject a line, or null for a good one. `field` returns the event's field by its name.

    `date` and `hour` are those of its folder.
    """
    types = F.array(*map(F.lit, EVENTS))  # `isin` would generate code for each type
    in_its_hour = F.floor(field("time_ms") / _HOUR_MS) == F.unix_date(date) * 24 + hour
    return (
        F.when(field(CORRUPT).isNotNull() | _has_no_figure(field), NO_JSON)
        .when(~field("v").eqNullSafe(F.lit(VERSION)), F.lit(f"not of version {VERSION}"))
        .when(~F.coalesce(F.array_contains(types, field("type")), F.lit(False)), "unknown type")
        .when(_lacks_a_field(field), "a required field is missing")
        .when(~in_its_hour, "not in the folder of its hour")
    )


def _has_no_figure(field: Callable[[str], Column]) -> Column:
    """True if a number is NaN, too small or so large that sums overflow, or if a slot is none of `throttle_slot`.

    JSON has no NaN, but Spark's parser takes it.

    The condition names every field with a type that a line may violate: Spark's JSON source checks only the fields that a
    query names. The check of the hour names `time_ms`.
    """
    floats = [field(name) for name, one in COLUMNS.items() if one.holds is float and name != "amount"]
    floats.append(F.abs(field("amount")) * _SUMMANDS)
    # An array has its own generated method: least and greatest would make the common one too long for Java's compiler.
    whole = F.array(*(field(name) for name, one in COLUMNS.items() if one.holds is int and name not in _UNCHECKED))
    others = [field(name) for name in _UNBOUNDED]
    others += [F.size(field(name)) for name, one in COLUMNS.items() if one.holds is tuple]
    others += [field(name).cast("int") for name, one in COLUMNS.items() if one.holds is bool]
    return reduce(
        Column.__or__,
        (
            # NaN is the greatest number of all. A condition for each field would be longer code.
            F.greatest(*floats) > _LARGEST_FLOAT,
            F.array_max(whole) > _LARGEST,
            F.array_min(whole) < 0,
            ~F.to_json(field("throttle_slots")).rlike(_SLOTS),
            F.isnan(F.greatest(*others).cast("double")),  # never true, but names these fields
        ),
    )


def _lacks_a_field(field: Callable[[str], Column]) -> Column:
    needed = {name: [one.name for one in fields if one.required] for name, fields in FIELDS.items()}
    # Each type would repeat the fields that all types need, and make the generated method too long for Java's compiler.
    common = [name for name in COLUMNS if all(name in names for names in needed.values())]
    lacks = [field(name).isNull() for name in common]
    lacks += [
        (field("type") == name) & reduce(Column.__or__, (field(one).isNull() for one in own))
        for name, names in needed.items()
        if (own := [one for one in names if one not in common])
    ]
    return reduce(Column.__or__, lacks)


def field_columns(field: Callable[[str], Column]) -> list[Column]:
    """The event's fields as columns, with defaults for omitted fields. `field` returns a field by its name."""
    columns = []
    for name in COLUMNS:
        default = next(
            (each.default for fields in FIELDS.values() for each in fields if each.name == name and each.default is not None),
            None,
        )
        columns.append((field(name) if default is None else F.coalesce(field(name), F.lit(default))).alias(name))
    return [field("type").alias("type"), *columns]
