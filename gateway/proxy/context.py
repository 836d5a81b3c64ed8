"""What all sessions of one listener share."""

from dataclasses import dataclass, field

from gateway.observer import Outlet
from gateway.proxy.collected import CollectBudget
from gateway.proxy.counters import Counters
from gateway.proxy.handler import Gate, Opener
from gateway.proxy.produce_gate import ProduceGate
from gateway.proxy.produce_inspection import ProducedTopics
from gateway.proxy.recorder import Recorder
from gateway.quotas.engine import QuotaEngine
from gateway.quotas.own_topics import OwnTopics
from protocol.bodies.addresses import Translate
from protocol.bodies.sasl import MAX_FRAME_BYTES as MAX_SASL_BYTES


@dataclass(slots=True)
class SessionContext:
    """The gateway around a session: its quotas, its counters, the addresses that its clients are told, its limits (bytes).

    `openers`: what opens the requests of an API, by its key; whatever is not there passes unopened. `gate`: what all producers
    have to wait, whatever their quotas. `recorder`: who is told of every throttle.
    `topics`: whether those of Produce requests are looked at. `own_topics`: Weir's own, which no quota counts.
    `authentication_gate`: what the requests of a connection have to pass before it has authenticated, which it has to do within
    `authentication_seconds`; None where nobody has to.
    `collect_budget` is that of the whole gateway; a SASL request may have `max_sasl_bytes`, also after authentication.
    """

    engine: QuotaEngine
    counters: Counters
    translate: Translate
    max_frame_bytes: int
    openers: dict[int, Opener] = field(default_factory=dict)
    gate: ProduceGate = field(default_factory=ProduceGate)
    recorder: Recorder | None = None
    authentication_gate: Gate | None = None
    authentication_seconds: float = 30.0
    topics: ProducedTopics = field(default_factory=ProducedTopics)
    collect_budget: CollectBudget = field(default_factory=CollectBudget)
    max_sasl_bytes: int = MAX_SASL_BYTES
    own_topics: OwnTopics = field(default_factory=OwnTopics)
    outlet: Outlet = field(default_factory=Outlet)
