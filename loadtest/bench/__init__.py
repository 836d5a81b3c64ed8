"""The paired performance comparison: the CPU cost of Weir, HAProxy, other Kafka proxies, and no proxy."""
