"""The Kafka cluster behind the gateway: which brokers there are, and under which address clients reach each."""
