"""Ctrl-C and SIGTERM at commands. tests/gateway/reports/test_command.py has Ctrl-C of a report."""

import importlib
import json
import os
import pty
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

import gateway.__main__
from gateway import commands
from gateway.commands import main

CONFIG = """\
upstream: {{bootstrap_servers: ["{silent}"]}}
listeners: [{{bootstrap_port: 29092}}]
quotas: {{entities: [{{client-id: etl, producer_byte_rate: 1000000}}]}}
"""


@pytest.fixture
def silent() -> Iterator[socket.socket]:
    """A server that accepts connections and sends nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(60)
        yield server


@pytest.mark.process
@pytest.mark.parametrize(
    "arguments",
    [
        "check --config {config} --brokers",
        "explain --user a --admin http://{silent}",
        "connections --admin http://{silent}",
        "quotas --admin http://{silent}",
        "quotas forgive --user a --admin http://{silent}",
        "quotas import --config {config}",
        "volumes publish --config {config} --broker-id 1 --path / --once",
    ],
)
def test_command_that_is_interrupted_says_so(arguments: str, silent: socket.socket, tmp_path: Path) -> None:
    address = f"127.0.0.1:{silent.getsockname()[1]}"
    config = tmp_path / "weir.yaml"
    config.write_text(CONFIG.format(silent=address))
    command = [sys.executable, "-m", "gateway", *(word.format(config=config, silent=address) for word in arguments.split())]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        connection, _ = silent.accept()
        with connection:
            connection.settimeout(60)
            assert connection.recv(1)
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=60)
    assert out == ""
    assert [line for line in err.splitlines() if not line.startswith("{")] == ["interrupted"]
    assert process.returncode == 130


@pytest.mark.process
@pytest.mark.parametrize(
    ("entry", "module"),
    [
        ("runpy.run_module('gateway', run_name='__main__')", "uvloop"),
        ("from gateway.__main__ import main; sys.exit(main())", "uvloop"),
        ("runpy.run_module('gateway.reports', run_name='__main__')", "argparse"),
    ],
    ids=["python -m gateway", "weir", "python -m gateway.reports"],
)
def test_ctrl_c_during_imports_has_no_traceback(entry: str, module: str, tmp_path: Path) -> None:
    """The import of a module of the command line waits here until the signal."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    (tmp_path / f"{module}.py").write_text(f"open({str(pipe)!r}).read()")
    program = f"import runpy, sys; sys.path.insert(0, {str(tmp_path)!r}); {entry}"
    command = [sys.executable, "-c", program, "check"]
    with (
        subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process,
        pipe.open("w"),  # once the module is imported
    ):
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert err == "interrupted\n"
    assert process.returncode == 130


@pytest.mark.process
def test_first_process_that_starts_ends_at_sigterm(tmp_path: Path) -> None:
    """The kernel drops signals without a handler for the first process of a container. Not all systems allow one here."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    (tmp_path / "uvloop.py").write_text(f"open({str(pipe)!r}).read()")
    first = "import os, sys; os.getpid = lambda: 1"
    program = f"{first}; sys.path.insert(0, {str(tmp_path)!r}); from gateway.__main__ import main; sys.exit(main())"
    command = [sys.executable, "-c", program, "serve", "--config", str(tmp_path / "weir.yaml")]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process, pipe.open("w"):  # the start waits here
        process.terminate()
        _, err = process.communicate(timeout=60)
    assert err == "terminated\n"
    assert process.returncode == 128 + signal.SIGTERM


@pytest.mark.process
def test_ctrl_c_that_is_ignored_stays_ignored() -> None:
    """A shell's job in the background ignores it."""
    program = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.SIG_IGN); sys.argv[1:] = ['--version'];"
        " import atexit; atexit.register(lambda: print(signal.getsignal(signal.SIGINT) is signal.SIG_IGN));"
        " from gateway.__main__ import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "True"


def test_import_of_the_entry_handles_no_signals() -> None:
    before = signal.getsignal(signal.SIGINT)
    importlib.reload(gateway.__main__)
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.process
def test_ctrl_c_is_the_ordinary_end_of_a_live_table() -> None:
    class Admin(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(json.dumps({"groups": []}).encode())

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Admin) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        command = [sys.executable, "-m", "gateway", "quotas", "--groups", "--admin", f"http://127.0.0.1:{server.server_port}"]
        terminal, theirs = pty.openpty()
        with subprocess.Popen(command, stdout=theirs, stderr=subprocess.PIPE, text=True) as process:
            os.close(theirs)
            shown = b""
            while b"No groups share" not in shown:
                shown += os.read(terminal, 4096)
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=60)
        os.close(terminal)
        server.shutdown()
    assert err == ""
    assert process.returncode == 0


def test_ctrl_c_during_the_start_of_a_gateway_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: Sequence[object], **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(commands, "configure_logging", interrupt)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    assert main(["serve", "--config", str(tmp_path / "weir.yaml")]) == 0
