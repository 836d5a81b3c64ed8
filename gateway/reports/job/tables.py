"""The tables that reports read: the hourly aggregates of the requested hours."""

from collections.abc import Mapping
from functools import cached_property, reduce

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from gateway.reports.job.hours import MAXIMA, SUMS
from gateway.reports.job.period import Hour
from gateway.reports.job.state import DoneHour, State
from gateway.reports.report import ENTITY

_SUMMED = (
    "active_minutes",
    "amount",
    "requests",
    "limited_minutes",
    "capacity",
    "limited_amount",
    "above_80_minutes",
    "above_100_minutes",
    "throttled_minutes",
    *SUMS,
)


class StoredTables:
    """Implements `Tables`. Reads a table when a report first needs it."""

    def __init__(
        self, spark: SparkSession, state: State, hours: Mapping[Hour, DoneHour], schemas: Mapping[str, StructType]
    ) -> None:
        self._spark = spark
        self._state = state
        self._hours = hours
        self._schemas = schemas

    def table(self, name: str) -> DataFrame:
        return self._state.read(name, self._hours, self._schemas[name])

    @cached_property
    def entities(self) -> DataFrame:
        return self.table("entities")

    @cached_property
    def totals(self) -> DataFrame:
        """`limit` and `quota` are the last ones of the entity."""
        last = F.struct("date", "hour", "active_minutes", "last_ms", "limit", "quota")
        longest = (
            self.table("longest")
            .groupBy(*(F.col(name).alias(f"_{name}") for name in ENTITY))
            .agg(F.max("worst").alias("worst"))
        )
        same = reduce(Column.__and__, (F.col(name).eqNullSafe(F.col(f"_{name}")) for name in ENTITY))
        totals = (
            self.entities.groupBy(*ENTITY)
            .agg(
                *(F.sum(name).alias(name) for name in _SUMMED),
                *(F.max(name).alias(name) for name in ("peak_minute", "peak_utilisation", *MAXIMA)),
                F.min("first_ms").alias("first_ms"),
                F.max(F.when(F.col("limit").isNotNull(), last)).alias("_last"),
                F.max("quota").alias("_any_quota"),
            )
            .withColumns({"limit": F.col("_last.limit"), "quota": F.coalesce("_last.quota", "_any_quota")})
        )
        return totals.join(longest, same, "left").drop("_last", "_any_quota", *(f"_{name}" for name in ENTITY)).cache()

    @cached_property
    def minutes(self) -> DataFrame:
        return self.table("minutes")
