"""Measures the throughput of two workers relative to one, with a load that costs almost no CPU itself."""
