"""Weir's own look at the cluster: which brokers there are now, asked from time to time, with its own connection."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from aiokafka.client import AIOKafkaClient
from aiokafka.errors import KafkaError

from gateway.cluster.brokers import Address
from gateway.cluster.client import ClusterError
from gateway.cluster.defaults import TopicDefaults
from gateway.cluster.login import CredentialsError
from gateway.cluster.probe import TIMEOUT_SECONDS, sasl_mechanisms
from gateway.cluster.upstream import Upstream, problem_of
from protocol.errors import ProtocolError

REFRESH_SECONDS = 5.0
RETRY_SECONDS = 1.0
REFUSED_SECONDS = 30.0
"""Between two attempts where the brokers can be reached and do not let Weir in: each is in their log."""

UPDATE_SECONDS = 30.0
"""So long aiokafka may ask around among the brokers that it knows. Where its own task has ended it would be for ever."""

_log = logging.getLogger("weir.cluster")


class Discovery:
    """Keeps `Brokers` up to date, as long as any broker can be reached and lets Weir in.

    `on_sasl` is called after each look: with whether the brokers want SASL, or with None where the look has failed.
    """

    def __init__(self, upstream: Upstream, defaults: TopicDefaults, on_sasl: Callable[[bool | None], None]) -> None:
        self._upstream = upstream
        self._brokers = upstream.brokers
        self._defaults = defaults
        self._login = upstream.login
        self._on_sasl = on_sasl
        self._reached = False
        self.problem = "the cluster has not been reached yet"

    @property
    def reached_once(self) -> bool:
        """Whether the cluster has ever answered, if only that it wants credentials and Weir has none."""
        return self._reached

    async def run(self) -> None:
        """Ask for ever; to be cancelled."""
        while True:
            try:
                # A broker ends sessions from time to time (KIP-368), and aiokafka does not authenticate anew: that is no loss.
                if not await self._follow():
                    self._lost("no broker answers")
                pause = RETRY_SECONDS
            except ClusterError as error:  # no credentials, or an odd answer
                if isinstance(error, CredentialsError) and not self._reached:  # the config has some, so the brokers want them
                    self._on_sasl(True)
                self._lost(str(error))
                pause = RETRY_SECONDS
            except (KafkaError, OSError) as error:
                pause = await self._explain(str(error))
            await self._pause(pause)

    async def _pause(self, seconds: float) -> None:
        """Wait that long, or until there are other credentials to try."""
        tried = self._login.stamp()
        for _ in range(round(seconds / RETRY_SECONDS)):
            await asyncio.sleep(RETRY_SECONDS)
            if self._login.stamp() != tried:
                return

    async def _follow(self) -> bool:
        """Look at the cluster as long as it answers; False if it never did. Raises ClusterError, KafkaError, OSError."""
        answered = False
        client = AIOKafkaClient(
            bootstrap_servers=[_server(address) for address in self._brokers.anyone()],
            client_id="weir",
            request_timeout_ms=5_000,
            **self._upstream.client_options(),
        )
        context = self._upstream.context
        try:
            await _readable(client.bootstrap())
            if client.cluster.brokers():  # the first answer; for the next one aiokafka may choose a broker with an odd address
                self._note(client)
                answered = True
            while await _readable(_update(client)):
                self._note(client)
                answered = True
                await _readable(self._defaults.look(client))
                await asyncio.sleep(REFRESH_SECONDS)
                if self._upstream.context is not context:  # other certificates hold now: begin again with them
                    break
        except (KafkaError, OSError, ClusterError):
            if not answered:
                raise
        finally:
            await _close(client)
        return answered

    def _note(self, client: AIOKafkaClient) -> None:
        if self.problem:
            _log.info("the cluster answers")
        self.problem = ""
        # By id: where ids share a port, the order in which they are learnt decides. aiokafka's own is that of a set.
        for broker in sorted(client.cluster.brokers(), key=lambda broker: broker.nodeId):
            self._brokers.learn(broker.nodeId, broker.host, broker.port)
        self._reached = True
        self._on_sasl(self._login.has_credentials)

    async def _explain(self, error: str) -> float:
        """Why the cluster does not let Weir in; returns for how long to leave it alone (seconds).

        aiokafka's `error` names no cause, so each address is asked for it here, until one answers.
        """
        problems: list[str] = []
        for address in self._brokers.anyone():
            try:
                mechanisms = await sasl_mechanisms(address, self._upstream.context)
            except OSError as problem:
                problems.append(f"{_server(address)}: {problem_of(problem, TIMEOUT_SECONDS)}")
                continue
            except ProtocolError as problem:
                problems.append(f"{_server(address)}: what came is no answer of a broker's ({problem})")
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
            error = f"{'; '.join(problems)} — check upstream.bootstrap_servers and upstream.tls"
        self._lost(error)
        return RETRY_SECONDS

    def _serve_without(self, mechanisms: tuple[str, ...]) -> None:
        """Clients can be served all the same: the answers that they get name the brokers."""
        if self.problem or not self._reached:
            _log.warning(
                "the brokers want SASL (%s) and upstream.sasl is not set: clients are served, but Weir knows only the brokers"
                " that their answers have named since it was started; what asks the cluster itself (quotas.volumes, sharing)"
                " needs upstream.sasl",
                ", ".join(mechanisms),
            )  # fmt: skip
        self.problem = ""
        self._reached = True

    def _lost(self, problem: str) -> None:
        self._on_sasl(None)
        text = f"the cluster can't be reached: {problem}"
        if text != self.problem:
            _log.warning("%s", text)
        self.problem = text


def _server(address: Address) -> str:
    """An address as aiokafka takes it: with brackets around one of IPv6."""
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


_Result = TypeVar("_Result")


async def _readable(asking: Awaitable[_Result]) -> _Result:
    """Wait for what aiokafka asks. Raises KafkaError, OSError, and ClusterError for whatever an odd answer has led it to."""
    try:
        return await asking
    except (KafkaError, OSError):
        raise
    except Exception as error:
        raise ClusterError(f"a broker answered with something unreadable: {error!r}") from error


async def _update(client: AIOKafkaClient) -> bool:
    """Have the client look at the cluster. Raises OSError where that takes too long, and what aiokafka's task ended with."""
    look = asyncio.ensure_future(client.force_metadata_update())
    at_work = [look] if client._sync_task is None else [look, client._sync_task]
    done, _ = await asyncio.wait(at_work, timeout=UPDATE_SECONDS, return_when=asyncio.FIRST_COMPLETED)
    if look in done:
        return bool(look.result())
    look.cancel()
    for ended in done:
        ended.result()
    raise TimeoutError(f"the brokers have not told of themselves within {UPDATE_SECONDS:g} s")


async def _close(client: AIOKafkaClient) -> None:
    task = asyncio.current_task()
    cancels = task.cancelling() if task is not None else 0
    try:
        await client.close()
    except Exception as error:  # what its own task has ended with: aiokafka raises it here
        _log.warning("the look at the cluster had ended, and begins anew: %r", error, extra={"reason": "look ended"})
    # aiokafka suppresses every CancelledError while it closes, also the one that is meant for the caller.
    if task is not None and task.cancelling() > cancels:
        raise asyncio.CancelledError
