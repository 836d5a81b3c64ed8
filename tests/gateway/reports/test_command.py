"""`weir report` before Spark starts: its help, what it asks for and what it says is missing."""

import subprocess
import sys
from pathlib import Path

import pytest

from gateway.__main__ import main
from gateway.reports.job import command

ARGUMENTS = ["report", "--events", "ledger", "--out", "report"]


def test_the_command_line_works_without_pyspark(tmp_path: Path) -> None:
    """Nothing of it is imported before a report runs: here an import would fail."""
    for name in ("pyspark", "plotly"):
        (tmp_path / f"{name}.py").write_text("raise ImportError('not installed')")
    code = "import sys; from gateway.__main__ import main; sys.exit(main(['report', '--help']))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env={"PYTHONPATH": f"{tmp_path}:{Path.cwd()}"}
    )
    assert done.returncode == 0, done.stderr
    assert "weir-gateway[reports]" in done.stdout
    assert "spark-submit" in done.stdout


def test_without_pyspark_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(command, "find_spec", lambda name: None if name == "pyspark" else object())
    assert main(ARGUMENTS) == 1
    assert capsys.readouterr().err == "weir report: pyspark not installed; pip install 'weir-gateway[reports]'\n"


def test_without_java_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(command, "find_spec", lambda name: object())
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    assert main(ARGUMENTS) == 1
    assert "install a JDK 17 or newer" in capsys.readouterr().err


@pytest.mark.parametrize("lacking", ["events", "out"])
def test_what_it_needs_to_know(lacking: str, capsys: pytest.CaptureFixture[str]) -> None:
    other = {"events": "--out", "out": "--events"}[lacking]
    assert main(["report", other, "somewhere"]) == 2
    assert f"--{lacking} is missing" in capsys.readouterr().err


def test_a_topic_is_fetched_into_a_folder_of_this_machine(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "--kafka", "h:1", "--events", "hdfs:///ledger", "--out", "report"]) == 2
    assert "--events hdfs:///ledger has to be a folder of this machine" in capsys.readouterr().err


@pytest.mark.parametrize("time", ["yesterday", "2026-13-01", "2026-11-21T24", "2026-11-21Tnoon"])
@pytest.mark.parametrize("option", ["--from", "--to"])
def test_a_time_that_is_none(option: str, time: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main([*ARGUMENTS, option, time])
    assert stopped.value.code == 2
    assert f"'{time}' is neither 2026-11-21 nor 2026-11-21T15" in capsys.readouterr().err


def test_the_script_for_spark_submit(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "--where"]) == 0
    script = Path(capsys.readouterr().out.strip())
    assert script.name == "__main__.py"
    done = subprocess.run([sys.executable, str(script), "--help"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("usage: weir report")
