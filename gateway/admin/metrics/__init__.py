"""Prometheus metrics: one row of a `METRICS` tuple each, read at scrape time. `registry.METRICS` lists all of them."""
