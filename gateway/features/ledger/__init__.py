"""The throttle ledger: events, folded and written as files that the reports read."""
