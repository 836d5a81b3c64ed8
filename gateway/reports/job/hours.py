"""The hourly aggregates: what the reports need of an hour. They are made once.

First `entity_minutes`, from one pass over all lines; from those, and from the lines that are not usage samples, `HOURLY`. All
have `date` and `hour`; times are `*_ms` since 1970 as in the events. Change what a table means, and `state.LAYOUT` has to be
raised, so that old hours are not mixed with new ones.

Sums and maxima of strings or structs would make Spark sort instead of hash, so over all lines there are only those of numbers.
"""

from collections.abc import Callable
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from gateway.quotas.kinds import BYTES, UNITS
from gateway.reports.job.histogram import slot_of
from gateway.reports.report import ENTITY

HOUR = ("date", "hour")
ENTITY_MINUTES = "entity_minutes"
_BUCKET = (*ENTITY, "quota")
_WHO = ("user", "client_id")
_BYTE_KINDS = [kind.name for kind in UNITS[BYTES]]
_MINUTE = (*HOUR, "minute")

MINUTE_SECONDS = 60
NEARLY_FULL = 0.8
"""Of a quota: who is above that will soon be throttled."""
TOP_USERS = 3
"""So many users of a minute count as those who used most."""
SLOWED = 2.0
"""A client was slowed in a minute in which its brokers took this many times as long as on the hour's average, ..."""
SLOWED_BY_MS = 10.0
"""... and longer by at least this much."""


@dataclass(frozen=True)
class HourEvents:
    """Some hours: their good events but the usage samples, and what each entity and each client did in their minutes."""

    events: DataFrame
    entity_minutes: DataFrame
    client_minutes: DataFrame

    def of(self, *types: str) -> DataFrame:
        """The events of some types."""
        return self.events.where(F.col("type").isin(list(types)))


def entity_minutes(lines: DataFrame) -> DataFrame:
    """A row for each minute of the hour, entity and matched quota, all gateways together.

    `amount` is null in a minute for which there is no usage sample. `throttled` decisions were enforced, `noted` ones were not.
    `gateways` has the bits of those that told of it. `lines` and `bad_lines` add up to all lines of an hour: those of other
    events and the bad ones stand in rows without a kind.
    """
    good = F.col("rejected").isNull()
    usage, throttle = good & (F.col("type") == "usage"), good & (F.col("type") == "throttle")
    enforced = throttle & F.col("enforced")
    noted = throttle & ~F.col("enforced")
    counted = F.coalesce(usage | throttle, F.lit(False))
    keys = {"minute": _minute()} | {name: F.col(name) for name in _BUCKET}
    return lines.groupBy(*HOUR, *(F.when(counted, value).alias(name) for name, value in keys.items())).agg(
        F.sum(F.when(usage, F.col("amount"))).alias("amount"),
        F.max(F.when(usage, F.col("limit"))).alias("usage_limit"),
        F.max(F.when(throttle, F.col("limit"))).alias("throttle_limit"),
        _sum(usage, "requests"),
        _sum(usage, "latency_ms"),
        _sum(enforced, "count", "throttled"),
        _sum(enforced, "throttle_ms"),
        F.max(F.when(throttle, F.col("throttle_max_ms"))).alias("throttle_max_ms"),
        _sum(throttle, "amount", "throttled_amount"),
        F.max(F.when(throttle, F.col("rate"))).alias("throttle_rate"),
        _sum(noted, "count", "noted"),
        _sum(noted, "throttle_ms", "noted_ms"),
        _sum(throttle, "early_count"),
        _sum(throttle, "early_ms"),
        F.max(F.when(throttle, F.col("early_max_ms"))).alias("early_max_ms"),
        F.min(F.when(throttle, F.col("time_ms"))).alias("first_ms"),
        F.max(F.when(throttle, F.col("last_ms"))).alias("last_ms"),
        F.bit_or(gateway_bit()).alias("gateways"),
        F.count("*").alias("lines"),
        F.count("rejected").alias("bad_lines"),
    )


SUMS = ("throttled", "throttle_ms", "throttled_amount", "noted", "noted_ms", "early_count", "early_ms")
MAXIMA = ("throttle_max_ms", "throttle_rate", "early_max_ms", "last_ms")


