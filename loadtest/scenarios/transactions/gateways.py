"""Two gateways with tight quotas behind a balancer."""

from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from loadtest.scenarios.rolling_restart.balancer import LOOK_SECONDS, Backend, Balancer
from loadtest.testkit.gateway_process import BROKER_PORTS, GatewayProcess, MakeGateway
from loadtest.testkit.kafka import KafkaCluster, free_port_range

GATEWAYS: Final = 2
PRODUCER_BYTE_RATE: Final = 8_000
CONSUMER_BYTE_RATE: Final = 30_000
REQUEST_RATE: Final = 10
"""The quotas of each client: bytes and requests per second."""

_HOST: Final = "127.0.0.1"


class Gateways:
    """The gateways, and the address of the balancer. `stack` stops them."""

    def __init__(self, stack: ExitStack, cluster: KafkaCluster, directory: Path, make: MakeGateway) -> None:
        first = free_port_range(1 + BROKER_PORTS)
        ports = {"bootstrap_port": first, "broker_ports": f"{first + 1}-{first + BROKER_PORTS}"}
        self.processes: list[GatewayProcess] = []
        backends = []
        for number in range(GATEWAYS):
            host = f"127.0.0.{number + 2}"
            listener = {"host": host, "advertised_host": _HOST, **ports}
            gateway = make(directory / f"weir-{number}", cluster.bootstrap_servers, _config(1.0), listener)
            self.processes.append(stack.enter_context(gateway))
            backends.append(Backend(host, gateway.config["admin"]["port"]))
        stack.enter_context(Balancer(_HOST, range(first, first + 1 + BROKER_PORTS), backends))
        self.bootstrap_servers = f"{_HOST}:{first}"

    def scale(self, factor: float) -> None:
        """Multiply all quotas by `factor`. The gateways see that their files have changed."""
        for gateway in self.processes:
            gateway.write_config(gateway.config | _config(factor))


def _config(factor: float) -> dict[str, Any]:
    limits = {
        "producer_byte_rate": int(PRODUCER_BYTE_RATE * factor),
        "consumer_byte_rate": int(CONSUMER_BYTE_RATE * factor),
        "request_rate": int(REQUEST_RATE * factor),
    }
    return {
        "quotas": {"entities": [{"client-id": "<default>", **limits}], "window": {"samples": 2, "seconds": 1}},
        "sharing": {},
        "connections": {"drain_delay_seconds": 3 * LOOK_SECONDS, "drain_seconds": 5},
    }
