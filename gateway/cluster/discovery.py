"""Weir's own look at the cluster: which brokers there are now, asked from time to time, with its own connection."""

import asyncio
import logging

from aiokafka.client import AIOKafkaClient
from aiokafka.errors import KafkaError

from gateway.cluster.defaults import TopicDefaults
from gateway.cluster.upstream import Upstream

REFRESH_SECONDS = 5.0
RETRY_SECONDS = 1.0

_log = logging.getLogger("weir.cluster")


class Discovery:
    """Keeps `Brokers` up to date, as long as any broker can be reached."""

    def __init__(self, upstream: Upstream, defaults: TopicDefaults) -> None:
        self._upstream = upstream
        self._brokers = upstream.brokers
        self._defaults = defaults
        self._reached = False
        self.problem = "the cluster has not been reached yet"

    @property
    def reached_once(self) -> bool:
        """Whether the cluster has ever answered."""
        return self._reached

    async def run(self) -> None:
        """Ask for ever; to be cancelled."""
        while True:
            client = AIOKafkaClient(
                bootstrap_servers=[f"{host}:{port}" for host, port in self._brokers.anyone()],
                client_id="weir",
                request_timeout_ms=5_000,
                **self._upstream.client_options(),
            )
            context = self._upstream.context
            try:
                await client.bootstrap()
                while answered := await client.force_metadata_update():
                    self._note(client)
                    await self._defaults.look(client)
                    await asyncio.sleep(REFRESH_SECONDS)
                    if self._upstream.context is not context:  # other certificates hold now: begin again with them
                        break
                if not answered:
                    self._lost("no broker answers")
            except (KafkaError, OSError) as error:
                self._lost(str(error))
            finally:
                await client.close()
            await asyncio.sleep(RETRY_SECONDS)

    def _note(self, client: AIOKafkaClient) -> None:
        if self.problem:
            _log.info("the cluster answers")
        self.problem = ""
        for broker in client.cluster.brokers():
            self._brokers.learn(broker.nodeId, broker.host, broker.port)
        self._reached = True

    def _lost(self, problem: str) -> None:
        if not self.problem:
            _log.warning("the cluster can't be reached: %s", problem)
        self.problem = f"the cluster can't be reached: {problem}"
