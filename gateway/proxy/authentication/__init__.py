"""Who a client is, as far as its SASL exchange with the broker tells: read in passing, decided by the broker alone."""

from gateway.proxy.authentication.conversation import Authentication, Outcome, Step

__all__ = ["Authentication", "Outcome", "Step"]
