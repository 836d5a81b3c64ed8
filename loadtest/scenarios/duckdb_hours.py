"""DuckDB makes the hourly tables of `weir report` from the same files: the yardstick of `loadtest.scenarios.reports`.

`python -m loadtest.scenarios.duckdb_hours --events LEDGER --out DIR` writes the tables as Parquet into DIR. With
`--check REPORT`, it only compares the tables in DIR with those of a finished report. DuckDB is a tool for development only.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import duckdb

_COLUMNS = {
    "type": "VARCHAR", "time_ms": "BIGINT", "last_ms": "BIGINT", "gateway": "VARCHAR", "kind": "VARCHAR", "user": "VARCHAR",
    "client_id": "VARCHAR", "ip": "VARCHAR", "quota": "VARCHAR", "limit": "DOUBLE", "amount": "DOUBLE", "requests": "BIGINT",
    "latency_ms": "DOUBLE", "active_seconds": "BIGINT", "address": "VARCHAR", "broker": "BIGINT", "api": "VARCHAR",
    "count": "BIGINT", "rate": "DOUBLE", "throttle_ms": "BIGINT", "throttle_max_ms": "BIGINT",
    "throttle_slots": "MAP(VARCHAR, BIGINT)", "early_count": "BIGINT", "early_ms": "BIGINT", "early_max_ms": "BIGINT",
    "enforced": "BOOLEAN", "topic": "VARCHAR", "reason": "VARCHAR", "listener": "VARCHAR", "total_rate": "DOUBLE",
    "total_limit": "DOUBLE",
}  # fmt: skip

_EVENTS = """
    CREATE TEMP TABLE events AS
    SELECT *, time_ms // 3600000 AS hour, time_ms % 3600000 // 60000 AS minute
    FROM read_json($files, format = 'newline_delimited', columns = $columns)
