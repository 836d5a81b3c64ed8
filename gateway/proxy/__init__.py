"""One client connection and its broker connection: requests are measured, forwarded, deferred or answered here."""
