"""The tables that reports read: the aggregates of the requested hours, from the roll-ups of whole days and from hours."""

import datetime as dt
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from gateway.reports.job.columns import hour_since_1970
from gateway.reports.job.hours import ENTITY_MINUTES, MAXIMA, SUMS, HourEvents, rates
from gateway.reports.job.owners import GROUP, NO_GROUP, months_of, owner_days, owners_of, summed_months
from gateway.reports.job.period import Hour
from gateway.reports.job.phrases import counted
from gateway.reports.job.state import DoneHour, State

_MAX_SINGLE_HOURS = 24
"""With more hours outside of roll-ups, the days of owners cost more to sum up than to keep in memory."""

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


_DAYS_AT_ONCE = 10
"""The most days of a roll-up. A late file repeats the roll-up of all of its days."""


def roll_up(state: State, hours: Mapping[Hour, DoneHour], progress: Callable[[str], None]) -> None:
    """Store the sums of whole days in `hours` that are over: reports then need not read their hours.

    Calls `progress` with a line before some days.
    """
    over = [date for date in state.whole_days(hours) if state.is_over(date)]
    done = state.in_whole_roll_ups(over)
    missing = [date for date in over if date not in done]
    for first in range(0, len(missing), _DAYS_AT_ONCE):
        dates = missing[first : first + _DAYS_AT_ONCE]
        progress(f"adding up {counted(len(dates), 'day that is over', 'days that are over')}")
        days = StoredTables(state, {hour: done for hour, done in hours.items() if hour[0] in dates})
        tables = days.sums_of_days()
        state.write_days(dates, tables)
        tables["owner_days"].unpersist()


