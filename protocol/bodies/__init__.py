"""The bodies that are opened: one module per API, each reading or changing only what the gateway needs."""
