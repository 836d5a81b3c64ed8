"""A rolling restart of three gateways under load: what clients notice of it (`python -m loadtest.rolling_restart`)."""

from loadtest.rolling_restart.roll import Report, run

__all__ = ["Report", "run"]
