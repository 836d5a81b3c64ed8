"""One quota that several gateways enforce together."""
