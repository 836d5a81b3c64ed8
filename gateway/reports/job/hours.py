"""The hourly aggregates that the reports read. They are computed once for each hour.

One pass over all lines makes `entity_minutes`, and with it the dictionary `names`. The other tables come from
`entity_minutes` and from the events that are not usage samples. All tables but `names` have `date` and `hour`; times are
`*_ms` since 1970. If the meaning of a table changes, increase `state.LAYOUT`, so that old hours are not mixed with new ones.

Tables carry 64-bit hashes instead of names: `entity` (a row's `ENTITY`), `bucket` (with the matched quota) and `client`
(user and client-id). A shuffle of names would cost more than the parser.

Sums and maxima of strings or structs would make Spark sort instead of hash. So aggregates over all lines use numbers only.
"""

from collections.abc import Sequence
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
_IDS = {"bucket": _BUCKET, "entity": ENTITY, "client": _CLIENT}
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
    """The events of some hours without usage samples and bad lines, and the stored rows of `entity_minutes`."""

    events: DataFrame
    stored: DataFrame

    def of(self, *types: str) -> DataFrame:
        return self.events.where(F.col("type").isin(list(types)))

    @property
    def minutes(self) -> DataFrame:
        return self.stored.where(F.col("minute").isNotNull())


def id_of(names: Sequence[str]) -> Column:
    """A hash of some columns. Spark's hash ignores nulls, so the hash includes which columns are null."""
    return F.xxhash64(*names, *(F.col(name).isNull() for name in names))


def entity_minutes(lines: DataFrame) -> DataFrame:
    """One row for each minute, entity and matched quota, summed over all gateways.

    `amount` and the active `seconds` are null in a minute without a usage sample. Gateways may be in use at the same time, so
    `seconds` is the largest of theirs. `throttled` counts enforced decisions, `noted` the others.
    `gateways` has the bits of the reporting gateways.

    Two sorts of rows have no `minute`. Rows without a `date` are the dictionary: the names of each `bucket`. Rows without a
    `bucket` count the other events of an hour. `lines` and `bad_lines` count all lines.
    """
    good = F.col("rejected").isNull()
    counted = good & F.col("type").isin("usage", "throttle")
    # Each line is one row with figures and one row with names. The partial aggregate leaves few rows with names.
    rows = lines.select(
        *HOUR, *_BUCKET, *(name for name in _FIGURES),
        *(F.when(counted, id_of(names)).alias(name) for name, names in _IDS.items()),
        F.when(counted, _minute()).alias("minute"),
        (good & (F.col("type") == "usage")).alias("is_usage"),
        (good & (F.col("type") == "throttle")).alias("is_throttle"),
        (~good).alias("bad"),
        gateway_bit().alias("gateway_bit"),
        F.explode(F.array(F.lit(False), F.lit(True))).alias("naming"),
    ).where(~F.col("naming") | F.col("bucket").isNotNull())  # fmt: skip
    named = F.col("naming")
    usage, throttle = F.col("is_usage") & ~named, F.col("is_throttle") & ~named
    enforced, noted = throttle & F.col("enforced"), throttle & ~F.col("enforced")
    keys = [F.when(~named, F.col(name)).alias(name) for name in _MINUTE]
    names = [F.when(named, F.col(name)).alias(name) for name in _BUCKET if name != "kind"]
    kind = F.when(F.col("bucket").isNotNull(), F.col("kind")).alias("kind")
    return rows.groupBy(*keys, kind, *_IDS, *names).agg(
        F.sum(F.when(usage, F.col("amount"))).alias("amount"),
        F.max(F.when(usage, F.col("limit"))).alias("usage_limit"),
        F.max(F.when(usage, F.coalesce("active_seconds", F.lit(MINUTE_SECONDS)))).alias("seconds"),
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
        F.bit_or(F.when(~named, F.col("gateway_bit"))).alias("gateways"),
        F.count_if(~named).alias("lines"),
        F.count_if(~named & F.col("bad")).alias("bad_lines"),
    )


_FIGURES = (
    "time_ms", "last_ms", "amount", "limit", "active_seconds", "requests", "latency_ms", "count", "rate", "throttle_ms",
    "throttle_max_ms", "early_count", "early_ms", "early_max_ms", "enforced",
)  # fmt: skip


