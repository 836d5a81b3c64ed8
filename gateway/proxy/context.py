"""The things that all sessions of one listener share."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from gateway.observer import Outlet
from gateway.proxy.collected import CollectBudget
from gateway.proxy.counters import Counters
from gateway.proxy.handler import HandlerFactory, RequestGate
from gateway.proxy.handlers.registry import charging_registry, registry
from gateway.proxy.produce_gate import ProducedTopics, ProduceGate
from gateway.proxy.wire import Recorder
from gateway.quotas.engine import QuotaEngine
from gateway.quotas.own_topics import OwnTopics
from protocol.bodies.addresses import Learn, Translate


@dataclass(slots=True)
class SessionContext:
    """The surroundings of a session. Its fields are common to all sessions of a listener; sizes are bytes.

    - `handlers`: the factories of request handlers by API key, those of the features; the proxy adds its own.
    - `produce_gate`: delays all producers, whatever their quotas.
    - `recorder`: gets every throttle.
    - `authentication_gate`: checks the requests of a client until it has authenticated; None if no client has to. A client has
      `authentication_seconds` for that.
    - `topics`: inspects the topics of Produce requests.
    - `collect_budget`: one for the whole gateway.
    - `own_topics`: Weir's own. No quota counts them.
    - `learn`: gets the brokers of answers that name a cluster, before they are translated.
    - `charging_handlers`: as `handlers`, but they also charge requests to kinds with figures.
    """

    engine: QuotaEngine
    counters: Counters
    translate: Translate
    max_frame_bytes: int
    handlers: dict[int, HandlerFactory] = field(default_factory=dict)
    produce_gate: ProduceGate = field(default_factory=ProduceGate)
    recorder: Recorder | None = None
    authentication_gate: RequestGate | None = None
    authentication_seconds: float = 30.0
    topics: ProducedTopics = field(default_factory=ProducedTopics)
    collect_budget: CollectBudget = field(default_factory=CollectBudget)
    own_topics: OwnTopics = field(default_factory=OwnTopics)
    outlet: Outlet = field(default_factory=Outlet)
    learn: Learn | None = None
    charging_handlers: dict[int, HandlerFactory] = field(init=False)

    def __post_init__(self) -> None:
        self.add_handlers(registry(self.handlers))

    def add_handlers(self, handlers: Mapping[int, HandlerFactory]) -> None:
        """Add the factories of a listener's own handlers, which replace others of the same API."""
        self.handlers = {**self.handlers, **handlers}
        self.charging_handlers = charging_registry(self.handlers)
