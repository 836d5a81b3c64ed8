"""`weir volumes publish`: the agent beside a broker that publishes the usage of its disks."""

import asyncio
import logging
import signal
from dataclasses import dataclass
from pathlib import Path

from gateway import clock
from gateway.binding import BindError
from gateway.cluster.brokers import Brokers
from gateway.cluster.metadata import ClusterMetadata
from gateway.cluster.topic_log import TopicLog
from gateway.cluster.upstream import Upstream
from gateway.config.model import WeirConfig
from gateway.config.problems import ConfigError, Problem
from gateway.features.volume_quotas.agent_admin import AgentServer
from gateway.features.volume_quotas.config import VolumesConfig
from gateway.features.volume_quotas.feature import publish_usage, topic_spec
from gateway.features.volume_quotas.report import PublisherReport
from gateway.features.volume_quotas.sources import LocalVolumes
from gateway.files.path_faults import mode_at
from gateway.proxy.counters import Counters

OK, FAILED = 0, 1

_RETRY_SECONDS = 1.0

_log = logging.getLogger("weir.volumes")


@dataclass(frozen=True, slots=True)
class Agent:
    """The agent's settings. `allowed_hosts` are additional Host headers for metrics and probes."""

    broker: int
    paths: tuple[str, ...]
    upstream: Upstream
    volumes: VolumesConfig
    admin: tuple[str, int]
    allowed_hosts: tuple[str, ...] = ()


def agent_config(config: WeirConfig, source: Path, broker_id: int | None, paths: list[str] | None) -> Agent:
    """The agent's part of a config file; options of the command line override it. Raises ConfigError."""
    volumes = config.quotas.volumes or VolumesConfig()
    broker = volumes.agent.broker_id if broker_id is None else broker_id
    found = tuple(paths) if paths else volumes.agent.paths
    problems = []
    if broker is None:
        problems.append(
            Problem("quotas.volumes.agent.broker_id", "is missing", "add the broker's node.id, or give --broker-id")
        )
    if not found:
        remedy = "list the broker's log.dirs, or give --path"
        problems.append(Problem("quotas.volumes.agent.paths", "is empty", remedy))
    named = "--path" if paths else "quotas.volumes.agent.paths"
    problems += [Problem(named, *fault, value=path) for path in found if (fault := _fault(Path(path))) is not None]
    if problems or broker is None:
        raise ConfigError(str(source), problems)
    brokers = Brokers([(server.host, server.port) for server in config.upstream.bootstrap_servers])
    admin = config.admin.host, volumes.agent.admin_port
    upstream = Upstream(config.upstream, source.parent, brokers, Counters())
    return Agent(broker, found, upstream, volumes, admin, tuple(config.admin.allowed_hosts))


def _fault(path: Path) -> tuple[str, str] | None:
    """The message and the remedy for a path that the agent can't look at."""
    try:
        missing = not mode_at(path)
    except PermissionError as error:
        return f"can't be looked at: {error.strerror}", "let the user that runs the agent open the folders above it"
    return ("does not exist on this host", "name the broker's log.dirs") if missing else None


async def publish_volumes(agent: Agent, once: bool) -> int:
    """Publish once, or until SIGTERM or SIGINT; returns the exit code."""
    upstream = agent.upstream
    metadata = ClusterMetadata(upstream.brokers.anyone, upstream.client_options)
    log = TopicLog(metadata.connect, topic_spec(agent.volumes), lambda key, value, headers: None)  # noqa: ARG005
    source = LocalVolumes(agent.broker, agent.paths)

    def report() -> PublisherReport:
        return PublisherReport(log.status, log.status.publication_age(clock.monotonic()), source.problem, source.errors_total)

    server = AgentServer(report, agent.volumes.freshness_seconds, agent.admin, agent.allowed_hosts)
    if not once:
        try:
            await server.start()
        except BindError as error:  # without the agent producers would be paused; its metrics are less important
            _log.error("%s: the agent publishes without metrics and probes", error)
    stopped = asyncio.Event()
    stopping = asyncio.create_task(stopped.wait())
    # Ctrl-C ends a single publication as it ends other commands that run once: by a KeyboardInterrupt.
    for signal_number in (signal.SIGTERM,) if once else (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(signal_number, stopped.set)
    _log.info("publishing the usage of broker %d", agent.broker, extra={"paths": list(agent.paths)})
    interval = agent.volumes.publish_interval_ms / 1000
    try:
        while True:
            if upstream.live is not None:
                upstream.live.refresh()
            # Silent brokers may take a minute, and SIGTERM must take effect at once.
            publishing = asyncio.create_task(publish_usage(source, log, agent.volumes, interval))
            await asyncio.wait((publishing, stopping), return_when=asyncio.FIRST_COMPLETED)
            if not publishing.done():
                publishing.cancel()
                await asyncio.wait((publishing,))
                return FAILED if once else OK
            try:
                published = publishing.result()
            except Exception:  # the gateways pause producers once a broker's usage is stale
                _log.exception("the usage of broker %d could not be published", agent.broker, extra={"reason": "agent"})
                published = False
            if once:
                return OK if published else FAILED
            await asyncio.wait((stopping,), timeout=interval if published else min(interval, _RETRY_SECONDS))
            if stopped.is_set():
                return OK
    finally:
        stopping.cancel()
        await server.stop()
        await log.close()
        await metadata.close()
