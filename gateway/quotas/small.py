"""Quotas so small that a mute outlasts what a client can bear: its session is over before it may go on."""

from dataclasses import dataclass
from typing import Final

SESSION_TIMEOUT_SECONDS: Final = 45.0
"""Kafka consumers' default session.timeout.ms (KIP-735): who is muted for longer is taken for dead by many a client."""


@dataclass(frozen=True, slots=True)
class FullRequest:
    """What a client with its usual settings may well use at once: so many units, in words, and how to make it less."""

    amount: int
    words: str
    remedy: str

    def outlasts_session(self, limit: float) -> bool:
        """Whether a quota of `limit` per second holds its connection for longer than the usual session timeout."""
        return self.amount / limit > SESSION_TIMEOUT_SECONDS

    def warning(self, limit: float, unit: str, whose: str) -> str:
        """What is to be said of such a quota."""
        return (
            f"{limit:.16g} {unit}/s for {whose} means that {self.words} holds its connection for {self.amount / limit:.0f} s, "
            f"longer than the usual session timeout ({SESSION_TIMEOUT_SECONDS:.0f} s) — raise it, or {self.remedy}"
        )
