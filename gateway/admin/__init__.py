"""The admin port: metrics, probes, the live page, and JSON for operators and `weir quotas`."""
