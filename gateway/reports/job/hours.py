"""The hourly aggregates that the reports read. They are computed once for each hour.

`first_pass` makes `entity_minutes` from the lines. All other tables come from it. Most have `date` and `hour`. The dictionaries
`names` and `places` have none, and `rates` counts a whole batch. Times are `*_ms` since 1970. If the meaning of a table
changes, increase `state.LAYOUT`, so that old hours are not mixed with new ones.

Tables carry 64-bit hashes instead of names: `entity` (a row's `ENTITY`), `bucket` (with the matched quota) and `client`
(user and client-id). A shuffle of names would cost more than the parser.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from pyspark.sql import Column, DataFrame, Row, Window
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from gateway.quotas.kinds import BYTES, UNITS
from gateway.reports.job.columns import quantiles, slot_of
from gateway.reports.job.group_hours import GROUP_COLUMNS, group_hours
from gateway.reports.job.schema import EVENT_SCHEMA
from gateway.reports.report import ENTITY

HOUR = ("date", "hour")
ENTITY_MINUTES = "entity_minutes"
BUCKET = (*ENTITY, "quota")
_CLIENT = ("user", "client_id")
IDS = {"bucket": BUCKET, "entity": ENTITY, "client": _CLIENT}
PLACE = ("address", "broker", "api")
_BYTE_KINDS = [kind.name for kind in UNITS[BYTES]]
_MINUTE = (*HOUR, "minute")

MINUTE_SECONDS = 60
FIVE_MINUTES = 5
"""The length of the intervals in `five_minutes`."""
NEARLY_FULL = 0.8
"""Fraction of a quota. An entity above it is likely to be throttled soon."""
TOP_USERS = 3
"""The number of top users of a minute."""
SLOWED = 2.0
"""A client was slowed in a minute if its latency was at least this multiple of the hour's mean ..."""
SLOWED_BY_MS = 10.0
"""... and exceeded the mean by at least this many ms."""


@dataclass(frozen=True)
class HourEvents:
    """The stored rows of `entity_minutes` of some hours."""

    stored: DataFrame

    def of(self, *types: str) -> DataFrame:
        """Events other than usage samples and throttles. They are few."""
        event = F.from_json("text", EVENT_SCHEMA)
        rows = self.stored.where(_is_other()).select(*HOUR, event.alias("event"), "lines")
        # Equal lines are one row. The generator also stops Spark from parsing the text again for each field.
        rows = rows.select(*HOUR, F.explode(F.array_repeat("event", F.col("lines").cast("int"))).alias("event"))
        return rows.select(*HOUR, "event.*").where(F.col("type").isin(list(types)))

    @property
    def minutes(self) -> DataFrame:
        return self.stored.where(F.col("minute").isNotNull())


_OTHERS = {
    "topics": ("topic_rejected",),
    "connections": ("connection_rejected",),
    "shadows": ("shadow",),
    "changes": ("config", "quota_change", "grant_expired", "volume_state"),
}
"""The tables of events that are neither usage samples nor throttles, and the types of these events."""


def _names(hours: HourEvents) -> DataFrame:
    """The dictionary of the batch: the names behind each `bucket`, `entity` and `client`. It has no date and no hour."""
    rows = hours.stored.where(F.col("date").isNull() & F.col("bucket").isNotNull())
    return rows.select(*IDS, *BUCKET)


def _places(hours: HourEvents) -> DataFrame:
    """The dictionary of the places."""
    rows = hours.stored.where(F.col("place").isNotNull())
    place = StructType([EVENT_SCHEMA[name] for name in PLACE])
    return rows.select("place", F.from_json("text", place).alias("names"))


def _is_other() -> Column:
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
        F.max(F.when(limited, F.col("amount") / allowed)).alias("peak_utilisation"),
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
    minute = F.unix_date("date").cast("long") * 1440 + F.col("hour") * 60 + F.col("minute")
    return F.least(length, F.lit(_LONGEST_MS)) * 2**42 + minute * 60_000 + of_minute


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
    in_a_minute = F.ceil(F.col("amount") * MINUTE_SECONDS / F.col("seconds"))
    return used.groupBy("entity", slot_of(in_a_minute).alias("slot")).count()


