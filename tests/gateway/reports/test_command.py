"""`weir report` before Spark starts: help, required options and messages about missing tools."""

import errno
import gzip
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.commands import main
from gateway.reports.job import command
from gateway.reports.job.java_process import JavaEndedError, JavaProcess
from gateway.reports.job.messages import Messages, only_run

ARGUMENTS = ["report", "--events", "ledger", "--out", "report"]


@pytest.mark.process
def test_command_line_works_without_pyspark(tmp_path: Path) -> None:
    """The command imports neither library before a report runs. In this test each import would fail."""
    for name in ("pyspark", "plotly"):
        (tmp_path / f"{name}.py").write_text("raise ImportError('not installed')")
    code = "import sys; from gateway.commands import main; sys.exit(main(['report', '--help']))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env={"PYTHONPATH": f"{tmp_path}:{Path.cwd()}"}
    )
    assert done.returncode == 0, done.stderr
    assert "path/to/weir[reports]" in done.stdout
    assert "spark-submit" in done.stdout


def test_missing_pyspark_is_explained(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(command, "find_spec", lambda name: None if name == "pyspark" else object())
    assert main(ARGUMENTS) == 1
    assert capsys.readouterr().err == (
        "weir report: pyspark not installed; pip install 'path/to/weir[reports]', with the path of Weir's wheel or checkout\n"
    )


def test_missing_java_is_explained(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(command, "find_spec", lambda name: object())
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    assert main(ARGUMENTS) == 1
    assert "install a JDK 17 or newer" in capsys.readouterr().err


def test_wrong_java_home_is_named_in_spite_of_the_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    java = tmp_path / "java"
    java.touch(0o755)
    monkeypatch.setattr(command, "find_spec", lambda name: object())
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("JAVA_HOME", "/gone")
    assert "no Java found at JAVA_HOME=/gone" in (command.missing_requirement() or "")
    monkeypatch.delenv("JAVA_HOME")
    assert command.java_file() == java


def test_java_below_a_closed_folder_is_none(monkeypatch: pytest.MonkeyPatch, closed_folder: Path) -> None:
    monkeypatch.setattr(command, "find_spec", lambda name: object())
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("JAVA_HOME", str(closed_folder))
    assert "no Java found" in (command.missing_requirement() or "")


def test_unreadable_ledger_is_named_before_java_starts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(*_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", "ledger/date=2026-11-21/hour=15/a.jsonl")

    monkeypatch.setattr("gateway.reports.job.session.ledger_bytes", refused)
    monkeypatch.setattr("gateway.reports.job.session.spark_session", lambda *_, **__: pytest.fail("Spark starts"))
    monkeypatch.setattr(command, "missing_requirement", lambda: None)
    assert main(["report", "--events", str(tmp_path), "--out", str(tmp_path)]) == 1
    assert "weir report: ledger/date=2026-11-21/hour=15/a.jsonl: can't be read (Permission denied)" in capsys.readouterr().err


def test_ledger_below_a_closed_folder_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, closed_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "missing_requirement", lambda: None)
    assert main(["report", "--events", f"{closed_folder}/ledger", "--out", str(tmp_path)]) == 1
    assert f"weir report: {closed_folder}/ledger: can't be read (Permission denied)" in capsys.readouterr().err


def test_missing_ledger_is_named_before_java_starts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "_run", lambda *_: pytest.fail("the report began"))
    monkeypatch.setattr(command, "missing_requirement", lambda: None)
    assert main(["report", "--events", f"{tmp_path}/nowhere", "--out", str(tmp_path)]) == 1
    assert f"weir report: --events {tmp_path}/nowhere: no such path; give it the folder" in capsys.readouterr().err
    (tmp_path / "weir-0.jsonl.gz").touch()
    assert main(["report", "--events", f"{tmp_path}/weir-0.jsonl.gz", "--out", str(tmp_path)]) == 1
    assert "weir-0.jsonl.gz: no folder; give it the folder" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("out", "fault"),
    [("file", "that is a file"), ("file/report", "it can't be made (Not a directory)"), ("/proc/report", "it can't")],
)
def test_impossible_folder_is_named_before_java_starts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str], out: str, fault: str
) -> None:
    monkeypatch.setattr(command, "_run", lambda *_: pytest.fail("the report began"))
    monkeypatch.setattr(command, "missing_requirement", lambda: None)
    (tmp_path / "file").touch()
    assert main(["report", "--events", str(tmp_path), "--out", f"{tmp_path / out}"]) == 1
    assert f"weir report: --out {tmp_path / out}: {fault}" in capsys.readouterr().err


