"""Idempotent and transactional producers whose requests a topic quota rejects: every record arrives once and in order."""
