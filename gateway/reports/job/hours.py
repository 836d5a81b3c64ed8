"""The hourly aggregates that the reports read. They are computed once for each hour.

One pass over all lines makes `entity_minutes`. The tables of `HOURLY` come from `entity_minutes` and from the events that
are not usage samples. All tables have `date` and `hour`; times are `*_ms` since 1970. If the meaning of a table changes,
increase `state.LAYOUT`, so that old hours are not mixed with new ones.

Sums and maxima of strings or structs would make Spark sort instead of hash. So aggregates over all lines use numbers only.
"""

from collections.abc import Callable
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from gateway.quotas.kinds import BYTES, UNITS
from gateway.reports.job.columns import slot_of
from gateway.reports.report import ENTITY

HOUR = ("date", "hour")
ENTITY_MINUTES = "entity_minutes"
_BUCKET = (*ENTITY, "quota")
_CLIENT = ("user", "client_id")
_BYTE_KINDS = [kind.name for kind in UNITS[BYTES]]
_MINUTE = (*HOUR, "minute")

MINUTE_SECONDS = 60
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
    """The events of some hours without usage samples and bad lines, and the minutes of each entity and client."""

    events: DataFrame
    entity_minutes: DataFrame
    client_minutes: DataFrame

    def of(self, *types: str) -> DataFrame:
        return self.events.where(F.col("type").isin(list(types)))


def entity_minutes(lines: DataFrame) -> DataFrame:
    """One row for each minute, entity and matched quota, summed over all gateways.

    `amount` is null in a minute without a usage sample. `throttled` counts enforced decisions, `noted` the others.
    `gateways` has the bits of the reporting gateways. `lines` and `bad_lines` count all lines of the hour: other events and
    bad lines are in rows without a kind.
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
    """One row for each hour, entity and matched quota.

    `active_minutes` have a usage sample, and `limited_minutes` of them had a limit. `capacity` is the sum of these limits,
    and `limited_amount` the use in these minutes. `limit` is the hour's highest.
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
    """A hash of a row's entity. Spark's hash ignores nulls, so the hash includes which columns are null."""
    return F.xxhash64(*ENTITY, *(F.col(part).isNull() for part in ENTITY))


def _longest(hours: HourEvents) -> DataFrame:
    """The longest throttle of each entity and hour, with the client's address, the broker and the API."""
    worst = F.struct("throttle_max_ms", "time_ms", "address", "broker", "api")
    return hours.of("throttle").groupBy(*HOUR, *ENTITY).agg(F.max(worst).alias("worst"))


def _rates(hours: HourEvents) -> DataFrame:
    """For each entity, the number of minutes in each `slot` of the amount used under one quota.

    A minute is left out if more was given back than used, for example for mutations that a broker refused. The table is by
    far the longest, so it identifies entities by `entity_id` only.
    """
    used = hours.entity_minutes.where(F.col("amount") > 0)
    return used.groupBy(*HOUR, entity_id().alias("entity_id"), slot_of(F.ceil("amount")).alias("slot")).count()


def _throttle_times(hours: HourEvents) -> DataFrame:
    """The number of throttle times in each slot, by kind."""
    each = hours.of("throttle").select(*HOUR, "kind", "enforced", F.explode("throttle_slots").alias("slot", "times"))
    return each.groupBy(*HOUR, "kind", "enforced", F.col("slot").cast("int").alias("slot")).agg(F.sum("times").alias("count"))


def gateway_bit() -> Column:
    """One of 64 bits for a row's gateway, so that a set of gateways is one number. Two gateways may share a bit."""
    bit = F.pmod(F.xxhash64("gateway"), F.lit(64)).cast("int")
    return F.call_function("shiftleft", F.lit(1).cast("long"), bit)


def _minutes(hours: HourEvents) -> DataFrame:
    """One row for each minute and kind, summed over the entities. `throttled_entities` counts the throttled ones."""
    return hours.entity_minutes.groupBy(*HOUR, "minute", "kind").agg(
        *(F.sum(name).alias(name) for name in ("amount", "requests", "latency_ms", *SUMS)),
        F.count_if(F.col("throttled") > 0).alias("throttled_entities"),
        F.bit_or("gateways").alias("gateways"),
    )


def client_number() -> Column:
    """A hash of a row's client (`user`, `client_id`). Spark groups and sorts numbers far faster than names."""
    return F.xxhash64(*_CLIENT, *(F.col(part).isNull() for part in _CLIENT))


def client_minutes(minutes: DataFrame) -> DataFrame:
    """One row for each minute and client, over all kinds: bytes `used`, throttle time and mean `latency`."""
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
    """Clients that were throttled or slowed, paired with the top users (`by_user`, `by_client_id`) of the same minutes.

    A client's use is the bytes produced and fetched in a minute. Each minute has `TOP_USERS` top users.
    """
    clients = hours.client_minutes
    names = hours.entity_minutes.select(client_number().alias("client"), *_CLIENT).distinct()
    throttled = F.coalesce(F.col("throttle_ms") > 0, F.lit(False))
    usual = clients.groupBy(*HOUR, "client").agg((F.sum("latency_ms") / F.sum("requests")).alias("usual"))
    slowed = (F.col("latency") >= F.col("usual") * SLOWED) & (F.col("latency") >= F.col("usual") + SLOWED_BY_MS)
    affected = (
        clients.where(throttled | (F.col("latency") >= SLOWED_BY_MS))  # keeps few rows, as the usual latency is >= 0
        .join(usual, [*HOUR, "client"])
        .withColumn("slowed", F.coalesce(slowed, F.lit(False)))
        .where(throttled | F.col("slowed"))
        .select(*_MINUTE, "client", F.when(throttled, F.col("throttle_ms")).alias("throttle_ms"), "slowed")
    )
    of_minute = Window.partitionBy(*_MINUTE)
    top = (
        clients.where(F.col("used") > 0)
        .withColumn("place", F.rank().over(of_minute.orderBy(F.desc("used"))))
        .where(F.col("place") <= TOP_USERS)
        .join(names, "client")
        # Clients with equal use are ordered by name.
        .withColumn("place", F.row_number().over(of_minute.orderBy(F.desc("used"), *_CLIENT)))
        .where(F.col("place") <= TOP_USERS)
        .select(*_MINUTE, F.col("client").alias("by_client"), F.col("used").alias("by_bytes"))
    )
    everyone = clients.groupBy(*_MINUTE).agg(F.sum("used").alias("all_bytes"))
    pairs = (
        affected.join(top.join(everyone, list(_MINUTE)), list(_MINUTE))
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
    """Rejections by topic, reason and client."""
    last = F.max(F.struct("last_ms", "rate", "limit", "total_rate", "total_limit"))
    return (
        hours.of("topic_rejected")
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
    """Refused or closed connections by reason, listener and address."""
    return (
        hours.of("connection_rejected")
        .groupBy(*HOUR, "reason", "listener", "address")
        .agg(F.sum("count").alias("count"), F.min("time_ms").alias("first_ms"), F.max("last_ms").alias("last_ms"))
    )


def _changes(hours: HourEvents) -> DataFrame:
    """Changes of the configuration, of quotas and of the volume state. The events are few, so they are not aggregated."""
    return hours.of("config", "quota_change", "volume_state").select(
        *HOUR, "type", "time_ms", "gateway", "result", "config_version", "changes", "kind", "quota", *_CLIENT, "ip",
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
