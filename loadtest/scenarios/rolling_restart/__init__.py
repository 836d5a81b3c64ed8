"""A rolling restart of three gateways, as clients under load see it (`python -m loadtest.scenarios.rolling_restart`)."""

from loadtest.scenarios.rolling_restart.roll import Report, run

__all__ = ["Report", "run"]