def _entities(hours: HourEvents) -> DataFrame:
    """A row for each hour, entity and matched quota.

    `active_minutes` have a usage sample; of them `limited_minutes` had a limit, `capacity` is what those limits allowed and
    `limited_amount` what was used then. `limit` is the highest of the hour.
    """
    limited = F.col("usage_limit").isNotNull() & F.col("amount").isNotNull()
    allowed = F.col("usage_limit") * MINUTE_SECONDS
    return hours.entity_minutes.groupBy(*HOUR, *_BUCKET).agg(
        F.count("amount").alias("active_minutes"),
        F.sum("amount").alias("amount"),
        F.max("amount").alias("peak_minute"),
        F.sum("requests").alias("requests"),
        F.max(F.coalesce("usage_limit", "throttle_limit")).alias("limit"),
        F.count_if(limited).alias("limited_minutes"),
        F.sum(F.when(limited, allowed)).alias("capacity"),
        F.sum(F.when(limited, F.col("amount"))).alias("limited_amount"),
        F.max(F.when(limited, F.col("amount") / allowed)).alias("peak_utilisation"),
        F.count_if(limited & (F.col("amount") >= allowed * NEARLY_FULL)).alias("above_80_minutes"),
        F.count_if(limited & (F.col("amount") >= allowed)).alias("above_100_minutes"),
        F.count_if(F.col("throttled") > 0).alias("throttled_minutes"),
        *(F.sum(name).alias(name) for name in SUMS),
        *(F.max(name).alias(name) for name in MAXIMA),
        F.min("first_ms").alias("first_ms"),
    )


def entity_id() -> Column:
    """A number for the entity of a row. Spark's hash passes over nulls, so which parts are null goes into it as well."""
    return F.xxhash64(*ENTITY, *(F.col(part).isNull() for part in ENTITY))


def _longest(hours: HourEvents) -> DataFrame:
    """Each entity's longest throttle of the hour: the client, the broker and the api that it was for."""
    worst = F.struct("throttle_max_ms", "time_ms", "address", "broker", "api")
    return hours.of("throttle").groupBy(*HOUR, *ENTITY).agg(F.max(worst).alias("worst"))


def _rates(hours: HourEvents) -> DataFrame:
    """How many minutes an entity used so much: `slot` is that of the minute's whole amount under one quota.

    Minutes in which more was given back than used, as of mutations that a broker refused, are none of them.

    By far the longest table, so it knows entities by `entity_id` only.
    """
    used = hours.entity_minutes.where(F.col("amount") > 0)
    return used.groupBy(*HOUR, entity_id().alias("entity_id"), slot_of(F.ceil("amount")).alias("slot")).count()


def _throttle_times(hours: HourEvents) -> DataFrame:
    """How many throttle times of a kind fell into which slot."""
    each = hours.of("throttle").select(*HOUR, "kind", "enforced", F.explode("throttle_slots").alias("slot", "times"))
    return each.groupBy(*HOUR, "kind", "enforced", F.col("slot").cast("int").alias("slot")).agg(F.sum("times").alias("count"))


def gateway_bit() -> Column:
    """One of 64 bits for the gateway of a row. A set of gateways is a number then; two that share a bit are not told apart."""
    bit = F.pmod(F.xxhash64("gateway"), F.lit(64)).cast("int")
    return F.call_function("shiftleft", F.lit(1).cast("long"), bit)


def _minutes(hours: HourEvents) -> DataFrame:
    """Each minute of each kind, all entities together; `throttled_entities`: how many of them were held in it; `gateways` as in
    `entity_minutes`."""
    return hours.entity_minutes.groupBy(*HOUR, "minute", "kind").agg(
        *(F.sum(name).alias(name) for name in ("amount", "requests", "latency_ms", *SUMS)),
        F.count_if(F.col("throttled") > 0).alias("throttled_entities"),
        F.bit_or("gateways").alias("gateways"),
    )


def client_number() -> Column:
    """A number for the client (`user`, `client_id`) of a row: numbers are grouped and sorted far faster than names."""
    return F.xxhash64(*_WHO, *(F.col(part).isNull() for part in _WHO))


def client_minutes(minutes: DataFrame) -> DataFrame:
    """A row for each minute and client (by `client_number`), of all kinds: bytes `used`, throttle time and mean `latency`."""
    timed = F.when(F.col("latency_ms").isNotNull(), F.col("requests"))
    return (
        minutes.where(F.col("user").isNotNull() | F.col("client_id").isNotNull())
        .groupBy(*_MINUTE, client_number().alias("client"))
        .agg(
            F.sum(F.when(F.col("kind").isin(_BYTE_KINDS), F.col("amount"))).alias("used"),
            F.sum("throttle_ms").alias("throttle_ms"),
            (F.sum("latency_ms") / F.sum(timed)).alias("latency"),
            F.sum("latency_ms").alias("latency_ms"),
            F.sum(timed).alias("requests"),
        )
    )