class StoredTables:
    """Implements `Tables`. Reads a table when a report first needs it."""

    def __init__(self, state: State, hours: Mapping[Hour, DoneHour]) -> None:
        self._state = state
        self._hours = hours
        self._days = [date for date, is_rolled_up in state.whole_days(hours).items() if is_rolled_up]
        self._rest = {hour: done for hour, done in hours.items() if hour[0] not in self._days}

    def within(self, spark: SparkSession) -> "StoredTables":
        """The same tables for the queries of another session."""
        return StoredTables(self._state.within(spark), self._hours)

    @property
    def single_hours(self) -> int:
        """The number of hours that are not in roll-ups."""
        return len(self._rest)

    def table(self, name: str, hours: Iterable[Hour] | None = None) -> DataFrame:
        wanted = self._hours if hours is None else {hour: self._hours[hour] for hour in hours if hour in self._hours}
        return self._state.read(name, wanted)

    def sums_of_days(self) -> Mapping[str, DataFrame]:
        """The tables of a roll-up. `sums` and `owner_days` have dates. The latter is in memory: `owner_months` need it too."""
        days = self._with_days("owner_days", self._owner_days(with_groups=True)).cache()
        return {
            "names": self._dictionary("names"),
            "places": self._dictionary("places"),
            "rates": self.rates.groupBy("entity", "slot").agg(F.sum("count").alias("count")),
            "sums": self._sums("date", "entity"),
            "owner_days": days,
            "owner_months": summed_months(months_of(days)),
        }

    def _with_days(self, name: str, rest: DataFrame, dates: Sequence[dt.date] | None = None) -> DataFrame:
        """The rows of the roll-ups, all or those of some `dates`, and the rows of all other hours."""
        dates = self._days if dates is None else dates
        if not dates:
            return rest
        days = self._state.read_days(name, dates)
        return days.unionByName(rest) if self._rest else days

    def _dictionary(self, name: str) -> DataFrame:
        return self._with_days(name, self._state.read(name, self._rest)).distinct()

    @cached_property
    def names(self) -> DataFrame:
        return self._dictionary("names").cache()

    @cached_property
    def clients(self) -> DataFrame:
        return self.names.select("client", "user", "client_id").distinct()

    @cached_property
    def totals(self) -> DataFrame:
        """`limit` and `quota` are the last ones of the entity."""
        places = self._dictionary("places").select(F.col("place").alias("worst_place"), F.col("names").alias("worst_names"))
        totals = self._sums("entity").withColumn("bucket", F.coalesce("limited_bucket", "latest_bucket"))
        named = totals.join(self.names.drop("entity", "client"), "bucket").join(places, "worst_place", "left")
        orders = ("bucket", "limited_bucket", "latest_bucket", "limited", "latest", "worst", "worst_place")
        return named.drop(*orders).withColumnRenamed("worst_names", "worst").cache()

    def _sums(self, *by: str) -> DataFrame:
        """One row for each entity or date and entity. `limited` and `latest` order its hours with a limit, and all hours."""
        latest = _latest()
        limited = F.when(F.col("limit").isNotNull(), latest)
        hours = self._state.read("entities", self._rest).select(
            "date", "entity", *_SUMMED, *_MAXIMA, "first_ms", "limit", "worst_place",
            limited.alias("limited"),
            latest.alias("latest"),
            F.when(F.col("limit").isNotNull(), F.col("bucket")).alias("limited_bucket"),
            F.col("bucket").alias("latest_bucket"),
        )  # fmt: skip
        return (
            self._with_days("sums", hours)
            .groupBy(*by)
            .agg(
                *(F.sum(name).alias(name) for name in _SUMMED),
                *(F.max(name).alias(name) for name in (*_MAXIMA, "limited", "latest")),
                F.min("first_ms").alias("first_ms"),
                F.max_by("limit", "limited").alias("limit"),
                F.max_by("limited_bucket", "limited").alias("limited_bucket"),
                F.max_by("latest_bucket", "latest").alias("latest_bucket"),
                F.max_by("worst_place", "worst").alias("worst_place"),
            )
        )

    @cached_property
    def rates(self) -> DataFrame:
        days = self._state.in_whole_roll_ups(self._days)
        rest = {hour: done for hour, done in self._hours.items() if hour[0] not in days}
        whole = self._state.in_whole_batches(rest)
        rows = self._state.read("rates", whole)
        if days:
            rows = rows.unionByName(self._state.read_days("rates", days))
        part = rest.keys() - whole.keys()
        return rows.unionByName(rates(HourEvents(self.table(ENTITY_MINUTES, part)))) if part else rows

    @cached_property
    def owner_days(self) -> DataFrame:
        return self._grouped(self._with_days("owner_days", self._rest_of_owners))

    @cached_property
    def owner_months(self) -> DataFrame:
        whole = self._state.in_whole_roll_ups(self._days)
        part = [date for date in self._days if date not in whole]
        days = months_of(self._grouped(self._with_days("owner_days", self._rest_of_owners, part)))
        return days.unionByName(self._grouped(self._state.read_days("owner_months", whole))) if whole else days

    @cached_property
    def _has_groups(self) -> bool:
        return not owners_of(self.names).where(F.col("owner_type") == GROUP).isEmpty()

    @cached_property
    def _rest_of_owners(self) -> DataFrame:
        found = self._owner_days(with_groups=self._has_groups)
        return found.cache() if self.single_hours > _MAX_SINGLE_HOURS else found  # two reports read them

    def _grouped(self, rows: DataFrame) -> DataFrame:
        return rows if self._has_groups else rows.where(F.col("owner_type") != NO_GROUP)

    def _owner_days(self, *, with_groups: bool) -> DataFrame:
        """Those of the hours outside of roll-ups."""
        names, five_minutes, groups = (self._state.read(name, self._rest) for name in ("names", "five_minutes", "groups"))
        return owner_days(names, five_minutes, groups if with_groups else None)

    @cached_property
    def minutes(self) -> DataFrame:
        return self.table("minutes")


_MAXIMA = ("peak_minute", "peak_utilisation", *MAXIMA, "worst")


def _latest() -> Column:
    """A number that orders the hours of an entity's quotas: by hour, then by active minutes, then by the last throttle.

    Spark hashes a maximum of numbers. It would sort for a maximum of structs.
    """
    hour = hour_since_1970()
    of_hour = F.coalesce(F.col("last_ms") - hour * 3_600_000, F.lit(0))
    return (hour * 64 + F.col("active_minutes")) * 4_000_000 + F.least(of_hour, F.lit(3_999_999))
