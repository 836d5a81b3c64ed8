"""Carries out the events of the schedule on brokers, workers, quotas and certificates."""

import json
import os
import signal
import socket
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from cryptography import x509

from loadtest.scenarios.soak import raw_requests as raw
from loadtest.scenarios.soak.schedule import KILL_WORKER, Event
from loadtest.scenarios.soak.setting import HOST, new_certificate, quotas
from loadtest.testkit.certificates import Authority, Files
from loadtest.testkit.gateway_process import GatewayError, GatewayProcess
from loadtest.testkit.kafka import KafkaCluster, NodeError, read_exactly

FACTORS: Final = (0.5, 0.75, 1.0, 1.25, 1.5, 2.0)
"""Factors of the tight quotas, between which reloads choose."""

_RESTART_SECONDS: Final = 300.0
_SETTLE_SECONDS: Final = 20.0
"""The requests of an epoch are answered by then."""

_SERVED_IN_A_ROW: Final = 12
_PATIENCE_SECONDS: Final = 180.0
_ADMIN: Final = "quota-admin"


class DisturbanceError(RuntimeError):
    """The gateway did not follow a change in time."""


EVENT_ERRORS: Final = (DisturbanceError, NodeError, GatewayError, OSError, ValueError)
"""The errors of an event that failed."""


@dataclass(frozen=True)
class Places:
    """The processes and files that events change."""

    cluster: KafkaCluster
    gateway: GatewayProcess
    authority: Authority
    certificate: Files
    plain_port: int
    tls_port: int


class Disturbances:
    """`next_epoch` lets the clients use new topics, and returns the number of the epoch."""

    def __init__(self, places: Places, next_epoch: Callable[[], int]) -> None:
        self._places = places
        self._next_epoch = next_epoch
        self._certificates = 0

    def cause(self, event: Event) -> str:
        """Carry out an event, and wait until its effect is over. Returns its target. Raises
        `EVENT_ERRORS`."""
        match event.kind:
            case "reload quotas":
                factor = FACTORS[event.target % len(FACTORS)]
                self._places.gateway.apply(quotas=quotas(factor))
                return f"x{factor}"
            case "alter quotas":
                return self._alter_quotas(event)
            case "replace certificate":
                return self._replace_certificate()
            case kind if kind == KILL_WORKER:
                return self._kill_worker(event.target)
            case _:
                return self._hit_broker(event)

    def _hit_broker(self, event: Event) -> str:
        node = self._places.cluster.brokers[event.target % len(self._places.cluster.brokers)]
        if not node.running:  # an earlier restart failed
            node.start(wait=_RESTART_SECONDS)
        if event.kind == "freeze broker":
            node.freeze()
            time.sleep(event.seconds)
            node.thaw()
        else:
            node.stop() if event.kind == "stop broker" else node.kill()
            time.sleep(event.seconds)
            node.start(wait=_RESTART_SECONDS)
        return f"broker {node.id}"

    def _kill_worker(self, number: int) -> str:
        """The counters of a killed worker lose the time since the last scrape. The clients use topics of an odd epoch then."""
        gateway = self._places.gateway
        self._next_epoch()
        time.sleep(_SETTLE_SECONDS)
        gateway.get("/metrics")
        before = self._worker(number)
        os.kill(before, signal.SIGKILL)
        deadline = time.monotonic() + _PATIENCE_SECONDS
        up = f'weir_worker_up{{worker="{number}"}} 1.0'
        while self._worker(number) in (before, 0) or up not in gateway.get("/metrics"):
            if time.monotonic() > deadline:
                raise DisturbanceError(f"worker {number} was not replaced within {_PATIENCE_SECONDS:.0f} s")
            time.sleep(0.2)
        return f"worker {number}, then epoch {self._next_epoch()}"

    def _worker(self, number: int) -> int:
        states = json.loads(self._places.gateway.get("/api/workers"))["workers"]
        return int(states[number]["pid"] or 0)

    def _alter_quotas(self, event: Event) -> str:
        """Set or remove the quotas of one client-id through the quota API."""
        entity = f"greedy-{event.target % 4}"
        removed = event.target >= 4
        rates: dict[str, float | None] = {
            "producer_byte_rate": None if removed else 3_000.0 + 1_000 * event.target,
            "consumer_byte_rate": None if removed else 50_000.0,
        }
        with socket.create_connection((HOST, self._places.plain_port), _PATIENCE_SECONDS) as connection:
            connection.sendall(raw.alter_client_quota(_ADMIN, 1, entity, rates))
            answer = read_exactly(connection, int.from_bytes(read_exactly(connection, 4), "big"))
        error = raw.read_altered(answer)
        if error != raw.NONE:
            raise DisturbanceError(f"AlterClientQuotas for {entity}: error {error}")
        return f"{entity} {'removed' if removed else 'set'}"

    def _replace_certificate(self) -> str:
        """Replace the files. New connections to all workers must get the new certificate."""
        self._certificates += 1
        new = new_certificate(self._places.authority, self._certificates)
        wanted = x509.load_pem_x509_certificate(new.cert.read_bytes()).serial_number
        self._places.certificate.replace_with(new)
        deadline, in_a_row = time.monotonic() + _PATIENCE_SECONDS, 0
        while in_a_row < _SERVED_IN_A_ROW:
            in_a_row = in_a_row + 1 if self._served() == wanted else 0
            if time.monotonic() > deadline:
                raise DisturbanceError(f"the new certificate was not served within {_PATIENCE_SECONDS:.0f} s")
            time.sleep(0.2)
        return f"certificate {self._certificates}"

    def _served(self) -> int:
        """The serial number of the certificate that a new connection gets."""
        context = ssl.create_default_context(cafile=str(self._places.authority.cert))
        with (
            socket.create_connection((HOST, self._places.tls_port), _PATIENCE_SECONDS) as bare,
            context.wrap_socket(bare, server_hostname=HOST) as encrypted,
        ):
            content = encrypted.getpeercert(binary_form=True)
        assert content is not None
        return x509.load_der_x509_certificate(content).serial_number
