"""The tables that reports read: the hourly aggregates of the requested hours."""

from collections.abc import Iterable, Mapping
from functools import cached_property

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from gateway.reports.job.hours import ENTITY_MINUTES, MAXIMA, SUMS, HourEvents, rates
from gateway.reports.job.period import Hour
from gateway.reports.job.state import DoneHour, State

_SUMMED = (
    "active_minutes",
    "amount",
    "requests",
    "limited_minutes",
    "limited_seconds",
    "capacity",
    "limited_amount",
    "above_80_minutes",
    "above_100_minutes",
    "throttled_minutes",
    "demand_amount",
    "demand_seconds",
    *SUMS,
)


class StoredTables:
    """Implements `Tables`. Reads a table when a report first needs it."""

    def __init__(self, state: State, hours: Mapping[Hour, DoneHour]) -> None:
        self._state = state
        self._hours = hours

    def table(self, name: str, hours: Iterable[Hour] | None = None) -> DataFrame:
        wanted = self._hours if hours is None else {hour: self._hours[hour] for hour in hours if hour in self._hours}
        return self._state.read(name, wanted)

    @cached_property
    def entities(self) -> DataFrame:
        return self.table("entities")

    @cached_property
    def names(self) -> DataFrame:
        return self.table("names").distinct().cache()

    @cached_property
    def clients(self) -> DataFrame:
        return self.names.select("client", "user", "client_id").distinct()

    @cached_property
    def totals(self) -> DataFrame:
        """`limit` and `quota` are the last ones of the entity."""
        latest = _latest()
        limited = F.when(F.col("limit").isNotNull(), latest)
        places = self.table("places").distinct().select(F.col("place").alias("worst_place"), F.col("names").alias("worst"))
        totals = self.entities.groupBy("entity").agg(
            *(F.sum(name).alias(name) for name in _SUMMED),
            *(F.max(name).alias(name) for name in ("peak_minute", "peak_utilisation", *MAXIMA)),
            F.min("first_ms").alias("first_ms"),
            F.max_by("limit", limited).alias("limit"),
            F.coalesce(F.max_by("bucket", limited), F.max_by("bucket", latest)).alias("bucket"),
            F.max_by("worst_place", "worst").alias("worst_place"),
        )
        named = totals.join(self.names.drop("entity", "client"), "bucket")
        return named.join(places, "worst_place", "left").drop("bucket", "worst_place").cache()

    @cached_property
    def rates(self) -> DataFrame:
        whole = self._state.in_whole_batches(self._hours)
        rows = self._state.read("rates", whole)
        rest = self._hours.keys() - whole.keys()
        return rows.unionByName(rates(HourEvents(self.table(ENTITY_MINUTES, rest)))) if rest else rows

    @cached_property
    def minutes(self) -> DataFrame:
        return self.table("minutes")


def _latest() -> Column:
    """A number that orders the hours of an entity's quotas: by hour, then by active minutes, then by the last throttle.

    Spark hashes a maximum of numbers. It would sort for a maximum of structs.
    """
    hour = F.unix_date("date").cast("long") * 24 + F.col("hour")
    of_hour = F.coalesce(F.col("last_ms") - hour * 3_600_000, F.lit(0))
    return (hour * 64 + F.col("active_minutes")) * 4_000_000 + F.least(of_hour, F.lit(3_999_999))
