"""Transactions under faults, direct and through throttling gateways, checked for anomalies."""
