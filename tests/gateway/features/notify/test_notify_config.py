"""`notify` in the config file: its mistakes, and its secrets."""

import json
from pathlib import Path

import pytest

from gateway.config.load import kept_config, parse_config, parse_kept_config
from gateway.config.problems import ConfigError
from gateway.config.reload import plan
from gateway.files.secret_file import UnusableSecretError

BASE = """\
upstream: {bootstrap_servers: ["127.0.0.1:9092"]}
listeners: [{name: clients, bootstrap_port: 29092}]
"""
SECRET = "https://hooks.example.com/T0/B0/s3cret"


def problems(text: str, directory: Path | None = None) -> list[str]:
    with pytest.raises(ConfigError) as error:
        parse_config(BASE + text, source="weir.yaml", directory=directory)
    return [str(problem) for problem in error.value.problems]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("notify: {targets: []}", "notify.targets: is empty (line 3) — fill it in"),
        ("notify: {targets: [{name: a}]}", "notify.targets[0]: has no url (line 3) — give it url, or url_file"),
        (
            f"notify: {{targets: [{{name: a, url: '{SECRET}', url_file: b}}]}}",
            "notify.targets[0]: has both url and url_file (line 3) — give it url, or url_file",
        ),
        (
            "notify: {targets: [{name: a, url: 'ftp://s3cret'}]}",
            "notify.targets[0].url: is not an HTTP address: it does not begin with http:// or https:// (value hidden, line 3)",
        ),
        (
            "notify: {targets: [{name: a, url: 'https://hooks.example.com/s3cret token'}]}",
            "notify.targets[0].url: is not an HTTP address: it holds a space, a line break or a control character (value",
        ),
        (
            "notify: {targets: [{name: a, url: 'http://hooks:99999/s3cret'}]}",
            "notify.targets[0].url: is not an HTTP address: its host or its port is not valid (value hidden",
        ),
        (
            "notify: {targets: [{name: a, url: 'http:///s3cret'}]}",
            "notify.targets[0].url: is not an HTTP address: it names no host",
        ),
        ("notify: {targets: [{name: a, url: 7}]}", "notify.targets[0].url: must be text, not a number (value hidden, line 3)"),
        ("notify: s3cret", "notify: must be a section with keys of its own, not text (value hidden, line 3)"),
        ("notify: {targets: 's3cret'}", "notify.targets: must be a list, not text (value hidden, line 3)"),
        (
            f"notify: {{targets: [{{name: a, url: '{SECRET}'}}, {{name: a, url: '{SECRET}'}}]}}",
            'notify.targets[1].name: is the name of notify.targets[0] too (value "a", line 3) — give each a name of its own',
        ),
        (f"notify: {{targets: [{{name: a, urls: '{SECRET}'}}]}}", "notify.targets[0].urls: is not a key of notify.targets"),
        (
            f"notify: {{targets: [{{name: a, url: '{SECRET}', events: [throttle]}}]}}",
            'notify.targets[0].events[0]: is not a choice (value "throttle", line 3) — write',
        ),
        (
            f"notify: {{targets: [{{name: a, url: '{SECRET}', entities: [{{}}]}}]}}",
            "notify.targets[0].entities[0]: names no entity",
        ),
        (
            f"notify: {{targets: [{{name: a, url: '{SECRET}', entities: [{{ip: 10.0.0.1, user: b}}]}}]}}",
            "notify.targets[0].entities[0]: has ip and other parts, and no quota belongs to such an entity (value",
        ),
        (
            f"notify: {{targets: [{{name: a, url: '{SECRET}', entities: [{{ip: 10.0.0.1, group: b}}]}}]}}",
            "notify.targets[0].entities[0]: has ip and other parts",
        ),
        (
            f"notify: {{near_ratio: 1, targets: [{{name: a, url: '{SECRET}'}}]}}",
            "notify.near_ratio: must be below 1 (value 1, line 3) — write a number below 1",
        ),
    ],
)
def test_mistake_has_key_line_and_remedy(text: str, problem: str) -> None:
    found = problems(text)
    assert any(line.startswith(problem) for line in found), found
    assert "s3cret" not in "\n".join(found)


def test_two_targets_of_one_name_hide_no_other_problem() -> None:
    text = f"notify: {{near_ratio: 5, targets: [{{name: a, url: '{SECRET}'}}, {{name: a, url: '{SECRET}', events: [none]}}]}}"
    keys = {line.partition(": ")[0] for line in problems(text)}
    assert keys == {"notify.near_ratio", "notify.targets[1].name", "notify.targets[1].events[0]"}


def test_file_without_an_address_is_a_problem(tmp_path: Path) -> None:
    text = "notify:\n  targets:\n    - name: a\n      url_file: webhook.url\n"
    (found,) = problems(text, tmp_path)
    assert found == (
        "notify.targets[0].url_file: names a file that can't be read: No such file or directory (line 6)"
        " — write the address to a file, and its name here. It is not shown, as it may be the address itself"
    )
    (tmp_path / "webhook.url").write_text("s3cret\n")
    (found,) = problems(text, tmp_path)
    assert found == (
        f"notify.targets[0].url_file: names {tmp_path}/webhook.url, and this file has no HTTP address:"
        " it does not begin with http:// or https:// (line 6)"
        " — write the address to it as one line"
    )
    (tmp_path / "webhook.url").write_text(f"{SECRET}\n")
    config = parse_config(BASE + text, source="weir.yaml", directory=tmp_path)
    assert config.notify is not None
    assert config.notify.targets[0].address(tmp_path) == SECRET
    (tmp_path / "webhook.url").unlink()
    with pytest.raises(UnusableSecretError, match="can't be read"):
        config.notify.targets[0].address(tmp_path)


def test_url_is_hidden_wherever_the_config_is_shown() -> None:
    text = f"notify: {{targets: [{{name: a, url: '{SECRET}'}}]}}\n"
    one = parse_config(BASE + text, source="weir.yaml")
    two = parse_config(BASE + text.replace("s3cret", "n3w"), source="weir.yaml")
    shown = json.dumps(one.model_dump(mode="json", by_alias=True)) + repr(one) + "".join(plan(one, two).changes)
    assert "hooks.example.com" in shown
    assert "s3cret" not in shown
    assert "T0" not in shown
    (change,) = plan(one, two).changes
    assert change.startswith("notify.targets[0].url: https://hooks.example.com/... (")


def test_workers_get_the_same_config(tmp_path: Path) -> None:
    config = parse_config(BASE + f"notify: {{targets: [{{name: a, url: '{SECRET}'}}]}}\n", source="weir.yaml")
    assert parse_kept_config(kept_config(config), source="weir.yaml", directory=tmp_path) == config


def test_unknown_group_is_a_warning() -> None:
    text = f"notify: {{targets: [{{name: a, url: '{SECRET}', entities: [{{group: jobs}}, {{group: job}}]}}]}}\n"
    groups = "quotas: {groups: [{name: jobs, match: [{user: job}], producer_byte_rate: 10000000}]}\n"
    (found,) = parse_config(BASE + groups + text, source="weir.yaml").warnings()
    assert found.startswith("notify.targets[0].entities[1].group: job is not in quotas.groups, so nobody is notified of it")


def test_empty_section_is_a_warning() -> None:
    (warning,) = [line for line in parse_config(BASE + "notify:\n", source="weir.yaml").warnings() if "notify" in line]
    assert warning == "notify: is empty, Weir sends no notifications — give it targets, or remove it"
