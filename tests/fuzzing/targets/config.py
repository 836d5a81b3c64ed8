"""`weir check` never ends with a traceback: it prints a valid file's summary, or problems with key, reason and remedy."""

import contextlib
import io
from pathlib import Path

from gateway.commands import main
from gateway.config.load import kept_config, load_config, parse_kept_config
from gateway.config.problems import ConfigError
from tests.fuzzing.scratch import scratch_file

ROOT = Path(__file__).parents[3]
_FILE = scratch_file("weir.yaml")
STEPS_PER_BYTE = 20_000
SHARE = 2.0
SMALLEST = "upstream: {bootstrap_servers: [a:9092]}\nlisteners: [{bootstrap_port: 29092}]\n"
WORDS = tuple(
    word.encode()
    for word in (
        "upstream", "bootstrap_servers", "listeners", "bootstrap_port", "broker_ports: 1-9", "quotas", "entities", "user",
        "client-id",
        "<default>", "producer_byte_rate", "consumer_byte_rate", "controller_mutation_rate", "request_percentage", "groups",
        "match",
        "parent", "guarantee", "weight", "shadow", "exempt", "schedule", "until", "topics", "volumes", "sharing", "ledger",
        "admin",
        "notify", "workers", "connections", "proxy_protocol", "request_rates", "claims", "catch_up", "&a ", "*a", "<<: *a",
        "!!int ",
        "!!float ", "!!bool ", "!!timestamp ", "!!binary ", "!!set ", "!!omap ", "2026-11-21", "12:30:45", ".inf", "0x1F",
        "1e400",
        "null", "- ", ": ", "{", "}", "[", "]", "\n  ", "? ", "| ", "%YAML 1.1", "---",
    )
)  # fmt: skip


def check(data: bytes) -> None:
    _FILE.write_bytes(data)
    out, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        status = main(["check", "--config", str(_FILE)])
    assert out.getvalue()
    out.getvalue().encode()
    if status == 1:
        _check_problems()
    else:
        assert status == 0
        config = load_config(_FILE)
        again = parse_kept_config(kept_config(config), source="kept", directory=_FILE.parent)
        assert again == config


def _check_problems() -> None:
    try:
        load_config(_FILE)
    except ConfigError as error:
        assert error.problems
        for problem in error.problems:
            assert problem.key
            assert problem.message
            assert problem.remedy
            assert problem.line is None or problem.line >= 1
            assert len(problem.value or "") <= 80
    else:
        raise AssertionError("weir check refuses a file that loads")


def seeds():
    yield SMALLEST.encode()
    yield (ROOT / "helm/systemd/weir.yaml").read_bytes()
    for path in sorted((ROOT / "loadtest/demo").glob("*.yaml")):
        yield path.read_bytes()
    row = "quotas: {entities: [{user: a, producer_byte_rate: 1, %s}]}"
    quotas = (
        row % "client-id: etl",
        row % "until: 2027-01-01T00:00:00Z",
        row % "request_rates: {Metadata: 5}, shadow: {producer_byte_rate: 1}",
        "quotas: {enforce: false, scope: broker, algorithm: window, entities: [{user: '<default>', request_rate: 5}]}",
        "quotas: {groups: [{name: a, producer_byte_rate: 10}, {name: b, parent: a, match: [{user: 'a*'}]}]}",
        "quotas: {topics: {total: 100, explicit: {t: 5}}, volumes: {source: topic, soft: {type: MinFreeBytes, level: 1}}}",
        "sharing: {}\nworkers: 2\nadmin: {port: 1}\nledger: {path: l}\nconnections: {max_per_ip: 1}",
        "x: &a [1]\nupstreem: *a\nquotas: {entities: [{usr: 1}]}",
    )
    for text in quotas:
        yield f"{SMALLEST}{text}\n".encode()
