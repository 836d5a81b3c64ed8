"""Weir: a gateway in front of Apache Kafka that keeps clients within their quotas."""
