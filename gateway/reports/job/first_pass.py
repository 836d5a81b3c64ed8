"""The first pass over all lines: they become minutes of entities, and the dictionaries of their names.

Sums and maxima of strings or structs would make Spark sort instead of hash. So the aggregate uses numbers only.
"""

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from gateway.events import FIELDS
from gateway.reports.job.hours import BUCKET, IDS, MINUTE_SECONDS, PLACE, gateway_bit, seconds_of


def id_of(names: Sequence[str]) -> Column:
    """A hash of some columns. Spark's hash ignores nulls, so the hash includes which columns are null."""
    return F.xxhash64(*names, *(F.col(name).isNull() for name in names))


def entity_minutes(lines: DataFrame) -> DataFrame:
    """One row for each minute, entity and matched quota, summed over all gateways.

    `amount` and the active `seconds` are null in a minute without a usage sample. Gateways may be in use at the same time, so
    `seconds` is the largest of theirs. The partial samples of a gateway that restarts follow each other, so they count as one
    sample: their sum, at most 60. `throttled` counts enforced decisions, `noted` the others. `of_group` is True for a
    group, whose use the rows of its members have as well.
    `gateways` has the bits of the reporting gateways. `worst_place` is the `place` of the longest throttle, and `worst` orders
    throttles by length and time.

    Other sorts of rows have no `minute`:

    - Rows with a `bucket` are the dictionary of the names.
    - Rows with a `place` are the dictionary of the places. `text` has the `PLACE` of a throttle as JSON.
    - Rows with a `slot` have `times`, the number of throttle times in it.
    - All others count the other lines of an hour. `text` is the event as JSON, or null for bad lines.

    `lines` and `bad_lines` count all lines. The dictionaries have no `date`.
    """
    good = F.col("rejected").isNull()
    usage, throttle = good & (F.col("type") == "usage"), good & (F.col("type") == "throttle")
    counted = usage | throttle
    hashed = lines.select(
        *BUCKET, *_FIGURES,
        *(F.when(counted, id_of(names)).alias(name) for name, names in IDS.items()),
        ((F.unix_date("date") * 24 + F.col("hour")) * _OF_HOUR).alias("of_hour"),
        F.when(counted, _minute()).otherwise(_NO_MINUTE).alias("of_minute"),
        F.when(throttle, id_of(PLACE)).alias("place"),
        F.when(throttle, F.to_json(F.struct(*PLACE)))
        .when(good & ~counted, F.to_json(F.struct("type", *_OF_OTHERS)))
        .alias("text"),
        F.when(throttle, F.col("throttle_slots").cast("map<int,bigint>")).alias("slots"),
        usage.alias("is_usage"),
        throttle.alias("is_throttle"),
        gateway_bit().alias("gateway_bit"),
    )  # fmt: skip
    # A usage sample is two rows: its figures and its names. A throttle is a third row with its place, and one for each slot.
    # The partial aggregate leaves few rows with names or places.
    slots = F.coalesce(F.map_keys("slots"), F.array().cast("array<int>"))
    parts = (
        F.when(F.col("is_throttle"), F.concat(F.array(*map(F.lit, (_FIGURES_OF, _NAMES_OF, _PLACE_OF))), slots))
        .when(F.col("is_usage"), F.array(F.lit(_FIGURES_OF), F.lit(_NAMES_OF)))
        .otherwise(F.array(F.lit(_FIGURES_OF)))
    )
    rows = hashed.withColumn("part", F.explode(parts))
    own, naming, placing = (F.col("part") == one for one in (_FIGURES_OF, _NAMES_OF, _PLACE_OF))
    in_slot = F.col("part") >= 0
    usage, throttle = own & F.col("is_usage"), own & F.col("is_throttle")
    enforced, noted = throttle & F.col("enforced"), throttle & ~F.col("enforced")
    order = F.col("throttle_max_ms") * 65_536 + F.col("time_ms") % 60_000
    # Each key and each sum costs time for every line. Columns that follow from others are computed afterwards.
    keys = {
        "at": F.when(own, F.col("of_hour") + F.col("of_minute")).when(in_slot, F.col("of_hour") + _NO_MINUTE),
        "kind": F.when((own & F.col("bucket").isNotNull()) | naming | in_slot, F.col("kind")),
        **{name: F.when(own | naming, F.col(name)) for name in IDS},
        **{name: F.when(naming, F.col(name)) for name in BUCKET if name != "kind"},
        "place": F.when(placing, F.col("place")),
        "text": F.when(placing | (own & ~F.col("is_throttle")), F.col("text")),
        "enforced": F.when(in_slot, F.col("enforced")),
        "slot": F.when(in_slot, F.col("part")),
    }
    minutes = rows.groupBy(*(key.alias(name) for name, key in keys.items())).agg(
        F.sum(F.when(usage, F.col("amount"))).alias("amount"),
        F.max(F.when(usage, F.col("limit"))).alias("usage_limit"),
        F.max(F.when(usage & ~_is_partial(), _seconds())).alias("whole_seconds"),
        seconds_of(F.when(usage & _is_partial(), _seconds())).alias("partial_seconds"),
        F.max(F.when(throttle, F.col("limit"))).alias("throttle_limit"),
        _sum(usage, "requests"),
        _sum(usage, "latency_ms"),
        _sum(enforced, "count", "throttled"),
        _sum(enforced, "throttle_ms"),
        _sum(throttle, "amount", "throttled_amount"),
        F.max(F.when(throttle, F.col("rate"))).alias("throttle_rate"),
        _sum(noted, "count", "noted"),
        _sum(noted, "throttle_ms", "noted_ms"),
        _sum(throttle, "early_count"),
        _sum(throttle, "early_ms"),
        F.max(F.when(throttle, F.col("early_max_ms"))).alias("early_max_ms"),
        F.min(F.when(throttle, F.col("time_ms"))).alias("first_ms"),
        F.max(F.when(throttle, F.col("last_ms"))).alias("last_ms"),
        F.max(F.when(throttle, order)).alias("worst"),
        F.max_by(F.col("place"), F.when(throttle, order)).alias("worst_place"),
        F.sum(F.when(in_slot, F.element_at("slots", F.col("part")))).alias("times"),
        F.bit_or(F.when(own, F.col("gateway_bit"))).alias("gateways"),
        F.bool_or(own & F.col("group").isNotNull()).alias("of_group"),
        F.count_if(own).alias("lines"),
    )
    hour, minute = F.shiftright("at", 6), F.col("at") % _OF_HOUR
    is_bad = (minute == _NO_MINUTE) & F.col("text").isNull() & F.col("slot").isNull()
    return minutes.select(
        F.date_from_unix_date((hour / 24).cast("int")).alias("date"),
        (hour % 24).alias("hour"),
        F.when(minute < _NO_MINUTE, minute).alias("minute"),
        F.shiftright("worst", 16).alias("throttle_max_ms"),
        F.when(is_bad, F.col("lines")).otherwise(0).alias("bad_lines"),
        F.greatest("whole_seconds", "partial_seconds").alias("seconds"),
        *(name for name in minutes.columns if name not in ("at", "whole_seconds", "partial_seconds")),
    )


