"""What operators see: metrics, the admin server, logs, tables."""
