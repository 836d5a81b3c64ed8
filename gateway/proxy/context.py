"""The things that all sessions of one listener share."""

from dataclasses import dataclass, field

from gateway.observer import Outlet
from gateway.proxy.collected import CollectBudget
from gateway.proxy.counters import Counters
from gateway.proxy.handler import HandlerFactory, RequestGate
from gateway.proxy.handlers.registry import registry
from gateway.proxy.produce_gate import ProducedTopics, ProduceGate
from gateway.proxy.wire import Recorder
from gateway.quotas.engine import QuotaEngine
from gateway.quotas.own_topics import OwnTopics
from protocol.bodies.addresses import Translate


@dataclass(slots=True)
class SessionContext:
    """The gateway around a session: its quotas, its counters, the addresses that its clients see, its limits (bytes).

    `handlers` are the factories of the features' handlers by API key, to which the proxy adds its own. `gate` delays all
    producers whatever their quotas. `recorder` gets every throttle. `topics` switches the look at Produce requests' topics on.
    No quota counts `own_topics`, which are Weir's. `authentication_gate` checks the requests of a client until it has
    authenticated, for which it has `authentication_seconds`; None if no client has to. `collect_budget` is the whole gateway's.
    """

    engine: QuotaEngine
    counters: Counters
    translate: Translate
    max_frame_bytes: int
    handlers: dict[int, HandlerFactory] = field(default_factory=dict)
    gate: ProduceGate = field(default_factory=ProduceGate)
    recorder: Recorder | None = None
    authentication_gate: RequestGate | None = None
    authentication_seconds: float = 30.0
    topics: ProducedTopics = field(default_factory=ProducedTopics)
    collect_budget: CollectBudget = field(default_factory=CollectBudget)
    own_topics: OwnTopics = field(default_factory=OwnTopics)
    outlet: Outlet = field(default_factory=Outlet)

    def __post_init__(self) -> None:
        self.handlers = registry(self.handlers)
