"""The proxies to compare: none, Weir, three settings of HAProxy, and kafka-proxy and Kroxylicious after `make rivals`."""

import os
import re
import shutil
import socket
import subprocess
import threading
import time
from abc import ABC, abstractmethod
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final

from loadtest.testkit.certificates import LOOPBACK, Authority, Files
from loadtest.testkit.compiled_build import BUILD, build_of, compiled_build
from loadtest.testkit.gateway_process import HOST, GatewayProcess
from loadtest.testkit.kafka import free_port, free_port_range, spawn, stop
from loadtest.testkit.paths import CHECKOUT

_PLENTY = 10**12
_LIMITS: Final = {"producer_byte_rate": _PLENTY, "consumer_byte_rate": _PLENTY}
_START_SECONDS = 10.0
_SCRAPE_SECONDS = 1.0
_KROXYLICIOUS_NODES = 3
"""The number of broker ports that it opens by default, behind its first port."""


@dataclass(frozen=True)
class Tls:
    """The certificate of the proxies, and the authority that the load generator trusts."""

    ca: Path
    files: Files

    @classmethod
    def make(cls, directory: Path) -> "Tls":
        authority = Authority(directory)
        return cls(authority.cert, authority.issue("proxy", LOOPBACK))


_NOT_STARTED = "not measured: it did not start"


class ProxyUnavailableError(RuntimeError):
    """This proxy can't be measured here. The message has the reason."""


class Way(ABC):
    """A way to the broker: the address for clients, and the processes to measure.

    With `tls`, clients connect with TLS and the proxy terminates it; the connection to the broker is plaintext.
    """

    about: ClassVar[str]
    address: str
    pids: tuple[int, ...] = ()
    visits: tuple[str, ...] = ()
    """URLs that the load of a latency measurement requests once a second."""

    crowd: ClassVar[int] = 0
    """Further clients that send one request each before a latency measurement."""

    def __init__(self, tls: Tls | None = None) -> None:
        self.tls = tls

    @classmethod
    def description(cls) -> str:
        """Its setting, for the report."""
        return cls.about

    @abstractmethod
    def start(self, broker: str, directory: Path) -> None:
        """Start the proxy in front of `broker` (`host:port`). Raises `ProxyUnavailableError`."""

    @abstractmethod
    def stop(self) -> None:
        """Stop the proxy. Does nothing if it does not run."""


class Direct(Way):
    """No proxy."""

    about = "the clients' connections go to the broker"

    def start(self, broker: str, directory: Path) -> None:  # noqa: ARG002
        _needs_plaintext(self)
        self.address = broker

    def stop(self) -> None: ...


class Weir(Way):
    """Weir with all kinds of quotas for the clients, too high to throttle them."""

    about = "produce and fetch quotas measured and enforced, none exceeded; rows at all eight levels of precedence"
    _gateway: GatewayProcess | None = None

    @classmethod
    def packages(cls) -> Path:
        """The folder with the packages that it runs. Raises BuildError."""
        return compiled_build()

    @classmethod
    def description(cls) -> str:
        """Its setting, and `compiled` or `interpreted`."""
        return f"{cls.about}; {build_of(cls.packages())}"

    def sections(self, directory: Path) -> dict[str, Any]:  # noqa: ARG002
        return {}

    def start(self, broker: str, directory: Path) -> None:
        """Raises `GatewayError`."""
        # A null broker does not say that clients need not authenticate. Weir would parse every request until it knows.
        keys: dict[str, Any] = {"sasl": {"required": False}}
        if self.tls is not None:
            keys["tls"] = {"cert": str(self.tls.files.cert), "key": str(self.tls.files.key)}
        config = {"quotas": {"entities": quota_rows()}, "connections": {"max_per_ip": 1_000}, **self.sections(directory)}
        # Not /readyz, because a null broker does not answer Metadata.
        self._gateway = gateway = GatewayProcess(directory, broker, config, keys, "/livez", self.packages())
        gateway.start()
        wait_listening(gateway.process, gateway.ports[0], _NOT_STARTED, gateway.log_file)
        self.address = gateway.bootstrap_servers
        self.pids = (self._gateway.pid,)

    def stop(self) -> None:
        if self._gateway is not None:
            self._gateway.stop()


class WeirBefore(Weir):
    """Weir of another commit. `--baseline` sets `checkout`, which has a compiled build or extensions in place."""

    about = "Weir from the checkout that --baseline names"
    checkout: ClassVar[Path]

    @classmethod
    def packages(cls) -> Path:
        """The checkout's compiled build if there is one, else the checkout itself."""
        build = cls.checkout / BUILD.relative_to(CHECKOUT)
        return build if build.is_dir() else cls.checkout


