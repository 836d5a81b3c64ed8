"""The hourly aggregates that the reports read. They are computed once for each hour.

`first_pass` makes `entity_minutes` from the lines. All other tables come from it, and `rare_hours` has those that most hours
lack. Most have `date` and `hour`. The dictionaries `names` and `places` have none, and `rates` counts a whole batch. Times are
`*_ms` since 1970. If the meaning of a table changes, increase `state.LAYOUT`, so that old hours are not mixed with new ones.

Tables carry 64-bit hashes instead of names: `entity` (a row's `ENTITY`), `bucket` (with the matched quota) and `client`
(user and client-id). A shuffle of names would cost more than the parser.
"""

from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from gateway.quotas.kinds import BYTES, UNITS
from gateway.reports.job.columns import minute_since_1970, quantiles, slot_of
from gateway.reports.job.schema import EVENT_SCHEMA
from gateway.reports.report import ENTITY

HOUR = ("date", "hour")
ENTITY_MINUTES = "entity_minutes"
BUCKET = (*ENTITY, "quota")
CLIENT = ("user", "client_id")
IDS = {"bucket": BUCKET, "entity": ENTITY, "client": CLIENT}
PLACE = ("address", "broker", "api")
MINUTE = (*HOUR, "minute")
BYTE_KINDS = [kind.name for kind in UNITS[BYTES]]

MINUTE_SECONDS = 60
FIVE_MINUTES = 5
"""The length of the intervals in `five_minutes`."""
NEARLY_FULL = 0.8
"""Fraction of a quota. An entity above it is likely to be throttled soon."""


@dataclass(frozen=True)
class HourEvents:
    """The stored rows of `entity_minutes` of some hours."""

    stored: DataFrame

    def of(self, *types: str) -> DataFrame:
        """Events other than usage samples and throttles. They are few."""
        event = F.from_json("text", EVENT_SCHEMA)
        rows = self.stored.where(is_other()).select(*HOUR, event.alias("event"), "lines")
        # Equal lines are one row. The generator also stops Spark from parsing the text again for each field.
        rows = rows.select(*HOUR, F.explode(F.array_repeat("event", F.col("lines").cast("int"))).alias("event"))
        return rows.select(*HOUR, "event.*").where(F.col("type").isin(list(types)))

    @property
    def minutes(self) -> DataFrame:
        return self.stored.where(F.col("minute").isNotNull())


def names(hours: HourEvents) -> DataFrame:
    """The dictionary of the batch: the names behind each `bucket`, `entity` and `client`. It has no date and no hour."""
    rows = hours.stored.where(F.col("date").isNull() & F.col("bucket").isNotNull())
    return rows.select(*IDS, *BUCKET)


def _places(hours: HourEvents) -> DataFrame:
    """The dictionary of the places."""
    rows = hours.stored.where(F.col("place").isNotNull())
    place = StructType([EVENT_SCHEMA[name] for name in PLACE])
    return rows.select("place", F.from_json("text", place).alias("names"))


def is_other() -> Column:
    """True for the events that are neither usage samples nor throttles."""
    return F.col("text").isNotNull() & F.col("date").isNotNull()


SUMS = ("throttled", "throttle_ms", "throttled_amount", "noted", "noted_ms", "early_count", "early_ms")
MAXIMA = ("throttle_max_ms", "throttle_rate", "early_max_ms", "last_ms")


def _entities(hours: HourEvents) -> DataFrame:
    """One row for each hour, entity and matched quota.

    `active_minutes` have a usage sample, and `limited_minutes` of them had a limit. `limited_seconds` are the active seconds of
    the latter. `capacity` is the sum of limit times seconds, and `limited_amount` the use in these minutes. `limit` is the
    hour's highest. `demand_amount` and `demand_seconds` are those of `demand_seconds`.
    """
    limited = F.col("usage_limit").isNotNull() & F.col("amount").isNotNull()
    allowed = F.col("usage_limit") * F.col("seconds")
    held_back = (F.col("throttled") > 0) & (F.col("amount") > 0)
    return hours.minutes.groupBy(*HOUR, "bucket", "entity", "kind").agg(
        F.count("amount").alias("active_minutes"),
        F.sum("amount").alias("amount"),
        F.max("amount").alias("peak_minute"),
        F.sum("requests").alias("requests"),
        F.max(F.coalesce("usage_limit", "throttle_limit")).alias("limit"),
        F.count_if(limited).alias("limited_minutes"),
        F.sum(F.when(limited, F.col("seconds"))).alias("limited_seconds"),
        F.sum(F.when(limited, allowed)).alias("capacity"),
        F.sum(F.when(limited, F.col("amount"))).alias("limited_amount"),
        F.max(F.when(limited, F.try_divide("amount", allowed))).alias("peak_utilisation"),
        F.count_if(limited & (F.col("amount") >= allowed * NEARLY_FULL)).alias("above_80_minutes"),
        F.count_if(limited & (F.col("amount") >= allowed)).alias("above_100_minutes"),
        F.count_if(F.col("throttled") > 0).alias("throttled_minutes"),
        F.sum(F.when(held_back, F.col("amount"))).alias("demand_amount"),
        F.sum(F.when(held_back, demand_seconds())).alias("demand_seconds"),
        *(F.sum(name).alias(name) for name in SUMS),
        *(F.max(name).alias(name) for name in MAXIMA),
        F.min("first_ms").alias("first_ms"),
        F.max(_in_order()).alias("worst"),
        F.max_by("worst_place", _in_order()).alias("worst_place"),
    )


