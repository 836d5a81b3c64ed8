"""What all sessions of one listener share."""

from dataclasses import dataclass

from gateway.quotas.engine import QuotaEngine
from gateway.session.counters import Counters
from protocol.bodies.addresses import Translate


@dataclass(slots=True)
class SessionContext:
    """The gateway around a session: its quotas, its counters, the addresses that its clients are told, its limits (bytes)."""

    engine: QuotaEngine
    counters: Counters
    translate: Translate
    max_frame_bytes: int