class WeirWatched(Weir):
    """Weir with its ledger, and with visits to its pages by the load, to measure their effect on latency."""

    about = "the same with the ledger, a viewer of the live page, and /metrics and the page requested every second"

    def sections(self, directory: Path) -> dict[str, Any]:
        return {"ledger": {"path": str(directory / "ledger")}}

    def start(self, broker: str, directory: Path) -> None:
        """Raises `GatewayError`."""
        super().start(broker, directory)
        assert self._gateway is not None
        self.visits = tuple(f"{self._gateway.admin}{page}" for page in ("/", "/metrics", "/api/quotas", "/api/stream"))


class WeirCrowded(WeirWatched):
    """Weir with as many clients as its pages show by name."""

    about = "the same as weir-watched, with 1,000 more client-ids that were in use before"
    crowd = 1_000


class WeirObserved(Weir):
    """Weir with its ledger and metrics in use, to measure their cost."""

    about = "the same with the ledger (every entity's use by the minute), and /metrics scraped every second"

    def sections(self, directory: Path) -> dict[str, Any]:
        return {"ledger": {"path": str(directory / "ledger")}}

    def start(self, broker: str, directory: Path) -> None:
        """Starts a scraper too. Raises `GatewayError`."""
        super().start(broker, directory)
        self._over = threading.Event()
        threading.Thread(target=self._scrape, name="scrape weir-observed", daemon=True).start()

    def stop(self) -> None:
        if self._gateway is not None:
            self._over.set()
        super().stop()

    def _scrape(self) -> None:
        gateway = self._gateway
        while gateway is not None and not self._over.wait(_SCRAPE_SECONDS):
            with suppress(OSError):  # it is just being stopped
                gateway.get("/metrics")


class WeirGroup(Weir):
    """Weir with the clients in a group, to measure its cost."""

    about = "the same, with the clients in a group with ceilings"
    groups: ClassVar[tuple[dict[str, Any], ...]] = ({"name": "bench", "match": [{"client-id": "bench"}], **_LIMITS},)

    def sections(self, directory: Path) -> dict[str, Any]:  # noqa: ARG002
        return {"quotas": {"entities": quota_rows(), "groups": [*self.groups]}}


class WeirTree(WeirGroup):
    """Weir with the clients two levels deep in a tree of groups."""

    about = "the same, with the clients in a group that shares a capacity with another one"
    groups = (
        {"name": "whole", **_LIMITS},
        {"name": "bench", "parent": "whole", "match": [{"client-id": "bench"}], **{key: {"weight": 3} for key in _LIMITS}},
        {"name": "others", "parent": "whole", "match": [{"client-id": "app-*"}], **{key: {"weight": 1} for key in _LIMITS}},
    )


def quota_rows() -> list[dict[str, Any]]:
    """Rows for the bench's client, matched by client-id at the last level but one, and for many other clients."""
    others = [{"user": f"user-{n}", "client-id": f"app-{n}", **_LIMITS} for n in range(20)]
    others += [{"user": f"user-{n}", "client-id": "<default>", **_LIMITS} for n in range(20)]
    others += [{"user": f"user-{n}", **_LIMITS} for n in range(20)]
    others += [{"client-id": f"app-{n}", **_LIMITS} for n in range(20)]
    others += [{"user": "<default>", "client-id": f"app-{n}", **_LIMITS} for n in range(20)]
    return [*others, {"client-id": "bench", **_LIMITS}, {"client-id": "<default>", **_LIMITS}]


class Spawned(Way):
    """A proxy in a process of its own."""

    def __init__(self, tls: Tls | None = None) -> None:
        super().__init__(tls)
        self._process: subprocess.Popen[str] | None = None

    def launch(self, command: list[str], port: int, log: Path, **environment: str) -> None:
        """Start the program, and wait until it listens on the port. Raises `ProxyUnavailableError`."""
        with log.open("w") as out:
            self._process = spawn(command, stdout=out, stderr=out, env={**os.environ, **environment})
        self.address = f"{HOST}:{port}"
        self.pids = (self._process.pid,)
        wait_listening(self._process, port, _NOT_STARTED, log)

    def stop(self) -> None:
        if self._process is not None:
            stop(self._process, timeout=2.0)


class HAProxy(Spawned):
    """HAProxy from Debian in TCP mode with one thread."""

    about = "mode tcp, nbthread 1, default buffers (tune.bufsize 16384)"
    tune: ClassVar[str] = ""
    options: ClassVar[str] = ""

    @classmethod
    def description(cls) -> str:
        """Its version and setting; only the setting if HAProxy is missing."""
        try:
            shown = subprocess.run([find("haproxy"), "-v"], capture_output=True, text=True, check=False).stdout
        except ProxyUnavailableError:
            return cls.about
        version = re.search(r"version (\S+)", shown)
        return f"HAProxy {version[1]}; {cls.about}" if version else cls.about

    def start(self, broker: str, directory: Path) -> None:
        """Starts it in the foreground, without a master process. Raises `ProxyUnavailableError`."""
        binary = find("haproxy")
        port = free_port()
        directory.mkdir(parents=True, exist_ok=True)
        config = directory / "haproxy.cfg"
        secured = "" if self.tls is None else f" ssl crt {self.tls.files.both}"
        config.write_text(
            f"global\n    nbthread 1\n    maxconn 4000\n{self.tune}"
            "defaults\n    mode tcp\n    timeout connect 5s\n    timeout client 1h\n    timeout server 1h\n"
            f"{self.options}"
            f"frontend clients\n    bind {HOST}:{port}{secured}\n    default_backend kafka\n"
            f"backend kafka\n    server broker {broker}\n"
        )
        self.launch([binary, "-db", "-f", str(config)], port, directory / "haproxy.log")

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()  # on SIGTERM it waits for its clients
            self._process.wait()


