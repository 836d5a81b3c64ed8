"""Connection limits and connection rates (KIP-402, KIP-612)."""
