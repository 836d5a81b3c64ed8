"""Topic thresholds on produced bytes (Kafka's proposal "Broker side quota", V1)."""
