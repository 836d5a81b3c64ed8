"""SIGTERM while a disk does not answer: the process ends all the same."""

import os
import signal
import sys
from pathlib import Path
from typing import Any, Self

import pytest

from loadtest.testkit.gateway_process import GatewayProcess
from loadtest.testkit.kafka import free_port
from tests.weir_process import wait_until

pytestmark = pytest.mark.process

HUNG = "import threading\ndef hang(*_):\n    print('it hangs', file=sys.stderr, flush=True)\n    threading.Event().wait()\n"
SHORT = "import gateway.app as app, gateway.drain as drain\napp.END_SECONDS = drain.END_SECONDS = 1.0\n"
FEATURE = "gateway.features.recent_use.feature"
HANGS = {
    "a ledger's file": "from gateway.features.ledger.files import LedgerFiles\nLedgerFiles.write = hang\n",
    "the restored use": f"import {FEATURE} as feature\nfeature.read_usage = hang\n",
    "the saved use": f"import {FEATURE} as feature\nfeature.LAST_SAVE_SECONDS, feature.write_usage = 0.5, hang\n",
    "a lock": "from gateway.files.flock import FileLock\nFileLock.take = hang\n",
}


class HungGateway(GatewayProcess):
    """A gateway with a function that never returns, and with a short time to end."""

    def __init__(self, directory: Path, code: str) -> None:
        state = {"usage_path": str(directory / "usage.json"), "usage_interval_ms": 100}
        ledger = {"path": str(directory / "ledger"), "flush_seconds": 1}
        config: dict[str, Any] = {"connections": {"drain_seconds": 0}, "state": state, "ledger": ledger}
        self._code = code
        super().__init__(directory, f"127.0.0.1:{free_port()}", config, wait="/livez")
        (directory / "usage.json").write_text("damaged")  # so that Weir replaces it

    def command(self) -> list[str]:
        code = f"import sys\n{HUNG}{self._code}{SHORT}from gateway.commands import main\nsys.exit(main())"
        return [sys.executable, "-c", code, "serve", "--config", str(self.config_file)]

    def __enter__(self) -> Self:
        self.launch()
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()


@pytest.mark.parametrize("code", HANGS.values(), ids=HANGS.keys())
def test_hung_disk_does_not_keep_the_process(tmp_path: Path, code: str) -> None:
    with HungGateway(tmp_path, code) as weir:
        wait_until(lambda: "it hangs" in weir.log(), "a call that hangs")
        weir.process.send_signal(signal.SIGTERM)
        assert weir.process.wait(60) == 1
        assert "look for a hung disk" in weir.log()


def test_hung_config_does_not_keep_the_process(tmp_path: Path) -> None:
    """The FIFO has a writer, which writes nothing."""
    os.mkfifo(tmp_path / "fifo")
    with HungGateway(tmp_path, "") as weir, (tmp_path / "fifo").open("r+b", buffering=0):
        weir.wait_until_ready()
        (tmp_path / "fifo").rename(weir.config_file)
        reading = Path(f"/proc/{weir.pid}/task")
        weir.process.send_signal(signal.SIGHUP)
        wait_until(lambda: any("poll_schedule" in (each / "wchan").read_text() for each in reading.iterdir()), "a read")
        weir.process.send_signal(signal.SIGTERM)
        assert weir.process.wait(60) == 1


def test_process_without_hung_disk_ends_by_itself(tmp_path: Path) -> None:
    with HungGateway(tmp_path, "") as weir:
        weir.wait_until_ready()
        weir.process.send_signal(signal.SIGTERM)
        assert weir.process.wait(60) == 0
