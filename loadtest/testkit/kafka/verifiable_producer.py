"""Runs Kafka's VerifiableProducer at an even rate, and reads the JSON line that it prints for each record."""

import json
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from loadtest.testkit.kafka.tools import start_tool

_UNBOUNDED_RETRIES = {"enable.idempotence": "true", "retries": "2147483647"}
"""The tool sets neither, but `retries` must not be 0 beside idempotence."""

_REFUSED_BY_CLOSED_PRODUCER = ("after producer has been closed", "Producer closed while send in progress")
"""Messages of KafkaProducer.throwIfProducerClosed and RecordAccumulator.tryAppend."""


class VerifiableProducer:
    """A running producer with acks=all and idempotence. A thread passes partition, offset and value of each acknowledgement.

    `errors` are the lines of the records that failed.
    """

    def __init__(
        self,
        directory: Path,
        servers: str,
        topic: str,
        acknowledge: Callable[[int, int, str], None],
        *,
        per_second: int,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        file = directory / "producer.properties"
        file.write_text("".join(f"{name}={value}\n" for name, value in {**_UNBOUNDED_RETRIES, **(properties or {})}.items()))
        self.errors: list[str] = []
        self._acknowledge = acknowledge
        self._tool = start_tool(
            "org.apache.kafka.tools.VerifiableProducer",
            *("--bootstrap-server", servers, "--topic", topic, "--acks", "-1"),
            *("--throughput", str(per_second), "--command-config", str(file)),
        )
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        for line in self._tool:
            event: dict[str, Any] = json.loads(line)
            if event["name"] == "producer_send_success":
                self._acknowledge(event["partition"], event["offset"], event["value"])
            elif event["name"] == "producer_send_error" and not refused_at_its_end(event):
                self.errors.append(line)

    @property
    def warnings(self) -> list[str]:
        """The lines of stderr."""
        return self._tool.errors

    def stop(self, timeout: float) -> int:
        """Send SIGTERM, wait for the records in flight, and return the exit code. After `timeout` s, send SIGKILL."""
        code = self._tool.stop(timeout)
        self._thread.join()
        return code


def refused_at_its_end(event: Mapping[str, Any]) -> bool:
    """True if the record of a `producer_send_error` never entered the producer, since the tool had closed it on SIGTERM.

    The tool closes its producer in a shutdown hook, while its main thread may be on the way to `send`
    (VerifiableProducer.main and run). Nothing else closes this producer.
    """
    return any(text in (event["message"] or "") for text in _REFUSED_BY_CLOSED_PRODUCER)