def _seconds() -> Column:
    return F.coalesce("active_seconds", F.lit(MINUTE_SECONDS))


def _is_partial() -> Column:
    return F.coalesce("partial", F.lit(False))


_FIGURES = (
    "time_ms", "last_ms", "amount", "limit", "active_seconds", "partial", "requests", "latency_ms", "count", "rate",
    "throttle_ms", "throttle_max_ms", "early_count", "early_ms", "early_max_ms", "enforced",
)  # fmt: skip
_OF_OTHERS = sorted({field.name for name in FIELDS.keys() - {"usage", "throttle"} for field in FIELDS[name]})
"""The fields of all other events. With more, Spark would generate a method above 8 000 bytes, and Java does not compile it."""
_FIGURES_OF, _NAMES_OF, _PLACE_OF = -1, -2, -3
"""The sorts of rows in `part`. A number from 0 on is a slot."""
_OF_HOUR, _NO_MINUTE = 64, 63
"""The key `at` of the aggregate is the hours since 1970, times the former, plus the minute or the latter."""


def _minute() -> Column:
    return F.floor((F.col("time_ms") % 3_600_000) / 60_000).cast("int")


def _sum(which: Column, column: str, name: str | None = None) -> Column:
    return F.sum(F.when(which, F.col(column))).alias(name or column)
