"""Who a client is, as far as its SASL exchange with the broker tells: read in passing, decided by the broker alone."""

from gateway.session.authentication.conversation import Authentication, Outcome, Step
from gateway.session.authentication.states import IllegalSaslEvent

__all__ = ["Authentication", "IllegalSaslEvent", "Outcome", "Step"]