def _throttle_percentiles(hours: HourEvents) -> DataFrame:
    """Percentiles of the throttle times by kind. All throttle times of an hour are in one batch."""
    rows = hours.stored.where(F.col("slot").isNotNull()).withColumnRenamed("times", "count")
    thousandths = {"p50_ms": 500, "p90_ms": 900, "p99_ms": 990, "p999_ms": 999}
    return quantiles(rows, (*HOUR, "kind", "enforced"), thousandths).withColumnRenamed("count", "throttled")


def _five_minutes(hours: HourEvents) -> DataFrame:
    """The bytes of each entity in the intervals of an hour: `amounts` has one item each, null without use."""
    used = hours.minutes.where(F.col("kind").isin(_BYTE_KINDS) & F.col("amount").isNotNull())
    interval = F.floor(F.col("minute") / FIVE_MINUTES)
    places = range(60 // FIVE_MINUTES)
    sums = (F.sum(F.when(interval == place, F.col("amount"))).alias(f"of_{place}") for place in places)
    amounts = F.array(*(f"of_{place}" for place in places)).alias("amounts")
    return used.groupBy(*HOUR, "entity").agg(*sums).select(*HOUR, "entity", amounts)


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


def _neighbours(hours: HourEvents) -> DataFrame:
    """Clients that others slowed, paired with the top users (`by_client`) of the same minutes.

    A client is slowed if its broker latency rises, or if a full disk holds its records (`_VOLUME`). A throttle by the client's
    own quota does not count. A client's use is the bytes produced and fetched in a minute. Each minute has `TOP_USERS` top
    users; of clients with equal use, the smaller `client` comes first. A pair needs a neighbour with more use than the client.
    """
    clients = hours.minutes.where(F.col("client") != _nobody())
    timed = F.when(F.col("latency_ms").isNotNull(), F.col("requests"))
    mean = F.try_divide(F.sum("latency_ms"), F.sum(timed))
    usual = clients.groupBy(*HOUR, "client").agg(mean.alias("usual"))
    used = F.sum(F.when(F.col("kind").isin(_BYTE_KINDS), F.col("amount"))).alias("used")
    # A mean over kinds is slow only if one of the kinds is. So most minutes need not be summed.
    suspects = (
        clients.where(_may_be_slow())
        .join(usual, [*HOUR, "client"])
        .where(_is_slow(F.try_divide("latency_ms", timed)))
        .select(*_MINUTE, "client")
        .unionByName(clients.where(_is_held()).select(*_MINUTE, "client"))
        .distinct()
    )
    affected = (
        clients.join(suspects, [*_MINUTE, "client"], "left_semi")
        .groupBy(*_MINUTE, "client")
        .agg(mean.alias("latency"), used, F.sum(F.when(_is_held(), F.col("throttle_ms"))).alias("throttle_ms"))
        .join(usual, [*HOUR, "client"])
        .withColumn("slowed", F.coalesce(_is_slow(F.col("latency")), F.lit(False)))
        .where(F.col("slowed") | F.col("throttle_ms").isNotNull())
        .select(*_MINUTE, "client", F.coalesce("used", F.lit(0.0)).alias("own"), "throttle_ms", "slowed")
    )
    # A new scan: the same columns on both sides of a join would be ambiguous.
    everyone = (
        hours.minutes.where(F.col("client") != _nobody())
        .join(affected.select(*_MINUTE).distinct(), list(_MINUTE), "left_semi")
        .groupBy(*_MINUTE, "client")
        .agg(used)
        .where(F.col("used") > 0)
    )
    of_minute = Window.partitionBy(*_MINUTE)
    top = (
        everyone.withColumn("place", F.row_number().over(of_minute.orderBy(F.desc("used"), "client")))
        .withColumn("all_bytes", F.sum("used").over(of_minute))
        .where(F.col("place") <= TOP_USERS)
        .select(*_MINUTE, F.col("client").alias("by_client"), F.col("used").alias("by_bytes"), "all_bytes")
    )
    return (
        affected.join(top, list(_MINUTE))
        .where((F.col("client") != F.col("by_client")) & (F.col("by_bytes") > F.col("own")))
        .groupBy(*HOUR, "client", "by_client")
        .agg(
            F.count("*").alias("minutes"),
            F.count_if("slowed").alias("slowed_minutes"),
            F.count("throttle_ms").alias("held_minutes"),
            F.sum("throttle_ms").alias("held_ms"),
            F.sum("by_bytes").alias("by_bytes"),
            F.sum("all_bytes").alias("all_bytes"),
        )
    )


_VOLUME = "volume"
"""The kind of a throttle by the volume quota, see `events.ThrottleEvent`."""


def _may_be_slow() -> Column:
    """The mean of an hour is not below 0, so a lower latency is never slow."""
    return (F.col("latency_ms") >= F.col("requests") * SLOWED_BY_MS) & (F.col("requests") > 0)


def _is_held() -> Column:
    return (F.col("kind") == _VOLUME) & (F.col("throttled") > 0)


def _is_slow(latency: Column) -> Column:
    return (latency >= F.col("usual") * SLOWED) & (latency >= F.col("usual") + SLOWED_BY_MS)


def _nobody() -> Column:
    """The `client` of rows without a user and a client-id: an address alone is no client."""
    return F.xxhash64(*(F.lit(None).cast("string") for _ in _CLIENT), *(F.lit(True) for _ in _CLIENT))


def _topics(hours: HourEvents) -> DataFrame:
    """Rejections by topic, reason and client."""
    last = F.max(F.struct("last_ms", "rate", "limit", "total_rate", "total_limit"))
    return (
        hours.of(*_OTHERS["topics"])
        .groupBy(*HOUR, "topic", "reason", "enforced", *_CLIENT)
        .agg(
            F.sum("count").alias("rejections"),
            F.sum("amount").alias("bytes"),
            F.max("rate").alias("peak_rate"),
            F.max("total_rate").alias("peak_total_rate"),
            last["limit"].alias("limit"),
            last["total_limit"].alias("total_limit"),
            F.min("time_ms").alias("first_ms"),
            F.max("last_ms").alias("last_ms"),
        )
    )


def _connections(hours: HourEvents) -> DataFrame:
    """Refused or closed connections by reason, listener, address and user."""
    return (
        hours.of(*_OTHERS["connections"])
        .groupBy(*HOUR, "reason", "listener", "address", "user")
        .agg(F.sum("count").alias("count"), F.min("time_ms").alias("first_ms"), F.max("last_ms").alias("last_ms"))
    )


def _shadows(hours: HourEvents) -> DataFrame:
    """The minutes of shadow limits, by entity, matched entity and limit. A minute has the `seconds` of its busiest gateway."""
    minutes = (
        hours.of(*_OTHERS["shadows"])
        .groupBy(*HOUR, *BUCKET, "limit", "time_ms")
        .agg(
            F.max("active_seconds").alias("seconds"),
            *(F.sum(name).alias(name) for name in ("amount", "count", "throttle_ms")),
            F.max("throttle_max_ms").alias("throttle_max_ms"),
        )
    )
    return minutes.groupBy(*HOUR, *BUCKET, "limit").agg(
        F.count("*").alias("minutes"),
        F.count_if(F.col("count") > 0).alias("throttled_minutes"),
        F.sum("seconds").alias("seconds"),
        F.sum("amount").alias("amount"),
        F.sum("count").alias("throttled"),
        F.sum("throttle_ms").alias("throttle_ms"),
        F.max("throttle_max_ms").alias("throttle_max_ms"),
        F.min("time_ms").alias("first_ms"),
        (F.max("time_ms") + MINUTE_SECONDS * 1000).alias("last_ms"),
    )


def _groups(hours: HourEvents) -> DataFrame:
    names = _names(hours).where(F.col("group").isNotNull()).select("entity", "group").distinct()
    return group_hours(hours.minutes.where("of_group").drop("group").join(names, "entity"), hours.of("group"))


def _changes(hours: HourEvents) -> DataFrame:
    """Changes of the configuration, of quotas and of the volume state. The events are few, so they are not aggregated."""
    return hours.of(*_OTHERS["changes"]).select(*HOUR, *_OF_CHANGES)


_OF_CHANGES = (
    "type", "time_ms", "gateway", "result", "config_version", "changes", "kind", "quota", *_CLIENT, "ip", "group",
    "old_limit", "new_limit", "source", "principal", "state", "previous", "factor", "reason", "broker", "volume",
    "capacity_bytes", "consumed_bytes", "enforced",
)  # fmt: skip


_HOURLY = {
    "names": _names,
    "entities": _entities,
    "places": _places,
    "rates": rates,
    "throttle_percentiles": _throttle_percentiles,
    "minutes": _minutes,
    "five_minutes": _five_minutes,
    "neighbours": _neighbours,
    "topics": _topics,
    "connections": _connections,
    "shadows": _shadows,
    "groups": _groups,
    "changes": _changes,
}


def rare_schemas() -> dict[str, StructType]:
    """The schemas of the tables of `rare`."""
    hour, client = "date date, hour int, ", "user string, client_id string, "
    bucket = ", ".join(f"{name} string" for name in BUCKET)
    texts = {
        "neighbours": "client bigint, by_client bigint, minutes bigint, slowed_minutes bigint, held_minutes bigint,"
        " held_ms bigint, by_bytes double, all_bytes double",
        "topics": f"topic string, reason string, enforced boolean, {client}rejections bigint, bytes double, peak_rate double,"
        " peak_total_rate double, limit double, total_limit double, first_ms bigint, last_ms bigint",
        "connections": "reason string, listener string, address string, user string, count bigint, first_ms bigint,"
        " last_ms bigint",
        "shadows": f"{bucket}, limit double, minutes bigint, throttled_minutes bigint, seconds bigint, amount double,"
        " throttled bigint, throttle_ms bigint, throttle_max_ms bigint, first_ms bigint, last_ms bigint",
        "groups": GROUP_COLUMNS,
    }
    texts["changes"] = ", ".join(f"{name} {EVENT_SCHEMA[name].dataType.simpleString()}" for name in _OF_CHANGES)
    return {name: cast("StructType", StructType.fromDDL(hour + text)) for name, text in texts.items()}


_COUNTED = (*_OTHERS, "neighbours", "groups")
"""The tables that most hours lack. Without a row that `counts` counts for it, such a table would be empty."""


def counts(hours: HourEvents) -> DataFrame:
    """For each hour, the number of `lines` and of `bad` ones, and of the rows that tables of `rare` are made of."""
    of_type = F.get_json_object("text", "$.type")
    others = {name: F.count_if(_is_other() & of_type.isin(*types)) for name, types in _OTHERS.items()}
    suspects = F.count_if(F.col("minute").isNotNull() & (_may_be_slow() | _is_held()))
    numbers = {**others, "neighbours": suspects, "groups": F.count_if("of_group")}
    return (
        hours.stored.where(F.col("date").isNotNull())
        .groupBy(*HOUR)
        .agg(
            F.sum("lines").alias("lines"),
            F.sum("bad_lines").alias("bad"),
            *(numbers[name].alias(name) for name in _COUNTED),
        )
    )


def hourly(hours: HourEvents) -> dict[str, DataFrame]:
    """Every table that each hour has but `entity_minutes`, by name."""
    return {name: make(hours) for name, make in _HOURLY.items() if name not in _COUNTED}


def rare(hours: HourEvents, found: Sequence[Row]) -> dict[str, DataFrame]:
    """Every other table with rows, by name. `found` are the rows of `counts`."""
    return {name: _HOURLY[name](hours) for name in _COUNTED if any(row[name] for row in found)}
