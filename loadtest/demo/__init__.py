"""`make demo`: a real Kafka, the gateway, and clients that ask for more than they may have."""
