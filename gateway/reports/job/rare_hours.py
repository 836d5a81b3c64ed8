"""The hourly tables that most hours lack: slow neighbours, groups, and events other than usage samples and throttles."""

from collections.abc import Sequence
from typing import cast

from pyspark.sql import Column, DataFrame, Row, Window
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from gateway.events import VOLUME
from gateway.reports.job.group_hours import GROUP_COLUMNS, group_hours
from gateway.reports.job.hours import (
    BUCKET,
    BYTE_KINDS,
    CLIENT,
    HOUR,
    MINUTE,
    MINUTE_SECONDS,
    HourEvents,
    is_other,
    names,
    seconds_of,
)
from gateway.reports.job.schema import EVENT_SCHEMA

TOP_USERS = 3
"""The number of top users of a minute."""
SLOWED = 2.0
"""A client was slowed in a minute if its latency was at least this multiple of the hour's mean ..."""
SLOWED_BY_MS = 10.0
"""... and exceeded the mean by at least this many ms."""


_OTHERS = {
    "topics": ("topic_rejected",),
    "connections": ("connection_rejected",),
    "shadows": ("shadow",),
    "changes": ("config", "quota_change", "grant_expired", "volume_state"),
}
"""The tables of events that are neither usage samples nor throttles, and the types of these events."""