def _neighbours(hours: HourEvents) -> DataFrame:
    """Who (`user`, `client_id`) was throttled or slowed while others (`by_user`, `by_client_id`) used most.

    Used: bytes produced and fetched in a minute, all clients of an entity together; TOP_USERS of the minute count.
    """
    clients = hours.client_minutes
    names = hours.entity_minutes.select(client_number().alias("client"), *_WHO).distinct()
    held = F.coalesce(F.col("throttle_ms") > 0, F.lit(False))
    usual = clients.groupBy(*HOUR, "client").agg((F.sum("latency_ms") / F.sum("requests")).alias("usual"))
    slowed = (F.col("latency") >= F.col("usual") * SLOWED) & (F.col("latency") >= F.col("usual") + SLOWED_BY_MS)
    sufferers = (
        clients.where(held | (F.col("latency") >= SLOWED_BY_MS))  # few; and the usual latency is not below 0
        .join(usual, [*HOUR, "client"])
        .withColumn("slowed", F.coalesce(slowed, F.lit(False)))
        .where(held | F.col("slowed"))
        .select(*_MINUTE, "client", F.when(held, F.col("throttle_ms")).alias("throttle_ms"), "slowed")
    )
    of_minute = Window.partitionBy(*_MINUTE)
    top = (
        clients.where(F.col("used") > 0)
        .withColumn("place", F.rank().over(of_minute.orderBy(F.desc("used"))))
        .where(F.col("place") <= TOP_USERS)
        .join(names, "client")
        # Among those who used the same, the names decide.
        .withColumn("place", F.row_number().over(of_minute.orderBy(F.desc("used"), *_WHO)))
        .where(F.col("place") <= TOP_USERS)
        .select(*_MINUTE, F.col("client").alias("by_client"), F.col("used").alias("by_bytes"))
    )
    everyone = clients.groupBy(*_MINUTE).agg(F.sum("used").alias("all_bytes"))
    pairs = (
        sufferers.join(top.join(everyone, list(_MINUTE)), list(_MINUTE))
        .where(F.col("client") != F.col("by_client"))
        .groupBy(*HOUR, "client", "by_client")
        .agg(
            F.count("*").alias("minutes"),
            F.count("throttle_ms").alias("throttled_minutes"),
            F.count_if("slowed").alias("slowed_minutes"),
            F.sum("throttle_ms").alias("throttle_ms"),
            F.sum("by_bytes").alias("by_bytes"),
            F.sum("all_bytes").alias("all_bytes"),
        )
    )
    by_names = names.select(
        F.col("client").alias("by_client"), F.col("user").alias("by_user"), F.col("client_id").alias("by_client_id")
    )
    return pairs.join(names, "client").join(by_names, "by_client").drop("client", "by_client")


def _topics(hours: HourEvents) -> DataFrame:
    """What was rejected of which topic, by whom it was sent and why."""
    last = F.max(F.struct("last_ms", "rate", "limit", "total_rate", "total_limit"))
    return (
        hours.of("topic_rejected")
        .groupBy(*HOUR, "topic", "reason", "enforced", *_WHO)
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
    """Connections that were refused or closed, by reason, listener and address."""
    return (
        hours.of("connection_rejected")
        .groupBy(*HOUR, "reason", "listener", "address")
        .agg(F.sum("count").alias("count"), F.min("time_ms").alias("first_ms"), F.max("last_ms").alias("last_ms"))
    )


def _changes(hours: HourEvents) -> DataFrame:
    """Changes of configuration, quotas and the volumes' state: the events as they are, for they are few."""
    return hours.of("config", "quota_change", "volume_state").select(
        *HOUR, "type", "time_ms", "gateway", "result", "config_version", "changes", "kind", "quota", *_WHO, "ip",
        "old_limit", "new_limit", "source", "principal", "state", "previous", "factor", "reason", "broker", "volume",
        "capacity_bytes", "consumed_bytes", "enforced",
    )  # fmt: skip


HOURLY: dict[str, Callable[[HourEvents], DataFrame]] = {
    "entities": _entities,
    "longest": _longest,
    "rates": _rates,
    "throttle_times": _throttle_times,
    "minutes": _minutes,
    "neighbours": _neighbours,
    "topics": _topics,
    "connections": _connections,
    "changes": _changes,
}


def _minute() -> Column:
    return F.floor((F.col("time_ms") % 3_600_000) / 60_000).cast("int")


def _sum(which: Column, column: str, name: str | None = None) -> Column:
    return F.sum(F.when(which, F.col(column))).alias(name or column)
