"""Each target's promise holds for its committed inputs, and for some changes of them. No guided run takes part."""

import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzzing import __main__ as command
from tests.fuzzing import corpus, registry
from tests.fuzzing.bounds import OutOfBoundsError, check_bounded
from tests.fuzzing.engine import Findings

CHANGED = 60
"""The number of changed inputs of each target."""

BOUNDED = 3
"""The number of inputs whose time and memory are measured, the longest ones."""

NUMBERS = (b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\x80\0\0\0", b"\0\0\0\0", b"\xff\xff", b"\x80\x80\x80\x80\x10")


def changed(data: bytes, other: bytes, rng: random.Random) -> bytes:
    at, size = rng.randrange(len(data) + 1), rng.choice((1, 2, 4, 20))
    replacement = rng.choice((b"", rng.randbytes(size), rng.choice(NUMBERS), data[at : at + size] * 2, other[at : at + size]))
    return data[:at] + replacement + data[at + size :]


@pytest.mark.parametrize("name", registry.NAMES)
def test_promise_holds_for_known_and_changed_inputs(name):
    target, known = registry.load(name), corpus.read(name)
    assert known, f"no committed inputs: python -m tests.fuzzing --minimise --target {name}"
    for data in known:
        target.check(data)
    rng = random.Random(name)
    for _ in range(CHANGED):
        target.check(changed(rng.choice(known), rng.choice(known), rng))
    for data in sorted(known, key=len)[-BOUNDED:]:
        check_bounded(target.check, data, target.steps_per_byte)


def test_committed_inputs_stay_small():
    sizes = {path.name: path.stat().st_size for path in corpus.FOLDER.iterdir()}
    assert sizes.keys() == {f"{name}.txt" for name in registry.NAMES}
    assert sum(sizes.values()) < 300_000


def quadratic(data):
    for _ in data:
        for _ in data:
            pass


@pytest.mark.parametrize("greedy", [quadratic, lambda data: bytearray(len(data) ** 2)], ids=["time", "memory"])
def test_quadratic_costs_are_out_of_bounds(greedy):
    check_bounded(greedy, bytes(10), steps_per_byte=10)
    with pytest.raises(OutOfBoundsError):
        check_bounded(greedy, bytes(5_000), steps_per_byte=10)


def test_first_input_of_each_place_is_saved(tmp_path, capsys):
    findings = Findings("config", tmp_path / "findings")
    for data in (b"one", b"two"):
        try:
            command._minutes("x")
        except Exception as error:
            findings.add(error, data)
    (saved,) = (tmp_path / "findings").iterdir()
    assert saved.read_bytes() == b"one"
    assert list(findings.counts.values()) == [2]
    assert f"python -m tests.fuzzing --reproduce config {saved}" in capsys.readouterr().err


def test_minimised_corpus_keeps_all_steps():
    target = registry.load("proxy_header")
    inputs = [*target.seeds(), b"PROXY TCP4 1", b"PROXY TCP4 2"]
    kept, steps = corpus.minimised(target.check, inputs)
    assert len(kept) < len(inputs)
    assert corpus.minimised(target.check, kept) == (kept, steps)


def run(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["fuzzing", *arguments])
    return command.main()


def test_reproduce_tells_if_promise_holds(monkeypatch, tmp_path, capsys):
    (tmp_path / "input").write_bytes(b"PROXY TCP4 ")
    assert run(monkeypatch, "--reproduce", "proxy_header", str(tmp_path / "input")) == 0
    assert "no finding" in capsys.readouterr().out


WRONG = {
    "no action": ([], "give one of --minutes N, --list"),
    "an unknown target": (["--minutes", "1", "--target", "tls"], "invalid choice: 'tls'"),
    "no time": (["--minutes", "0"], "'0' is not a number of minutes: write one above 0, such as 5"),
    "an unknown target's input": (["--reproduce", "tls", "x"], "there is no target 'tls': use one of admin_query"),
    "a missing input": (
        ["--reproduce", "sasl", "/nowhere"],
        "/nowhere can't be read: No such file or directory: name a file below",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_usage_is_explained(monkeypatch, capsys, case):
    arguments, message = WRONG[case]
    with pytest.raises(SystemExit) as ended:
        run(monkeypatch, *arguments)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.process
def test_guided_run_adds_inputs_and_figures(tmp_path):
    pytest.importorskip("atheris", reason="atheris is optional: pip install '.[fuzz]'")
    arguments = ["--target", "proxy_header", "--minutes", "0.02", "--work", str(tmp_path)]
    subprocess.run([sys.executable, "-m", "tests.fuzzing", *arguments], check=True, cwd=Path(__file__).parents[2], timeout=200)
    figures = (tmp_path / "runs.jsonl").read_text()
    assert '"target": "proxy_header"' in figures
    assert '"findings": {}' in figures
    assert len(list((tmp_path / "corpus" / "proxy_header").iterdir())) > 20
