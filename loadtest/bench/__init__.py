"""The paired performance comparison: what Weir costs beside HAProxy, other Kafka proxies and no proxy at all."""
