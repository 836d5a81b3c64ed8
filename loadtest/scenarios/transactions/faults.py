"""The faults of a run: a plan from a seed, and the actions on brokers and gateways."""

import random
import signal
from collections.abc import Callable
from dataclasses import dataclass
from threading import Event
from typing import Final

from confluent_kafka.admin import AdminClient

from loadtest.scenarios.transactions.history import FaultNote
from loadtest.scenarios.transactions.recorder import Recorder
from loadtest.testkit.gateway_process import GatewayProcess
from loadtest.testkit.kafka import KafkaCluster

USAGE_TOPIC: Final = "__weir_usage"
SCALES: Final = (0.5, 1.0, 2.0)
"""Factors of all quotas, between which reloads choose."""
CALM_SECONDS: Final = 3.0
"""The least time between two faults: a slow restart may take longer than planned."""

_RESTART_SECONDS: Final = 150.0
_BROKER_FAULTS: Final = ("kill broker", "freeze broker")
_GATEWAY_FAULTS: Final = ("drain gateway", "kill gateway", "freeze gateway", "change quotas", "delete usage topic")
KINDS: Final = _BROKER_FAULTS + _GATEWAY_FAULTS


@dataclass(frozen=True, slots=True)
class Fault:
    """`at` and `seconds` (its duration) are in seconds; `target` chooses the broker, the gateway or the scale of the quotas."""

    at: float
    kind: str
    target: int
    seconds: float


def plan_of(seed: int, seconds: float) -> list[Fault]:
    """Faults one after the other, each kind once before any kind comes again. Brokers come twice as often."""
    chance = random.Random(seed)
    faults: list[Fault] = []
    deck: list[str] = []
    at = 5.0
    while at < seconds - 8.0:
        if not deck:
            deck = [*KINDS, *_BROKER_FAULTS]
            chance.shuffle(deck)
        faults.append(Fault(round(at, 1), deck.pop(), chance.randrange(1_000), round(chance.uniform(1.0, 6.0), 1)))
        at += chance.uniform(4.0, 9.0)
    return faults


class Nemesis:
    """Carries out a plan. Without gateways, it leaves out the faults of gateways."""

    def __init__(
        self, cluster: KafkaCluster, gateways: list[GatewayProcess], apply: Callable[[float], None], recorder: Recorder
    ) -> None:
        self._cluster = cluster
        self._gateways = gateways
        self._apply = apply
        self._recorder = recorder
        self._never = Event()

    def run(self, plan: list[Fault]) -> None:
        """Returns when the last fault is over, and all processes run again."""
        calm = 0.0
        for fault in plan:
            if fault.kind in _GATEWAY_FAULTS and not self._gateways:
                continue
            self._sleep(max(fault.at, calm) - self._recorder.now())
            begin = self._recorder.now()
            target = self._cause(fault)
            self._recorder.add(FaultNote(fault.kind, target, begin, self._recorder.now()))
            calm = self._recorder.now() + CALM_SECONDS

    def _sleep(self, seconds: float) -> None:
        if seconds > 0:
            self._never.wait(seconds)

    def _cause(self, fault: Fault) -> str:
        """Returns the name of the target."""
        if fault.kind in _BROKER_FAULTS:
            return self._hit_broker(fault)
        if fault.kind == "change quotas":
            scale = SCALES[fault.target % len(SCALES)]
            self._apply(scale)
            return f"x{scale}"
        if fault.kind == "delete usage topic":
            AdminClient({"bootstrap.servers": self._cluster.bootstrap_servers}).delete_topics([USAGE_TOPIC])
            return USAGE_TOPIC
        return self._hit_gateway(fault)

    def _hit_broker(self, fault: Fault) -> str:
        node = self._cluster.brokers[fault.target % len(self._cluster.brokers)]
        if fault.kind == "kill broker":
            node.kill()
            self._sleep(fault.seconds)
            node.start(wait=_RESTART_SECONDS)
        else:
            node.freeze()
            self._sleep(fault.seconds)
            node.thaw()
        return f"broker {node.id}"

    def _hit_gateway(self, fault: Fault) -> str:
        number = fault.target % len(self._gateways)
        gateway = self._gateways[number]
        if fault.kind == "freeze gateway":
            gateway.process.send_signal(signal.SIGSTOP)
            self._sleep(fault.seconds)
            gateway.process.send_signal(signal.SIGCONT)
            return f"gateway {number}"
        if fault.kind == "drain gateway":
            gateway.stop()
        else:
            gateway.process.kill()
            gateway.process.wait()
            self._sleep(fault.seconds / 2)
        gateway.start(timeout=_RESTART_SECONDS)
        return f"gateway {number}"
