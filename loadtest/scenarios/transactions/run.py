"""One run of the workload: direct, or through two gateways."""

import json
import subprocess
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from loadtest.scenarios.transactions.checker import ALLOWED, Anomaly, check
from loadtest.scenarios.transactions.clients import (
    PARTITIONS,
    Appender,
    Client,
    Copier,
    Names,
    Reader,
    Sender,
    TransactionalClient,
)
from loadtest.scenarios.transactions.faults import Nemesis, plan_of
from loadtest.scenarios.transactions.final_logs import end_transactions, final_entries
from loadtest.scenarios.transactions.gateways import Gateways
from loadtest.scenarios.transactions.history import FaultNote, Poll, Transaction, entry_of, write_history
from loadtest.scenarios.transactions.recorder import Recorder
from loadtest.testkit.gateway_process import MakeGateway
from loadtest.testkit.kafka import SHORT_SESSIONS, KafkaCluster, start_tool

CLUSTER: Final = {
    **SHORT_SESSIONS,
    # A coordinator looks for expired transactions this often; the default is 10 s.
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
}
"""Broker properties."""

_JAVA: Final = Path(__file__).with_name("TransactionClients.java")
_JAVA_TRANSACTIONAL: Final = ("appender-java-0", "appender-java-1", "copier-java-0")
_TIMEOUT: Final = 60.0
_JOIN_SECONDS: Final = 90.0


@dataclass(frozen=True, slots=True)
class Report:
    """The figures of one run.

    `operations` counts outcomes by kind of client. `throttled_part` is each librdkafka client's part of the run in which it
    was throttled. `examples` has one finding of each class that Kafka does not permit.
    """

    seed: int
    via: str
    seconds: float
    operations: dict[str, dict[str, int]]
    records_read: int
    throttled_part: dict[str, float]
    faults: dict[str, int]
    anomalies: dict[str, int]
    examples: dict[str, str]
    client_errors: int


def run(
    cluster: KafkaCluster, directory: Path, seed: int, seconds: float, make: MakeGateway | None
) -> tuple[Report, list[Anomaly]]:
    """Run the workload and the faults of `seed`; without `make` the clients connect to the brokers. Raises `ToolError`,
    `KafkaException` or `TimeoutError` if the run has no result.

    `directory` gets the history, and the files of the gateways.
    """
    directory.mkdir(parents=True, exist_ok=True)
    via = "direct" if make is None else "weir"
    names = Names(f"{via}-{seed}-{directory.name}")
    _create_topics(cluster, names)
    with ExitStack() as stack:
        gateways = None if make is None else Gateways(stack, cluster, directory, make)
        servers = cluster.bootstrap_servers if gateways is None else gateways.bootstrap_servers
        recorder = Recorder()
        java = start_tool(_JAVA, servers, names.run, str(seed), str(PARTITIONS), stdin=subprocess.PIPE)
        clients = _start(servers, names, recorder, seed)
        apply = gateways.scale if gateways else lambda _: None
        Nemesis(cluster, gateways.processes if gateways else [], apply, recorder).run(plan_of(seed, seconds))
        recorder.over.wait(seconds - recorder.now())
        length = recorder.now()
        throttled = recorder.throttled_seconds()
        recorder.over.set()
        assert java.process.stdin is not None
        java.process.stdin.close()
        deadline = length + _JOIN_SECONDS
        stuck = [client for client in clients if not client.join(max(deadline - recorder.now(), 0.0))]
        rest = [transaction for client in stuck for transaction in client.unfinished()]
        history = [entry_of(json.loads(line)) for line in java.finish(_JOIN_SECONDS).splitlines()]
        recorder.close([*rest, *history])
        errors = [line for line in java.errors if " WARN " not in line]
        recorder.errors += [*errors, *(f"{client.process}: did not end" for client in stuck)]
    ids = [client.transactional_id for client in clients if isinstance(client, TransactionalClient)]
    end_transactions(cluster.bootstrap_servers, [*ids, *(f"{names.run}-{name}" for name in _JAVA_TRANSACTIONAL)])
    recorder.close(final_entries(cluster.bootstrap_servers, names))
    write_history(directory / "history.jsonl", recorder.entries)
    (directory / "errors.txt").write_text("\n".join(recorder.errors) + "\n")
    anomalies = check(recorder.entries)
    return _report(seed, via, length, recorder, throttled, clients, anomalies), anomalies


def _start(servers: str, names: Names, recorder: Recorder, seed: int) -> list[Client]:
    common: tuple[Any, ...] = (servers, names, recorder, seed)
    return [
        *(Appender(f"appender-{number}", *common) for number in range(2)),
        Copier("copier-0", *common),
        Sender("sender-0", *common),
        Reader("reader-committed", *common, committed=True),
        Reader("reader-uncommitted", *common, committed=False),
    ]


def _create_topics(cluster: KafkaCluster, names: Names) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    for future in admin.create_topics([NewTopic(name, PARTITIONS) for name in (names.source, names.sink)]).values():
        future.result(_TIMEOUT)


def _report(
    seed: int, via: str, length: float, recorder: Recorder, throttled: dict[str, float], clients: list[Client],
    anomalies: list[Anomaly],
) -> Report:  # fmt: skip
    operations: dict[str, Counter[str]] = {}
    records_read, faults = 0, Counter[str]()
    for entry in recorder.entries:
        match entry:
            case Transaction():
                kind = entry.process.partition("-")[0]
                operations.setdefault(kind, Counter())[entry.outcome.value] += 1
            case Poll():
                records_read += len(entry.records)
            case FaultNote():
                faults[entry.fault] += 1
    return Report(
        seed=seed,
        via=via,
        seconds=round(length, 1),
        operations={kind: dict(sorted(counts.items())) for kind, counts in sorted(operations.items())},
        records_read=records_read,
        throttled_part={client.process: round(throttled.get(client.process, 0.0) / length, 3) for client in clients},
        faults=dict(sorted(faults.items())),
        anomalies=dict(sorted(Counter(anomaly.kind.value for anomaly in anomalies).items())),
        examples={anomaly.kind.value: anomaly.detail for anomaly in reversed(anomalies) if anomaly.kind not in ALLOWED},
        client_errors=len(recorder.errors),
    )
