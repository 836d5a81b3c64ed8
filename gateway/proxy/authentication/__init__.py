"""Follows a client's SASL authentication with the broker to learn the user. Only the broker decides."""

from gateway.proxy.authentication.conversation import Authentication, Outcome, Step
from gateway.proxy.authentication.mechanisms import READERS

__all__ = ["READERS", "Authentication", "Outcome", "Step"]
