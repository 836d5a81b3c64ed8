"""The command line, as a user runs it."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gateway.commands import main
from gateway.version import weir_build
from loadtest.testkit.kafka import free_port_range

ADMIN_PORT = free_port_range(10)
PORT, NOBODY = ADMIN_PORT + 1, ADMIN_PORT + 9
ADMIN = f"http://127.0.0.1:{ADMIN_PORT}"
CONFIG = f"""\
upstream: {{bootstrap_servers: ["127.0.0.1:{NOBODY}"]}}
listeners: [{{name: clients, bootstrap_port: {PORT}, broker_ports: {PORT + 1}-{PORT + 4}}}]
quotas: {{entities: [{{user: "<default>", producer_byte_rate: 100000}}]}}
admin: {{port: {ADMIN_PORT}}}
"""


def weir(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "gateway", *arguments], capture_output=True, text=True, timeout=60)


class TestCheck:
    def test_valid_file_is_summarized(self, config_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["check", "--config", str(config_file)]) == 0
        out, err = capsys.readouterr()
        assert out == (
            f"{config_file}: valid: clients on 127.0.0.1:{PORT} and {PORT + 1}-{PORT + 4}; upstream 127.0.0.1:{NOBODY}; "
            f"admin 127.0.0.1:{ADMIN_PORT}\n"
            "  on: quotas (1 limited and 0 exempt; token_bucket, enforced), connection limits (1000 per address)\n"
            "  off: groups, shadow limits, topic quotas, volume quotas, quota API, sharing, workers, ledger, notify\n"
        )
        assert err == ""

    def test_scope_broker_is_shown(self, config_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
        config_file.write_text(CONFIG.replace("quotas: {", "quotas: {scope: broker, "))
        assert main(["check", "--config", str(config_file)]) == 0
        assert "quotas (1 limited and 0 exempt; token_bucket, at each broker, enforced)" in capsys.readouterr().out

    @pytest.mark.parametrize(("key", "shown"), [("", "TLS"), ("verify_hostname: false", "TLS, host names unchecked")])
    def test_tls_to_brokers_is_shown(self, config_file: Path, key: str, shown: str, capsys: pytest.CaptureFixture[str]) -> None:
        config_file.write_text(CONFIG.replace(f'{NOBODY}"]', f'{NOBODY}"], tls: {{{key}}}'))
        assert main(["check", "--config", str(config_file)]) == 0
        assert f"upstream 127.0.0.1:{NOBODY} ({shown}); " in capsys.readouterr().out

    def test_workers_and_shared_topic_are_shown(self, config_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
        config_file.write_text(CONFIG + "workers: 2\n")
        assert main(["check", "--config", str(config_file)]) == 0
        assert ", sharing (topic __weir_usage), workers (2)\n" in capsys.readouterr().out

    def test_shadow_limits_and_notify_are_shown(self, config_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
        rows = "{user: a, producer_byte_rate: 100000, shadow: {producer_byte_rate: 50000}}"
        group = "groups: [{name: g, match: [{user: b}], shadow: {request_rate: 5}}]"
        notify = "notify: {targets: [{name: ops, url: 'http://a'}, {name: tenants, url: 'http://b'}]}\n"
        config_file.write_text(CONFIG.replace("entities: [", f"{group}, entities: [{rows}, ") + notify)
        assert main(["check", "--config", str(config_file)]) == 0
        out = capsys.readouterr().out
        assert ", shadow limits (2 rows), " in out
        assert ", notify (to ops, tenants)\n" in out

    def test_credentials_without_brokers_are_wrong_usage(self, config_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(SystemExit) as ended:
            main(["check", "--config", str(config_file), "--command-config", "admin.properties"])
        assert ended.value.code == 2
        assert "--command-config needs --brokers" in capsys.readouterr().err

    def test_unreadable_credentials_are_an_error(self, config_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["check", "--config", str(config_file), "--brokers", "--command-config", "nowhere.properties"]) == 1
        assert "--command-config nowhere.properties: can't be read: No such file" in capsys.readouterr().err

    @pytest.mark.parametrize(
        ("sharing", "limits"),
        [("", "1000 per address, 400 in all"), ("sharing:\n", "1000 per address in each worker, 400 in each worker")],
        ids=["shared", "not shared"],
    )
    def test_maxima_hold_in_each_worker_without_sharing(
        self, config_file: Path, sharing: str, limits: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        config_file.write_text(CONFIG + sharing + "workers: 2\nconnections: {max_connections: 400}\n")
        assert main(["check", "--config", str(config_file)]) == 0
        assert f"connection limits ({limits})" in capsys.readouterr().out

    def test_warnings_are_shown_without_failing(self, config_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
        config_file.write_text(CONFIG.replace("100000", "10"))
        assert main(["check", "--config", str(config_file)]) == 0
        first, second, *_ = capsys.readouterr().out.splitlines()
        assert first.startswith("warning: quotas.entities[0].producer_byte_rate: 10 bytes/s")
        assert "valid" in second

    def test_each_error_is_one_line(self, config_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
        config_file.write_text(CONFIG.replace("100000", "-1").replace(f"bootstrap_port: {PORT}", "bootstrap_port: 99999"))
        assert main(["check", "--config", str(config_file)]) == 1
        out, err = capsys.readouterr()
        keys = [line.split(": ")[0] for line in out.splitlines()]
        assert keys == ["listeners[0].bootstrap_port", "quotas.entities[0].producer_byte_rate"]
        assert all(" — " in line for line in out.splitlines())
        assert err == f"{config_file}: 2 errors\n"

    @pytest.mark.parametrize(
        ("text", "shown"),
        [
            (r'"a\e]0;title\a": 1', r"a\x1b]0;title\x07: is not a key of the file"),
            (r'"a\e[31m": 1' + "\n" + r'"a\e[31m": 2', r"a\x1b[31m: is given twice"),
            (r'"b\nweir.yaml: valid": 1', r"b\nweir.yaml: valid: is not a key of the file"),
            (r'workers: "\x9b31m"', r'(value "\x9b31m"'),
        ],
        ids=["key", "twice", "line", "value"],
    )
    def test_error_has_no_control_characters(
        self, config_file: Path, text: str, shown: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        config_file.write_text(CONFIG + text + "\n")
        assert main(["check", "--config", str(config_file)]) == 1
        out = capsys.readouterr().out
        assert shown in out
        assert all(line.isprintable() and " — " in line for line in out.splitlines())

    def test_warnings_and_summary_have_no_control_characters(
        self, config_file: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        name = r'"g\e[31m\x9b"'
        config_file.write_text(
            CONFIG + f"notify: {{targets: [{{name: {name}, url: 'https://a', entities: [{{group: {name}}}]}}]}}\n"
        )
        assert main(["check", "--config", str(config_file)]) == 0
        out = capsys.readouterr().out
        assert r"warning: notify.targets[0].entities[0].group: g\x1b[31m\x9b is not in" in out
        assert r"notify (to g\x1b[31m\x9b)" in out
        assert all(line.isprintable() for line in out.splitlines())

    def test_missing_file_is_one_error(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["check", "--config", str(tmp_path / "nowhere.yaml")]) == 1
        out, err = capsys.readouterr()
        assert out.startswith("(file): does not exist — write one with `weir init`")
        assert err.endswith("nowhere.yaml: 1 error\n")


class TestUsage:
    @pytest.mark.parametrize(
        ("command", "words"),
        [
            ([], ["KIP-219", "weir check --config weir.yaml", "exit codes: 0 clean"]),
            (["serve"], ["--config FILE", "SIGTERM", "SIGHUP", "connections.drain_seconds", "9644"]),
            (["check"], ["--config FILE", "one line for each error", "with 1 if not"]),
            (["quotas"], ["--admin URL", "--once", "--json", "each second"]),
        ],
        ids=["weir", "serve", "check", "quotas"],
    )
    def test_help_explains_the_command(self, command: list[str], words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(SystemExit) as ended:
            main([*command, "--help"])
        assert ended.value.code == 0
        text = capsys.readouterr().out
        assert [word for word in words if word not in text] == []

    @pytest.mark.parametrize(
        "arguments",
        [
            [],
            ["check"],
            ["serve"],
            ["nonsense"],
            ["quotas", "--admin", "9644"],
            ["quotas", "--admin", "ftp://x"],
            ["quotas", "--admin", "http://h:99999"],
            ["quotas", "--admin", "http://[::1"],
        ],
        ids=" ".join,
    )
    def test_wrong_usage_exits_with_2(self, arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        assert ended.value.code == 2
        assert "usage: weir" in capsys.readouterr().err

    def test_config_in_the_help_is_valid(self, config_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(SystemExit):
            main(["--help"])
        text = capsys.readouterr().out
        example = re.search(r"the smallest weir\.yaml:\n((?: .*\n)+)", text)
        assert example
        config_file.write_text("\n".join(line[2:] for line in example[1].splitlines()))
        assert main(["check", "--config", str(config_file)]) == 0

    @pytest.mark.process
    def test_version_is_printed(self) -> None:
        result = weir("--version")
        assert result.returncode == 0
        assert re.fullmatch(rf"weir \S+ \({weir_build()}\)\n", result.stdout)


class TestQuotasWithoutGateway:
    def test_unreachable_admin_port_is_explained(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["quotas", "--admin", f"http://127.0.0.1:{NOBODY}"]) == 1
        out, err = capsys.readouterr()
        assert out == ""
        assert err.startswith(f"http://127.0.0.1:{NOBODY}/api/quotas can't be reached: ")
        assert "--admin" in err


class Served:
    """`weir serve` as a process, and its log."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def logged(self, wanted: Callable[[dict], bool]) -> dict:
        """The next log line that matches. Each line before it must be JSON too."""
        assert self.process.stderr
        for line in self.process.stderr:
            record = json.loads(line)
            assert "error" not in record, record["error"]
            if wanted(record):
                return record
        raise AssertionError("weir ended without the line")

    def get(self, page: str) -> str:
        with urllib.request.urlopen(ADMIN + page, timeout=10) as response:
            return response.read().decode()


