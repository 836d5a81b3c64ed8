"""Generates ledgers of any size to measure the reports: `python -m loadtest.scenarios.ledger`."""
