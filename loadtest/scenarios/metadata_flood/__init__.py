"""A flood of Metadata under `request_rates`, beside a producer that keeps its latency."""
