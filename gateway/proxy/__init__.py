"""One client connection and its broker connection: what is forwarded, measured, muted and answered here."""
