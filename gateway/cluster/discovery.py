"""Keeps the brokers' addresses up to date, and explains why the cluster can't be reached."""

import asyncio
import logging
import random
import ssl
import struct
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from aiokafka.protocol.admin import DescribeConfigsRequest
from kafka.protocol.sasl import SaslHandshakeRequest

from gateway import clock
from gateway.cluster.any_address import open_streams
from gateway.cluster.brokers import Address
from gateway.cluster.client import ClusterError, CredentialsError, OtherClusterError, answer_of
from gateway.cluster.metadata import ClusterMetadata
from gateway.cluster.upstream import Upstream, bad_names_as_os_errors, problem_of
from protocol.bodies import sasl
from protocol.error_codes import ErrorCode
from protocol.errors import ProtocolError

RETRY_SECONDS = 1.0
REFUSED_SECONDS = 30.0
"""The pause between two attempts while the brokers refuse Weir's credentials. Brokers log each attempt."""

CONFIGS_SECONDS = 60.0
"""The time between two requests for a broker's configs."""

ASK_MISSING_SECONDS = 60.0
"""The time between two requests to the brokers that the answers lack. As soon as an answer lacks a further one, they are asked
as well, at most once in `RETRY_SECONDS`."""

PROBE_SECONDS = 5.0

_BROKER = 4  # Kafka's `ConfigResource.Type`
_NO_MECHANISM = "WEIR-ASKS"
_MAX_ANSWER_BYTES = 64 * 1024
_TLS_ALERT = b"\x15\x03"

_log = logging.getLogger("weir.cluster")