def _names(hours: HourEvents) -> DataFrame:
    """The dictionary of the batch: the names behind each `bucket`, `entity` and `client`. It has no date and no hour."""
    rows = hours.stored.where(F.col("date").isNull() & F.col("bucket").isNotNull())
    return rows.select(*_IDS, *_BUCKET)


SUMS = ("throttled", "throttle_ms", "throttled_amount", "noted", "noted_ms", "early_count", "early_ms")
MAXIMA = ("throttle_max_ms", "throttle_rate", "early_max_ms", "last_ms")


def _entities(hours: HourEvents) -> DataFrame:
    """One row for each hour, entity and matched quota.

    `active_minutes` have a usage sample, and `limited_minutes` of them had a limit. `limited_seconds` are the active seconds of
    the latter. `capacity` is the sum of limit times seconds, and `limited_amount` the use in these minutes. `limit` is the
    hour's highest. `demand_amount` and `demand_seconds` are those of `_demand_seconds`.
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
        F.sum(F.when(held_back, _demand_seconds())).alias("demand_seconds"),
        *(F.sum(name).alias(name) for name in SUMS),
        *(F.max(name).alias(name) for name in MAXIMA),
        F.min("first_ms").alias("first_ms"),
    )


def _demand_seconds() -> Column:
    """The active seconds of a minute without its throttle time: the client could send only in these.

    Several connections may wait at the same time, so the throttle time may exceed the minute. At least a tenth of the active
    seconds remains.
    """
    waited = F.col("throttle_ms") / 1000
    return F.greatest(F.col("seconds") - waited, F.col("seconds") / 10)


def _longest(hours: HourEvents) -> DataFrame:
    """The longest throttle of each entity and hour, with the client's address, the broker and the API."""
    worst = F.struct("throttle_max_ms", "time_ms", "address", "broker", "api")
    return hours.of("throttle").groupBy(*HOUR, id_of(ENTITY).alias("entity")).agg(F.max(worst).alias("worst"))


def _rates(hours: HourEvents) -> DataFrame:
    """For each entity, the number of minutes in each `slot` of the use in 60 active seconds, under one quota.

    A minute with throttles is left out: its use does not show the demand. So is a minute if more was given back than used,
    for example for mutations that a broker refused.
    """
    used = hours.minutes.where((F.col("amount") > 0) & (F.coalesce("throttled", F.lit(0)) == 0))
    in_a_minute = F.ceil(F.col("amount") * MINUTE_SECONDS / F.col("seconds"))
    return used.groupBy(*HOUR, "entity", slot_of(in_a_minute).alias("slot")).count()


def _throttle_times(hours: HourEvents) -> DataFrame:
    """The number of throttle times in each slot, by kind."""
    each = hours.of("throttle").select(*HOUR, "kind", "enforced", F.explode("throttle_slots").alias("slot", "times"))
    return each.groupBy(*HOUR, "kind", "enforced", F.col("slot").cast("int").alias("slot")).agg(F.sum("times").alias("count"))


def gateway_bit() -> Column:
    """One of 64 bits for a row's gateway, so that a set of gateways is one number. Two gateways may share a bit."""
    bit = F.pmod(F.xxhash64("gateway"), F.lit(64)).cast("int")
    return F.call_function("shiftleft", F.lit(1).cast("long"), bit)


def _minutes(hours: HourEvents) -> DataFrame:
    """One row for each minute and kind, summed over the entities. `throttled_entities` counts the throttled ones.

    `seconds` are the active seconds of the most active entity, null without a usage sample.
    """
    return hours.minutes.groupBy(*HOUR, "minute", "kind").agg(
        *(F.sum(name).alias(name) for name in ("amount", "requests", "latency_ms", *SUMS)),
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
        clients.where((F.col("latency_ms") >= timed * SLOWED_BY_MS) & (F.col("requests") > 0))
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


_HOURLY = {
    "names": _names,
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


def hourly(hours: HourEvents) -> dict[str, DataFrame]:
    """Every table but `entity_minutes`, by name."""
    return {name: make(hours) for name, make in _HOURLY.items()}


def _minute() -> Column:
    return F.floor((F.col("time_ms") % 3_600_000) / 60_000).cast("int")


def _sum(which: Column, column: str, name: str | None = None) -> Column:
    return F.sum(F.when(which, F.col(column))).alias(name or column)