"""

_USAGE, _THROTTLE = "FILTER (WHERE type = 'usage')", "FILTER (WHERE type = 'throttle')"
_ENFORCED, _NOTED = "FILTER (WHERE type = 'throttle' AND enforced)", "FILTER (WHERE type = 'throttle' AND NOT enforced)"
_SUMS = ("throttled", "throttle_ms", "throttled_amount", "noted", "noted_ms", "early_count", "early_ms")

_TABLES = {
    "entity_minutes": f"""
        SELECT hour, minute, kind, "user", client_id, ip, quota,
            sum(amount) {_USAGE} AS amount, max("limit") {_USAGE} AS usage_limit,
            max(coalesce(active_seconds, 60)) {_USAGE} AS seconds, max("limit") {_THROTTLE} AS throttle_limit,
            sum(requests) {_USAGE} AS requests, sum(latency_ms) {_USAGE} AS latency_ms,
            sum("count") {_ENFORCED} AS throttled, sum(throttle_ms) {_ENFORCED} AS throttle_ms,
            max(throttle_max_ms) {_THROTTLE} AS throttle_max_ms, sum(amount) {_THROTTLE} AS throttled_amount,
            max(rate) {_THROTTLE} AS throttle_rate, sum("count") {_NOTED} AS noted, sum(throttle_ms) {_NOTED} AS noted_ms,
            sum(early_count) {_THROTTLE} AS early_count, sum(early_ms) {_THROTTLE} AS early_ms,
            max(early_max_ms) {_THROTTLE} AS early_max_ms, min(time_ms) {_THROTTLE} AS first_ms,
            max(last_ms) {_THROTTLE} AS last_ms, bit_or(1 << (hash(gateway) % 62)::BIGINT) AS gateways, count(*) AS lines,
            max(struct_pack(throttle_max_ms, time_ms, address, broker, api)) {_THROTTLE} AS worst
        FROM events WHERE type IN ('usage', 'throttle') GROUP BY ALL""",
    "entities": f"""
        SELECT hour, kind, "user", client_id, ip, quota, count(amount) AS active_minutes, sum(amount) AS amount,
            max(amount) AS peak_minute, sum(requests) AS requests, max(coalesce(usage_limit, throttle_limit)) AS "limit",
            count(usage_limit) AS limited_minutes, sum(seconds) FILTER (WHERE usage_limit > 0) AS limited_seconds,
            sum(usage_limit * seconds) AS capacity, sum(amount) FILTER (WHERE usage_limit > 0) AS limited_amount,
            max(amount / (usage_limit * seconds)) AS peak_utilisation,
            count(*) FILTER (WHERE amount >= 0.8 * usage_limit * seconds) AS above_80_minutes,
            count(*) FILTER (WHERE amount >= usage_limit * seconds) AS above_100_minutes,
            count(*) FILTER (WHERE throttled > 0) AS throttled_minutes, {", ".join(f"sum({name}) AS {name}" for name in _SUMS)},
            max(throttle_max_ms) AS throttle_max_ms, max(throttle_rate) AS throttle_rate, max(early_max_ms) AS early_max_ms,
            min(first_ms) AS first_ms, max(last_ms) AS last_ms, max(worst) AS worst
        FROM entity_minutes GROUP BY ALL""",
    "rates": """
        SELECT hour, kind, "user", client_id, ip,
            floor(16 * log2(greatest(1, amount * 60 / seconds)))::INT AS slot, count(*) AS n
        FROM entity_minutes WHERE amount > 0 AND coalesce(throttled, 0) = 0 GROUP BY ALL""",
    "throttle_times": """
        SELECT hour, kind, enforced, slot.key AS slot, sum(slot.value) AS n
        FROM (SELECT hour, kind, enforced, unnest(map_entries(throttle_slots)) AS slot FROM events WHERE type = 'throttle')
        GROUP BY ALL""",
    "minutes": f"""
        SELECT hour, minute, kind, sum(amount) AS amount, sum(requests) AS requests, sum(latency_ms) AS latency_ms,
            {", ".join(f"sum({name}) AS {name}" for name in _SUMS)},
            count(*) FILTER (WHERE throttled > 0) AS throttled_entities, bit_or(gateways) AS gateways
        FROM entity_minutes GROUP BY ALL""",
    "topics": """
        SELECT hour, topic, reason, enforced, "user", client_id, sum("count") AS rejections, sum(amount) AS bytes,
            max(rate) AS peak_rate, max(total_rate) AS peak_total_rate, min(time_ms) AS first_ms, max(last_ms) AS last_ms
        FROM events WHERE type = 'topic_rejected' GROUP BY ALL""",
    "connections": """
        SELECT hour, reason, listener, address, sum("count") AS n, min(time_ms) AS first_ms, max(last_ms) AS last_ms
        FROM events WHERE type = 'connection_rejected' GROUP BY ALL""",
    "changes": "SELECT * FROM events WHERE type IN ('config', 'quota_change', 'grant_expired', 'volume_state')",
}


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m loadtest.scenarios.duckdb_hours",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--events", type=Path, help="the ledger's path")
    parser.add_argument("--out", type=Path, required=True, help="the folder for the tables")
    parser.add_argument("--days", type=int, help="read only the first days of the ledger")
    parser.add_argument("--check", type=Path, help="the --out of a finished weir report over the same lines")
    parser.add_argument("--memory", default="3GB", help="the memory limit of DuckDB (3GB)")
    options = parser.parse_args()
    if options.check is not None:
        tables = [options.out.glob("*-entity_minutes.parquet"), options.check.glob(_OF_REPORT)]
        of_duckdb, of_report = ([str(file) for file in files] for files in tables)
        if not of_duckdb or not of_report:
            parser.error(f"no tables in {options.check if of_duckdb else options.out}; make them first")
        return _check(of_duckdb, of_report)
    days = [] if options.events is None else sorted(options.events.glob("date=*"))
    if not days:
        parser.error(f"--events {options.events}: no folders such as date=2026-11-21; give the ledger's path")
    options.out.mkdir(parents=True, exist_ok=True)
    for day in days[: options.days]:
        _make(day, options.out, options.memory)
    return 0


def _make(day: Path, out: Path, memory: str) -> None:
    """Make the tables of one day."""
    database = duckdb.connect(config={"memory_limit": memory, "preserve_insertion_order": False})
    files = [str(file) for file in sorted(day.glob("hour=*/*.jsonl.gz"))]
    database.execute(_EVENTS, {"files": files, "columns": _COLUMNS})
    for name, query in _TABLES.items():
        database.execute(f"CREATE TEMP TABLE {name} AS {query}")
        database.execute(f"COPY {name} TO '{out / day.name}-{name}.parquet' (FORMAT parquet)")
    database.close()


_OF_REPORT = "_state/*/batch-*/table=entity_minutes/*.parquet"


def _check(duckdb_files: Sequence[str], report_files: Sequence[str]) -> int:
    """Compare the number and the sums of the minutes of entities; returns 1 for a difference."""
    query = "SELECT count(*), sum(amount), sum(throttle_ms) FROM read_parquet($files) WHERE minute IS NOT NULL"
    of_duckdb, of_report = (
        duckdb.connect().execute(query, {"files": files}).fetchall()[0] for files in (duckdb_files, report_files)
    )
    same = of_duckdb == of_report
    print(f"minutes, amount, throttle ms of DuckDB {of_duckdb} and weir report {of_report}: {'equal' if same else 'DIFFERENT'}")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