class Discovery:
    """Runs the loop of `metadata` and keeps `Brokers` up to date.

    `on_sasl` is called after each answer: True if the brokers require SASL, or None if the cluster does not answer.
    `on_configs` is called with those of the configs `names` that a broker has.

    `reached_once` is True if the cluster has ever answered. A demand for credentials that Weir lacks counts as an answer.
    """

    def __init__(
        self,
        upstream: Upstream,
        metadata: ClusterMetadata,
        on_sasl: Callable[[bool | None], None],
        names: Sequence[str],
        on_configs: Callable[[Mapping[str, str]], None],
    ) -> None:
        self._upstream = upstream
        self._metadata = metadata
        self._brokers = upstream.brokers
        self._login = upstream.login
        self._on_sasl = on_sasl
        self._names = names
        self._on_configs = on_configs
        self._context = upstream.context
        self._answers = False
        self._refused = False
        self.reached_once = False
        self._lacking = asyncio.Event()
        self.problem = "the cluster has not been reached yet"

    async def run(self) -> None:
        """Ask until cancelled."""
        with self._metadata.subscribe(self._note):
            async with asyncio.TaskGroup() as group:
                group.create_task(self._metadata.run(self._failed))
                group.create_task(self._learn_configs())
                group.create_task(self._ask_missing())

    async def _learn_configs(self) -> None:
        while True:
            if self._answers:
                try:
                    await self._ask_configs(random.choice(list(self._metadata.brokers)))  # noqa: S311
                except ClusterError as error:
                    _log.debug("the brokers' configs are not known: %s", error)
                await asyncio.sleep(CONFIGS_SECONDS)
            await asyncio.sleep(RETRY_SECONDS)

    async def _ask_missing(self) -> None:
        """Ask the brokers that the answers lack for the brokers, and once the configured servers that the first answer lacks.

        The loop asks the brokers of the last answer. A broker whose odd metadata names itself alone would be the only one.
        """
        configured: Sequence[Address] = self._brokers.bootstrap
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(ASK_MISSING_SECONDS):
                    await self._lacking.wait()
            self._lacking.clear()
            for host, port in {*configured, *self._brokers.missing().values()} - set(self._brokers.addresses().values()):
                try:
                    await self._metadata.ask_at((host, port))
                except ClusterError as error:
                    _log.debug("%s:%d, which the cluster's metadata lacks, does not answer: %s", host, port, error)
            configured = ()
            await asyncio.sleep(RETRY_SECONDS)

    async def _ask_configs(self, node_id: int) -> None:
        """Learn a broker's configs, unless it refuses the request."""
        answer = await self._metadata.ask(node_id, DescribeConfigsRequest([(_BROKER, str(node_id), list(self._names))]))
        with answer_of("DescribeConfigs"):
            for error, _message, _type, _name, entries, *_ in answer.resources:
                if error == ErrorCode.NONE:
                    self._on_configs({name: value for name, value, *_ in entries if value is not None})
                elif not self._refused:
                    self._refused = True
                    _log.info(
                        "the brokers do not show their configs (error %d): controller_mutation_rate counts no topics that"
                        " brokers create — give Weir's user DescribeConfigs on Cluster", error,
                    )  # fmt: skip

    def _note(self, brokers: Mapping[int, Address]) -> None:
        if not brokers:
            return
        if self.problem:
            _log.info("the cluster answers")
        self.problem = ""
        missing = self._brokers.missing().keys()
        self._brokers.learn_live(brokers, clock.monotonic())
        if not self.reached_once or self._brokers.missing().keys() - missing:
            self._lacking.set()
        self._answers = self.reached_once = True
        if self._upstream.context is not self._context:
            self._context = self._upstream.context
            self._metadata.reconnect()
        self._on_sasl(self._login.has_credentials)

    async def _failed(self, error: ClusterError) -> None:
        if self._answers:  # the next attempt may succeed: a single broker that restarts is away for a moment
            self._answers = False
            pause = RETRY_SECONDS
        elif isinstance(error, CredentialsError):
            if not self.reached_once:  # the config has credentials, so the brokers require them
                self._on_sasl(True)
            self._lost(str(error))
            pause = RETRY_SECONDS
        elif isinstance(error, OtherClusterError):
            self._lost(str(error))
            pause = RETRY_SECONDS
        else:
            pause = await self._explain(str(error))
        await self._pause(pause)

    async def _pause(self, seconds: float) -> None:
        """Wait, or return early if the credentials have changed."""
        tried = self._login.stamp()
        for _ in range(round(seconds / RETRY_SECONDS)):
            await asyncio.sleep(RETRY_SECONDS)
            if self._login.stamp() != tried:
                return

    async def _explain(self, error: str) -> float:
        """Log the reason for a failed connection. Returns the pause until the next attempt (seconds).

        aiokafka's `error` has no reason, so Weir probes each address until one of them answers.
        """
        problems: dict[str, list[str]] = {}  # addresses by problem: several often share one
        for address in self._brokers.anyone():
            where = f"{f'[{address[0]}]' if ':' in address[0] else address[0]}:{address[1]}"
            try:
                mechanisms = await sasl_mechanisms(address, self._upstream.context)
            except OSError as problem:
                problems.setdefault(problem_of(problem, PROBE_SECONDS), []).append(where)
                continue
            except ProtocolError as problem:
                problems.setdefault(f"the answer is not Kafka's ({problem})", []).append(where)
                continue
            self._on_sasl(bool(mechanisms))
            if not mechanisms and not self._login.has_credentials:
                break
            if self._login.has_credentials:
                self._lost(self._login.advice(mechanisms))
            else:
                self._serve_without(mechanisms)
            return REFUSED_SECONDS
        else:
            found = "; ".join(f"{', '.join(addresses)}: {problem}" for problem, addresses in problems.items())
            error = f"{found} — check upstream.bootstrap_servers and upstream.tls"
        self._lost(error)
        return RETRY_SECONDS

    def _serve_without(self, mechanisms: tuple[str, ...]) -> None:
        """Serve clients without `upstream.sasl`: the brokers' answers to clients name all brokers."""
        if self.problem or not self.reached_once:
            _log.warning(
                "the brokers require SASL (%s) and upstream.sasl is not set. Weir serves clients, and learns brokers only from"
                " answers to clients. quotas.volumes and sharing need upstream.sasl",
                ", ".join(mechanisms),
            )  # fmt: skip
        self.problem = ""
        self.reached_once = True

    def _lost(self, problem: str) -> None:
        self._on_sasl(None)
        text = f"the cluster can't be reached: {problem}"
        if text != self.problem:
            _log.warning("%s", text)
        self.problem = text


async def sasl_mechanisms(address: Address, tls: ssl.SSLContext | None = None) -> tuple[str, ...]:
    """The mechanisms that the broker offers; none if it requires no authentication.

    Asks for a mechanism that does not exist: the refusal lists those that do. Raises OSError (TimeoutError is one),
    ProtocolError.
    """
    async with asyncio.timeout(PROBE_SECONDS):
        with bad_names_as_os_errors():
            reader, writer = await open_streams(address, tls)
        try:
            request = SaslHandshakeRequest(version=1, mechanism=_NO_MECHANISM)
            request.with_header(client_id="weir")
            writer.write(request.encode(header=True, framed=True))
            head = await reader.readexactly(4)
            if head.startswith(_TLS_ALERT):
                raise ConnectionError("the port speaks TLS, and this connection does not")
            (size,) = struct.unpack(">i", head)
            if not 0 < size <= _MAX_ANSWER_BYTES:
                raise ConnectionError(f"an answer of {size} bytes is not Kafka's")
            answer = sasl.read_handshake_response(head + await reader.readexactly(size))
        except asyncio.IncompleteReadError:
            raise ConnectionError("closed without an answer") from None
        finally:
            writer.transport.abort()  # the end of TLS would outlast the event loop of a command
    return answer.mechanisms if answer.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM else ()
