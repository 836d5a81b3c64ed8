"""TLS with clients and brokers: contexts that follow their files, handshakes, failure causes, and users from certificates."""
