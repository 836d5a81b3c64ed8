"""Folders of the checkout that the load tests use."""

from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
RESULTS = CHECKOUT / "loadtest" / "results"
RUN = CHECKOUT / ".run"
