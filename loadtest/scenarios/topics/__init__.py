"""Idempotent and transactional producers through a topic quota that rejects them: every record once, in order per partition."""