def _neighbours(hours: HourEvents) -> DataFrame:
    """Clients that others slowed, paired with the top users (`by_client`) of the same minutes.

    A client is slowed if its broker latency rises, or if a full disk holds its records (`VOLUME`). A throttle by the client's
    own quota does not count. A client's use is the bytes produced and fetched in a minute. Each minute has `TOP_USERS` top
    users; of clients with equal use, the smaller `client` comes first. A pair needs a neighbour with more use than the client.
    """
    clients = hours.minutes.where(F.col("client") != _nobody())
    timed = F.when(F.col("latency_ms").isNotNull(), F.col("requests"))
    mean = F.try_divide(F.sum("latency_ms"), F.sum(timed))
    usual = clients.groupBy(*HOUR, "client").agg(mean.alias("usual"))
    used = F.sum(F.when(F.col("kind").isin(BYTE_KINDS), F.col("amount"))).alias("used")
    # A mean over kinds is slow only if one of the kinds is. So most minutes need not be summed.
    suspects = (
        clients.where(_may_be_slow())
        .join(usual, [*HOUR, "client"])
        .where(_is_slow(F.try_divide("latency_ms", timed)))
        .select(*MINUTE, "client")
        .unionByName(clients.where(_is_held()).select(*MINUTE, "client"))
        .distinct()
    )
    affected = (
        clients.join(suspects, [*MINUTE, "client"], "left_semi")
        .groupBy(*MINUTE, "client")
        .agg(mean.alias("latency"), used, F.sum(F.when(_is_held(), F.col("throttle_ms"))).alias("throttle_ms"))
        .join(usual, [*HOUR, "client"])
        .withColumn("slowed", F.coalesce(_is_slow(F.col("latency")), F.lit(False)))
        .where(F.col("slowed") | F.col("throttle_ms").isNotNull())
        .select(*MINUTE, "client", F.coalesce("used", F.lit(0.0)).alias("own"), "throttle_ms", "slowed")
    )
    # A new scan: the same columns on both sides of a join would be ambiguous.
    everyone = (
        hours.minutes.where(F.col("client") != _nobody())
        .join(affected.select(*MINUTE).distinct(), list(MINUTE), "left_semi")
        .groupBy(*MINUTE, "client")
        .agg(used)
        .where(F.col("used") > 0)
    )
    of_minute = Window.partitionBy(*MINUTE)
    top = (
        everyone.withColumn("place", F.row_number().over(of_minute.orderBy(F.desc("used"), "client")))
        .withColumn("all_bytes", F.sum("used").over(of_minute))
        .where(F.col("place") <= TOP_USERS)
        .select(*MINUTE, F.col("client").alias("by_client"), F.col("used").alias("by_bytes"), "all_bytes")
    )
    return (
        affected.join(top, list(MINUTE))
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


def _may_be_slow() -> Column:
    """The mean of an hour is not below 0, so a lower latency is never slow."""
    return (F.col("latency_ms") >= F.col("requests") * SLOWED_BY_MS) & (F.col("requests") > 0)


def _is_held() -> Column:
    return (F.col("kind") == VOLUME) & (F.col("throttled") > 0)


def _is_slow(latency: Column) -> Column:
    return (latency >= F.col("usual") * SLOWED) & (latency >= F.col("usual") + SLOWED_BY_MS)


def _nobody() -> Column:
    """The `client` of rows without a user and a client-id: an address alone is no client."""
    return F.xxhash64(*(F.lit(None).cast("string") for _ in CLIENT), *(F.lit(True) for _ in CLIENT))


def _topics(hours: HourEvents) -> DataFrame:
    """Rejections by topic, reason and client."""
    last = F.max(F.struct("last_ms", "rate", "limit", "total_rate", "total_limit"))
    return (
        hours.of(*_OTHERS["topics"])
        .groupBy(*HOUR, "topic", "reason", "enforced", *CLIENT)
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
    minute = (*HOUR, *BUCKET, "limit", "time_ms")
    sums, longest = ("amount", "count", "throttle_ms"), F.max("throttle_max_ms").alias("throttle_max_ms")
    of_gateways = (
        hours.of(*_OTHERS["shadows"])
        .groupBy(*minute, "gateway")
        .agg(seconds_of("active_seconds").alias("seconds"), *(F.sum(name).alias(name) for name in sums), longest)
    )
    minutes = of_gateways.groupBy(*minute).agg(
        F.max("seconds").alias("seconds"), *(F.sum(name).alias(name) for name in sums), longest
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
    of_groups = names(hours).where(F.col("group").isNotNull()).select("entity", "group").distinct()
    return group_hours(hours.minutes.where("of_group").drop("group").join(of_groups, "entity"), hours.of("group"))


def _changes(hours: HourEvents) -> DataFrame:
    """Changes of the configuration, of quotas and of the volume state. The events are few, so they are not aggregated."""
    return hours.of(*_OTHERS["changes"]).select(*HOUR, *_OF_CHANGES)


_OF_CHANGES = (
    "type", "time_ms", "gateway", "result", "config_version", "changes", "kind", "quota", *CLIENT, "ip", "group",
    "old_limit", "new_limit", "source", "principal", "state", "previous", "factor", "reason", "broker", "volume",
    "capacity_bytes", "consumed_bytes", "enforced",
)  # fmt: skip


_RARE = {
    "neighbours": _neighbours,
    "topics": _topics,
    "connections": _connections,
    "shadows": _shadows,
    "groups": _groups,
    "changes": _changes,
}
"""The tables that most hours lack. Without a row that `counts` counts for it, such a table would be empty."""


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


def counts(hours: HourEvents) -> DataFrame:
    """For each hour, the number of `lines` and of `bad` ones, and of the rows that tables of `rare` are made of."""
    of_type = F.get_json_object("text", "$.type")
    others = {name: F.count_if(is_other() & of_type.isin(*types)) for name, types in _OTHERS.items()}
    suspects = F.count_if(F.col("minute").isNotNull() & (_may_be_slow() | _is_held()))
    numbers = {**others, "neighbours": suspects, "groups": F.count_if("of_group")}
    return (
        hours.stored.where(F.col("date").isNotNull())
        .groupBy(*HOUR)
        .agg(
            F.sum("lines").alias("lines"),
            F.sum("bad_lines").alias("bad"),
            *(numbers[name].alias(name) for name in _RARE),
        )
    )


def rare(hours: HourEvents, found: Sequence[Row]) -> dict[str, DataFrame]:
    """Every other table with rows, by name. `found` are the rows of `counts`."""
    return {name: make(hours) for name, make in _RARE.items() if any(row[name] for row in found)}
