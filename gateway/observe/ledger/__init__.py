"""The throttle ledger: what happened, folded, as files that the reports read."""

from gateway.observe.ledger.ledger import Ledger

__all__ = ["Ledger"]
