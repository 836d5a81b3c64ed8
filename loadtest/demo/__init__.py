"""`make demo`: a real Kafka, the gateway, and clients that want more than their quotas."""
