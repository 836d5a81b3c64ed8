"""The buckets and rows of an engine, for tests of a few clients."""

from typing import Any

from gateway.quotas.bucket import Bucket
from gateway.quotas.engine import QuotaEngine
from gateway.quotas.snapshot import UsageRow
from gateway.steps import at_once


def bucket_of(engine: QuotaEngine, kind: str, user: str, client_id: str, now: float, **options: Any) -> Bucket:
    """A client's own bucket. The engine counts a connection of the client. `options` are those of `acquire_path`."""
    return engine.acquire_path(kind, user, client_id, now, **options)[0]


def rows_of(engine: QuotaEngine, now: float) -> list[UsageRow]:
    return at_once(engine.rows(now))
