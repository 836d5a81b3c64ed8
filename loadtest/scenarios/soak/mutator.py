"""Creates and deletes topics through the gateway all the time, within a quota of controller mutations."""

import threading
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any, Final

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from loadtest.scenarios.soak.setting import MUTATOR

_EVERY_SECONDS: Final = 20.0
_TIMEOUT: Final = 30.0


class Mutator:
    """A thread. `counts` has the outcomes of its requests."""

    def __init__(self, bootstrap_servers: str) -> None:
        self.counts: Counter[str] = Counter()
        settings: dict[str, Any] = {
            "error_cb": lambda _: None,
            "bootstrap.servers": bootstrap_servers,
            "client.id": MUTATOR,
            "log_level": 0,
        }
        self._admin = AdminClient(settings)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        self._thread.join()
        del self._admin  # ends its connections

    def _run(self) -> None:
        turn = 0
        while not self._stop.wait(_EVERY_SECONDS):
            turn += 1
            self._finish("create", self._admin.create_topics([NewTopic(f"passing-{turn}", 3)], operation_timeout=_TIMEOUT))
            self._finish("delete", self._admin.delete_topics([f"passing-{turn}"], operation_timeout=_TIMEOUT))

    def _finish(self, name: str, futures: Mapping[str, Future[None]]) -> None:
        for future in futures.values():
            try:
                future.result(_TIMEOUT)
                self.counts[name] += 1
            except (KafkaException, TimeoutError) as error:
                reason = error.args[0].name() if isinstance(error, KafkaException) else "timeout"
                self.counts[f"{name}: {reason}"] += 1
