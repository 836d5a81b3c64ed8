"""Follows a client's SASL authentication with the broker to learn the user. Only the broker decides."""

from gateway.proxy.authentication.conversation import Authentication, Outcome, Step

__all__ = ["Authentication", "Outcome", "Step"]