class HAProxyBigBuffers(HAProxy):
    """HAProxy with buffers of 64 KiB, for large requests."""

    about = "the same with tune.bufsize 65536"
    tune = "    tune.bufsize 65536\n"


class HAProxySplice(HAProxy):
    """HAProxy with zero copy in the kernel, when HAProxy decides that it is useful."""

    about = "the same as haproxy with option splice-auto (zero copy)"
    options = "    option splice-auto\n"


class KafkaProxy(Spawned):
    """grepplabs/kafka-proxy (Go), which parses Kafka's protocol but has no quotas."""

    about = "grepplabs/kafka-proxy 0.2.8, GOMAXPROCS 1; acks=0 disabled, since it supports Produce only up to v8"

    def start(self, broker: str, directory: Path) -> None:
        _needs_plaintext(self)
        binary = find("kafka-proxy")
        port = free_port()
        directory.mkdir(parents=True, exist_ok=True)
        command = [binary, "server", "--bootstrap-server-mapping", f"{broker},{HOST}:{port}"]
        command += ["--dynamic-listeners-disable", "--http-disable", "--producer-acks-0-disabled"]
        self.launch(command, port, directory / "kafka-proxy.log", GOMAXPROCS="1")


class Kroxylicious(Spawned):
    """Kroxylicious (Java, Netty) without filters."""

    about = "Kroxylicious 0.12.0 on this machine's JVM, one virtual cluster, no filters"

    def start(self, broker: str, directory: Path) -> None:
        _needs_plaintext(self)
        libs = CHECKOUT / ".cache/tools/kroxylicious/libs"
        if not libs.is_dir():
            raise ProxyUnavailableError(f"not measured: {libs} is missing; run `make rivals`")
        port = free_port_range(1 + _KROXYLICIOUS_NODES)
        directory.mkdir(parents=True, exist_ok=True)
        config = directory / "kroxylicious.yaml"
        config.write_text(
            "virtualClusters:\n"
            "- name: bench\n"
            f"  targetCluster: {{bootstrapServers: '{broker}'}}\n"
            "  gateways:\n"
            "  - name: clients\n"
            "    portIdentifiesNode:\n"
            f"      bootstrapAddress: {HOST}:{port}\n"
        )
        main = Path(__file__).with_name("kroxylicious") / "Kroxylicious.java"
        command = ["java", "-XX:-UsePerfData", "-cp", f"{libs}/*", str(main), str(config)]
        self.launch(command, port, directory / "kroxylicious.log")


WAYS: dict[str, type[Way]] = {
    "direct": Direct,
    "weir": Weir,
    "weir-before": WeirBefore,
    "weir-observed": WeirObserved,
    "weir-watched": WeirWatched,
    "weir-crowded": WeirCrowded,
    "weir-group": WeirGroup,
    "weir-tree": WeirTree,
    "haproxy": HAProxy,
    "haproxy-64k": HAProxyBigBuffers,
    "haproxy-splice": HAProxySplice,
    "kafka-proxy": KafkaProxy,
    "kroxylicious": Kroxylicious,
}
"""The names are those of `--proxies`."""


def find(name: str) -> str:
    """A binary's path, from PATH or from `make setup`. Raises `ProxyUnavailableError`."""
    folders = [os.environ.get("PATH", ""), "/usr/sbin", str(CHECKOUT / ".cache/tools/bin")]
    found = shutil.which(name, path=os.pathsep.join(folders))
    if found is None:
        raise ProxyUnavailableError(f"not measured: no {name} in PATH or .cache/tools/bin (`make setup`, `make rivals`)")
    return found


def _needs_plaintext(way: Way) -> None:
    if way.tls is not None:
        raise ProxyUnavailableError("not measured: the bench does not configure its TLS")


def wait_listening(process: "subprocess.Popen[str]", port: int, problem: str, log: Path | None = None) -> None:
    """Wait until the process listens on the port. Raises `ProxyUnavailableError` with the end of the log."""
    deadline = time.monotonic() + _START_SECONDS
    while True:
        try:
            socket.create_connection((HOST, port), timeout=1.0).close()
        except OSError:
            if process.poll() is not None or time.monotonic() > deadline:
                stop(process, timeout=1.0)
                said = log.read_text()[-500:] if log is not None else ""
                raise ProxyUnavailableError(f"{problem}: {said}") from None
            time.sleep(0.05)
        else:
            return