def _in_order() -> Column:
    """Orders the longest throttles of an hour's minutes by length and time. Of lengths above 35 minutes, the last one wins."""
    length, of_minute = F.shiftright("worst", 16), F.col("worst") % 65_536
    return F.least(length, F.lit(_LONGEST_MS)) * 2**42 + minute_since_1970() * 60_000 + of_minute


_LONGEST_MS = 2**21 - 1


def demand_seconds() -> Column:
    """The active seconds of a minute without its throttle time: the client could send only in these.

    Several connections may wait at the same time, so the throttle time may exceed the minute. At least a tenth of the active
    seconds remains.
    """
    waited = F.col("throttle_ms") / 1000
    return F.greatest(F.col("seconds") - waited, F.col("seconds") / 10)


def rates(hours: HourEvents) -> DataFrame:
    """For each entity, the number of minutes in each `slot` of the use in 60 active seconds, under one quota.

    A minute with throttles is left out: its use does not show the demand. So is a minute if more was given back than used,
    for example for mutations that a broker refused.

    The table has no hours: with them, it would be nearly as long as `entity_minutes`.
    """
    used = hours.minutes.where((F.col("amount") > 0) & (F.coalesce("throttled", F.lit(0)) == 0))
    in_a_minute = F.ceil(F.try_divide(F.col("amount") * MINUTE_SECONDS, "seconds"))
    return used.groupBy("entity", slot_of(in_a_minute).alias("slot")).count()


def _throttle_percentiles(hours: HourEvents) -> DataFrame:
    """Percentiles of the throttle times by kind. All throttle times of an hour are in one batch."""
    rows = hours.stored.where(F.col("slot").isNotNull()).withColumnRenamed("times", "count")
    thousandths = {"p50_ms": 500, "p90_ms": 900, "p99_ms": 990, "p999_ms": 999}
    return quantiles(rows, (*HOUR, "kind", "enforced"), thousandths).withColumnRenamed("count", "throttled")


def _five_minutes(hours: HourEvents) -> DataFrame:
    """The bytes of each entity in the intervals of an hour: `amounts` has one item each, null without use."""
    used = hours.minutes.where(F.col("kind").isin(BYTE_KINDS) & F.col("amount").isNotNull())
    interval = F.floor(F.col("minute") / FIVE_MINUTES)
    places = range(60 // FIVE_MINUTES)
    sums = (F.sum(F.when(interval == place, F.col("amount"))).alias(f"of_{place}") for place in places)
    amounts = F.array(*(f"of_{place}" for place in places)).alias("amounts")
    return used.groupBy(*HOUR, "entity").agg(*sums).select(*HOUR, "entity", amounts)


def seconds_of(column: str | Column) -> Column:
    """The seconds of samples in a minute that follow each other, for example at a restart of their gateway."""
    total = F.sum(column)
    return F.when(total > MINUTE_SECONDS, MINUTE_SECONDS).otherwise(total)


def gateway_bit() -> Column:
    """One of 64 bits for a row's gateway, so that a set of gateways is one number. Two gateways may share a bit."""
    bit = F.pmod(F.xxhash64("gateway"), F.lit(64)).cast("int")
    return F.call_function("shiftleft", F.lit(1).cast("long"), bit)


def _minutes(hours: HourEvents) -> DataFrame:
    """One row for each minute and kind, summed over the entities. `throttled_entities` counts the throttled ones.

    `seconds` are the active seconds of the most active entity, null without a usage sample.
    """
    return hours.minutes.groupBy(*HOUR, "minute", "kind").agg(
        # The rows of a group's members have the group's use as well.
        *(F.sum(F.when(~F.col("of_group"), F.col(name))).alias(name) for name in ("amount", "requests", "latency_ms")),
        *(F.sum(name).alias(name) for name in SUMS),
        F.max("seconds").alias("seconds"),
        F.count_if(F.col("throttled") > 0).alias("throttled_entities"),
        F.bit_or("gateways").alias("gateways"),
    )


_HOURLY = {
    "names": names,
    "entities": _entities,
    "places": _places,
    "rates": rates,
    "throttle_percentiles": _throttle_percentiles,
    "minutes": _minutes,
    "five_minutes": _five_minutes,
}


def hourly(hours: HourEvents) -> dict[str, DataFrame]:
    """Every table that each hour has but `entity_minutes`, by name."""
    return {name: make(hours) for name, make in _HOURLY.items()}