@contextmanager
def serving(path: Path) -> Iterator[Served]:
    command = [sys.executable, "-m", "gateway", "serve", "--config", str(path)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            served = Served(process)
            served.logged(lambda record: record["msg"] == "serving")
            yield served
        finally:
            process.kill()


@pytest.mark.process
class TestServe:
    def test_gateway_serves_reloads_and_exits_cleanly(self, config_file: Path) -> None:
        with serving(config_file) as served:
            assert served.get("/livez") == "live\n"
            config = json.loads(served.get("/api/config"))
            assert (config["version"], config["config"]["listeners"][0]["bootstrap_port"]) == (1, PORT)

            config_file.write_text(CONFIG.replace("100000", "200000"))
            served.logged(lambda record: "producer_byte_rate 200000" in record["msg"])
            assert json.loads(served.get("/api/config"))["version"] == 2

            config_file.write_text(CONFIG.replace("100000", "none"))
            refused = served.logged(lambda record: record["level"] == "error" and record["logger"] == "weir.reload")
            assert refused["key"] == "quotas.entities[0].producer_byte_rate"
            page = served.get("/metrics")
            assert 'weir_config_reloads_total{result="failure"} 1.0' in page
            assert 'weir_config_reloads_total{result="success"} 1.0' in page

            os.kill(served.process.pid, signal.SIGHUP)
            served.logged(lambda record: record["level"] == "error" and record["logger"] == "weir.reload")

            result = weir("quotas", "--admin", ADMIN)
            assert (result.returncode, result.stderr) == (0, "")
            assert "No client has used a quota yet." in result.stdout
            result = weir("quotas", "--admin", ADMIN, "--json")
            assert json.loads(result.stdout)["rows"] == []

            served.process.send_signal(signal.SIGTERM)
            assert served.process.wait(30) == 0

    @pytest.mark.parametrize("workers", [1, 2])
    def test_closed_standard_streams_are_no_error(self, config_file: Path, workers: int) -> None:
        config_file.write_text(CONFIG + f"workers: {workers}\n")
        command = [sys.executable, "-m", "gateway", "serve", "--config", str(config_file)]
        with subprocess.Popen(
            ["/bin/sh", "-c", 'exec "$@" <&- >&-', "sh", *command], stderr=subprocess.PIPE, text=True
        ) as process:
            try:
                Served(process).logged(lambda record: record["msg"] == "serving")
                process.send_signal(signal.SIGTERM)
                assert process.wait(60) == 0
            finally:
                process.kill()

    def test_sighup_during_start_is_ignored(self, config_file: Path) -> None:
        state = config_file.with_name("weir.state.json")
        os.mkfifo(state)
        command = [sys.executable, "-m", "gateway", "serve", "--config", str(config_file)]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
            try:
                with state.open("w") as writing:  # once it reads
                    process.send_signal(signal.SIGHUP)
                    writing.write('{"version": 1, "client_quotas": []}')
                Served(process).logged(lambda record: record["msg"] == "serving")
            finally:
                process.kill()

    def test_closed_output_pipe_is_no_error(self, config_file: Path) -> None:
        with serving(config_file):
            command = [sys.executable, "-m", "gateway", "quotas", "--admin", ADMIN, "--json"]
            with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
                assert process.stdout
                assert process.stderr
                process.stdout.close()
                assert process.stderr.read() == b""

    def test_bad_file_prevents_start(self, config_file: Path) -> None:
        config_file.write_text(CONFIG.replace(f"port: {ADMIN_PORT}", "port: 99999"))
        result = weir("serve", "--config", str(config_file))
        assert result.returncode == 1
        first, last = result.stderr.splitlines()
        assert first.startswith("admin.port: must be at most 65535 (value 99999, line 4) — ")
        assert last == f"{config_file}: 1 error"

    def test_damaged_state_file_prevents_start(self, config_file: Path) -> None:
        state = config_file.with_name("weir.state.json")
        state.write_text('{"version": 1,')
        result = weir("serve", "--config", str(config_file))
        assert result.returncode == 1
        (line,) = [line for line in result.stderr.splitlines() if line.startswith("state.path: ")]
        assert str(state) in line
        assert "is damaged" in line
        assert "move it away" in line
        assert "Traceback" not in result.stderr

    def test_missing_folder_of_the_state_is_logged(self, config_file: Path) -> None:
        config_file.write_text(CONFIG + f"state: {{path: {config_file.parent}/new/state.json}}\n")
        with socket.create_server(("127.0.0.1", ADMIN_PORT)):
            result = weir("serve", "--config", str(config_file))
        assert f"state.path: the folder {config_file.parent}/new does not exist" in result.stderr

    @pytest.mark.parametrize(
        ("port", "key"), [(ADMIN_PORT, "admin.port"), (PORT, "bootstrap_port")], ids=["admin", "bootstrap"]
    )
    def test_port_in_use_is_named(self, config_file: Path, port: int, key: str) -> None:
        with socket.create_server(("127.0.0.1", port)):
            result = weir("serve", "--config", str(config_file))
        assert result.returncode == 3
        (line,) = [json.loads(line) for line in result.stderr.splitlines() if '"error"' in line]
        assert key in line["msg"]
        assert str(port) in line["msg"]
        assert "Traceback" not in result.stderr


def test_pipe_that_closes_before_the_end_is_no_error(config_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So few lines stay in the buffer until the end."""
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as out:
        monkeypatch.setattr(sys, "stdout", out)
        assert main(["explain", "--config", str(config_file), "--json"]) == 0


@pytest.mark.process
def test_command_line_starts_without_rich() -> None:
    found = "import sys, gateway.commands; print('rich' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", found], capture_output=True, text=True, timeout=60).stdout == "False\n"


@pytest.mark.parametrize("option", ["--config", "--command-config"])
def test_table_of_quotas_reads_no_file(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["quotas", option, "weir.yaml"])
    assert ended.value.code == 2
    assert "from a running gateway, not from a file: give --admin URL" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            "quotas forgive --user a --group g",
            "--group: 'g' can't be combined with user or client-id: clear their debts one by",
        ),
        ("connections --limit x", "--limit: 'x' is out of range: write a number from 1 to 1000"),
        ("connections --offset -1", "--offset: '-1' is out of range: write a number from 0 to 10000"),
        ("connections --ip 10.0.0", "--ip: '10.0.0' is not an IP address: write one, such as 10.0.0.7"),
        ("quotas --admin http://[::1", "--admin: 'http://[::1' is not an address such as http://127.0.0.1:9644"),
        ("connections --broker b1", "--broker: 'b1' is not the node id of a broker: write a number, such as 3"),
        (
            "volumes publish --config w --broker-id x",
            "--broker-id: 'x' is not the node id of a broker: write a number, such as 3",
        ),
        ("volumes publish --config w --broker-id " + "9" * 5_000, "is not the node id of a broker: write a number, such as 3"),
    ],
)
def test_bad_option_is_refused_before_any_connection(arguments: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A connection to the default admin address would end with 1."""
    with pytest.raises(SystemExit) as ended:
        main(arguments.split())
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "usage", "error"),
    [
        ("quotas --grups", "usage: weir quotas [-h]", "error: unrecognized arguments: --grups — did you mean --groups?\n"),
        ("check --config w --brokrs", "usage: weir check [-h]", "arguments: --brokrs — did you mean --brokers?"),
        ("quotas forgive --user a --kinds x", "usage: weir quotas forgive [-h]", "--kinds x — did you mean --kind?"),
        (
            "check --confg w",
            "usage: weir check [-h]",
            "required: --config; unrecognized arguments: --confg — did you mean --config?",
        ),
        ("check --confg=w", "usage: weir check [-h]", "unrecognized arguments: --confg — did you mean --config?"),
        ("init --bootstrap-servr a:1", "usage: weir init [-h]", "--bootstrap-servr — did you mean --bootstrap-server?"),
        ("quotas import --confg w", "usage: weir quotas import [-h]", "--confg — did you mean --config?"),
        ("check --brokers", "usage: weir check [-h]", "error: the following arguments are required: --config\n"),
        ("chekc --config w", "usage: weir [-h]", "'connections', 'report') — did you mean check?\n"),
        ("quotas fogive", "usage: weir quotas [-h]", "— did you mean forgive?\n"),
        ("serve --config w --log-format txt", "usage: weir serve [-h]", "— did you mean text?\n"),
        ("serve --config w more", "usage: weir serve [-h]", "weir serve: error: unrecognized arguments: more\n"),
        ("volumes publish --config w more", "usage: weir volumes publish [-h]", "unrecognized arguments: more\n"),
        ("report more", "usage: weir report [-h]", "unrecognized arguments: more\n"),
    ],
)
def test_unknown_option_shows_the_usage_of_its_command(
    arguments: str, usage: str, error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments.split())
    assert ended.value.code == 2
    err = capsys.readouterr().err
    assert err.startswith(usage)
    assert error in err


def test_command_below_quotas_is_optional(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["quotas", "--help"])
    usage = capsys.readouterr().out.partition("\n\n")[0]
    assert usage.endswith(" [COMMAND] ...")


def test_forgive_without_a_client_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["quotas", "forgive", "--kind", "produce"])
    assert ended.value.code == 2
    assert "give --user NAME, --client-id NAME, both, or --group NAME" in capsys.readouterr().err