def test_folder_in_use_is_named_before_java_starts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "_run", lambda *_: pytest.fail("the report began"))
    monkeypatch.setattr(command, "missing_requirement", lambda: None)
    with only_run("--out", tmp_path):
        assert main(["report", "--events", str(tmp_path), "--out", str(tmp_path)]) == 1
    assert f"weir report: --out {tmp_path}: another weir report is writing here" in capsys.readouterr().err


@pytest.mark.parametrize("path", ["hdfs:///ledger", "/of/the/cluster"])
def test_ledger_elsewhere_is_not_looked_for(monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    monkeypatch.setattr(command, "_run", lambda *_: 7)
    monkeypatch.setattr(command, "missing_requirement", lambda: None)
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    assert main(["report", "--events", path, "--out", "report"]) == 7


@pytest.mark.parametrize("lacking", ["events", "out"])
def test_missing_option_is_named(lacking: str, capsys: pytest.CaptureFixture[str]) -> None:
    other = {"events": "--out", "out": "--events"}[lacking]
    assert main(["report", other, "somewhere"]) == 2
    assert f"--{lacking} is missing or empty" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--events", "--out"])
def test_empty_path_is_refused(option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The path of an unset variable: its tables would go into the folders below /."""
    paths = {"--events": str(tmp_path), "--out": str(tmp_path / "out")} | {option: ""}
    assert main(["report", *(each for pair in paths.items() for each in pair)]) == 2
    assert f"{option} is missing or empty" in capsys.readouterr().err


def test_kafka_needs_a_local_events_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "--kafka", "h:1", "--events", "hdfs:///ledger", "--out", str(tmp_path)]) == 2
    assert "--events hdfs:///ledger must be a folder of this machine" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--topic", "--kafka-properties"])
def test_option_of_the_topic_needs_kafka(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*ARGUMENTS, option, "name"]) == 2
    assert f"weir report: {option} name needs --kafka: without it, only the files" in capsys.readouterr().err


@pytest.mark.parametrize("time", ["yesterday", "2026-13-01", "2026-11-21T24", "2026-11-21Tnoon"])
@pytest.mark.parametrize("option", ["--from", "--to"])
def test_invalid_time_is_refused(option: str, time: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main([*ARGUMENTS, option, time])
    assert stopped.value.code == 2
    assert f"'{time}' is not a day or an hour of the calendar: write it as 2026-11-21 or" in capsys.readouterr().err


@pytest.mark.parametrize("servers", ["broker1", "broker1:", ":9092", "a:1,b", "a:x", "a:70000", "a:" + "1" * 5_000])
def test_kafka_address_without_host_or_port_is_refused(servers: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main([*ARGUMENTS, "--kafka", servers])
    assert stopped.value.code == 2
    assert "is not a broker's address: write HOST:PORT" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("--memory", "lots", "'lots' is not a size such as 3g"),
        ("--memory", "3", "'3' is not a size"),
        ("--memory", "0g", "'0g' is not a size"),
        ("--memory", "1k", "1k is too little for Spark: write 512m or more"),
        ("--memory", "511M", "511M is too little"),
        ("--batch-hours", "all", "'all' is not a whole number"),
        ("--batch-hours", "0", "0 is less than 1: write 1 or more"),
        ("--every", "0m", "'0m' is not a time such as 90s, 15m, 1h or 1d"),
        ("--every", "1.5h", "'1.5h' is not a time"),
        ("--every", "60", "'60' is not a time"),
        ("--every", "100000d", "'100000d' is not a time"),
    ],
)
def test_invalid_option_is_refused(option: str, value: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main([*ARGUMENTS, option, value])
    assert stopped.value.code == 2
    assert f"argument {option}: {words}" in capsys.readouterr().err


def test_from_after_to_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*ARGUMENTS, "--from", "2026-11-21T15", "--to", "2026-11-21T14"]) == 2
    assert "--from is after --to" in capsys.readouterr().err


@pytest.mark.process
def test_java_start_failure_is_one_line(tmp_path: Path) -> None:
    """The command runs in a process of its own, because PySpark keeps the session of another test."""
    command = [
        sys.executable,
        "-m",
        "gateway",
        "report",
        "--events",
        str(tmp_path),
        "--out",
        str(tmp_path / "out"),
        "--memory",
        "900000g",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert "weir report: Spark does not start with --master local[*] and --memory 900000g: " in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.process
def test_failure_under_spark_submit_names_its_options(tmp_path: Path) -> None:
    """The master and the memory are not those of `weir report` then. Nothing listens on the port of Java here."""
    submitted = {"PYSPARK_GATEWAY_PORT": "1", "PYSPARK_GATEWAY_SECRET": "none"}
    command = [sys.executable, "-m", "gateway", "report", "--events", str(tmp_path), "--out", str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=os.environ | submitted)
    assert done.returncode == 1
    assert "weir report: Spark does not start with the options of spark-submit: " in done.stderr
    assert "Traceback" not in done.stderr


def report_of_one_line(folder: Path) -> list[str]:
    """The command for the reports of a ledger that has one hour with one bad line."""
    hour = folder / "ledger/date=2026-11-21/hour=15"
    hour.mkdir(parents=True)
    (hour / "weir-0.jsonl.gz").write_bytes(gzip.compress(b"no event\n"))
    paths = ["--events", str(hour.parents[1]), "--out", str(folder / "out")]
    return [sys.executable, "-m", "gateway", "report", *paths]


@pytest.mark.process
def test_end_of_java_during_a_run_is_explained(tmp_path: Path) -> None:
    command = [*report_of_one_line(tmp_path), "--every", "1h"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "hours are new" in line:
                break
        (java,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        os.kill(int(java), signal.SIGKILL)
        rest = process.stderr.read()
    assert process.returncode == 1, rest
    assert rest.startswith("weir report: Java was ended by signal 9, so weir report ends too. ")
    assert len(rest.splitlines()) == 1


@pytest.mark.process
def test_failed_run_shows_no_log_and_no_stack_trace(tmp_path: Path) -> None:
    command = report_of_one_line(tmp_path)
    (file,) = (tmp_path / "ledger").glob("*/*/*.gz")
    whole = gzip.compress(os.urandom(10_000))
    file.write_bytes(whole[: len(whole) // 2])
    done = subprocess.run(command, capture_output=True, text=True, timeout=400)
    assert done.returncode == 1, done.stderr
    assert f"{file} can't be read. Move it away" in done.stderr.splitlines()[-1]
    unwanted = ("ERROR", "\tat ", "log level")
    assert [line for line in done.stderr.splitlines() if any(word in line for word in unwanted)] == []
    assert "starting Spark" in done.stderr


@pytest.mark.process
def test_end_of_java_ends_the_wait_at_once() -> None:
    with subprocess.Popen(["sleep", "600"]) as java:
        process = JavaProcess(java)
        process.wait(0.0)
        java.kill()
        with pytest.raises(JavaEndedError, match="signal 9"):
            process.wait(500.0)


@pytest.mark.process
@pytest.mark.parametrize(("ending", "every", "code"), [(signal.SIGINT, [], 130), (signal.SIGTERM, ["--every", "1h"], 0)])
def test_end_by_a_signal_is_one_line(ending: signal.Signals, every: list[str], code: int, tmp_path: Path) -> None:
    command = [*report_of_one_line(tmp_path), *every]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "hours are new" in line:
                break
        process.send_signal(ending)
        rest = process.stderr.read()
    assert process.returncode == code, rest
    said = rest.splitlines()
    assert [line for line in said if "weir report: interrupted" in line] == said[-1:]
    assert [line for line in said if line.startswith(("Traceback", "\tat ")) or "ERROR" in line] == []


def test_unreadable_properties_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    missing = tmp_path / "missing.properties"
    kafka = ["--kafka", "127.0.0.1:1", "--kafka-properties", str(missing)]
    assert main(["report", "--events", str(tmp_path), "--out", str(tmp_path / "out"), *kafka]) == 1
    assert f"weir report: --kafka-properties {missing}: can't be read: No such file" in capsys.readouterr().err


def test_path_with_an_emoji_code_is_printed_unchanged(capsys: pytest.CaptureFixture[str]) -> None:
    messages = Messages(quiet=True)
    messages.result("/data/:key:/report.html")
    messages.error("/data/:key: is missing")
    assert capsys.readouterr() == ("/data/:key:/report.html\n", "weir report: /data/:key: is missing\n")


def test_text_of_a_broker_can_not_act_on_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    Messages(quiet=True).error("refused: \x1b]0;title\x07\nreport made\x9b")
    assert capsys.readouterr().err == "weir report: refused: \\x1b]0;title\\x07\\nreport made\\x9b\n"


@pytest.mark.process
def test_script_for_spark_submit_runs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "--where"]) == 0
    script = Path(capsys.readouterr().out.strip())
    assert script.name == "__main__.py"
    done = subprocess.run([sys.executable, str(script), "--help"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("usage: weir report")


def test_unreachable_brokers_are_one_message(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    assert main(["report", "--events", str(tmp_path), "--out", str(tmp_path / "out"), "--kafka", "127.0.0.1:1"]) == 1
    assert "can't be fetched: no broker answers; check --kafka" in capsys.readouterr().err
    assert caplog.records == []
