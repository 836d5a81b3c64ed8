"""Ledgers of any size, for the reports to be measured with: `python -m loadtest.scenarios.ledger`."""
