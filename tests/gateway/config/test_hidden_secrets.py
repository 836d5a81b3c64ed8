"""Secrets in a mistyped config: no problem shows them, so neither the log nor `/api/config` of a refused reload does."""

from pathlib import Path

import pytest

from gateway.config.load import parse_config
from gateway.config.problems import ConfigError
from gateway.config.reload import plan
from tests.gateway.config.texts import LISTENERS, MINIMAL, parsed, problems_of

HOOK = "https://hooks.example.com/T0/hunter2"
SASL = LISTENERS + 'upstream: {bootstrap_servers: ["127.0.0.1:9092"], sasl: {mechanism: PLAIN, username: w, %s}}\n'
NOTIFY = MINIMAL + "notify: {targets: [{name: a, %s}]}\n"
SPACE = "write a space behind the colon"
FILE = "upstream.sasl.password_file"


@pytest.mark.parametrize(
    ("text", "key", "remedy"),
    [
        (NOTIFY % f"url:{HOOK}", "notify.targets[0].url...", SPACE),
        (NOTIFY % f"url={HOOK}", "notify.targets[0].url...", SPACE),
        (NOTIFY % f"url_file:{HOOK}", "notify.targets[0].url_file...", SPACE),
        (NOTIFY % f"'{HOOK}': ", "notify.targets[0].https...", "the keys there are name, url"),
        (MINIMAL + f"notify: {{url:{HOOK}}}\n", "notify.url...", "notify.targets"),
        (MINIMAL + f"notify:\ntargets: [{{name: a, url: '{HOOK}'}}]\n", "targets", "belongs under notify"),
        (MINIMAL + f"url: '{HOOK}'\n", "url", "belongs under notify.targets"),
        (SASL % "password:hunter2", "upstream.sasl.password...", FILE),
        (SASL % "password=hunter2", "upstream.sasl.password...", FILE),
        (SASL % "password hunter2", "upstream.sasl.password...", FILE),
        (SASL % "password_file:hunter2", "upstream.sasl.password_file...", SPACE),
        (SASL.replace("sasl:", "saslx:") % "password: hunter2", "upstream.saslx", "did you mean sasl"),
        (MINIMAL + "sasl.jaas.config:hunter2:\n", "sasl.jaas.config...", FILE),
    ],
)
def test_key_that_holds_a_secret_is_cut(text: str, key: str, remedy: str) -> None:
    problems = problems_of(text)
    assert [problem for problem in problems if problem.key == key and remedy in problem.remedy] != []
    assert "hunter2" not in " ".join(map(repr, problems))


def test_key_that_is_given_twice_is_cut() -> None:
    problems = problems_of(NOTIFY % f"url:{HOOK}, url:{HOOK}")
    assert [problem.key for problem in problems] == ["notify.targets[0].url..."] * 2


@pytest.mark.parametrize(
    "text",
    [
        NOTIFY % f"url_file: '{HOOK}'",
        NOTIFY % "url_file: hunter2",
        NOTIFY % r'url_file: "hunter2\0"',
        SASL % "password_file: hunter2",
        SASL % "password_file: a/hunter2",
        SASL % f"password_file: {'hunter2' * 50}",
        (SASL % "token_file: ey.hunter2.x").replace("PLAIN, username: w", "OAUTHBEARER"),
    ],
)
def test_secret_in_place_of_its_file_is_hidden(text: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config(text, source="weir.yaml", directory=tmp_path)
    assert "hunter2" not in repr(caught.value.problems)


@pytest.mark.parametrize(
    "text",
    [
        SASL % "password_file: 4711",
        SASL % "password_file: [4711]",
        SASL % "password: 4711-13-45",
        SASL % "password: 04711",
        LISTENERS + 'upstream: {bootstrap_servers: ["127.0.0.1:9092"], sasl: "PLAIN w 4711"}\n',
        NOTIFY % "url: 4711",
        NOTIFY % "url: !!int 'https://4711'",
    ],
)
def test_secret_of_a_wrong_type_is_hidden(text: str) -> None:
    assert "4711" not in repr(problems_of(text))


@pytest.mark.parametrize("url", ["http://ops:hunter2@weir:9644/", "https://hunter2@weir/", "ops:hunter2@weir:9644"])
def test_page_url_with_credentials_is_refused(url: str) -> None:
    """Each notification would show them."""
    (problem,) = problems_of(MINIMAL + f"notify: {{page_url: '{url}', targets: [{{name: a, url: '{HOOK}'}}]}}\n")
    assert problem.key == "notify.page_url"
    assert "hunter2" not in repr(problem)


def test_refused_change_of_a_secret_hides_it() -> None:
    """The files of keys that need a restart are not read at a reload."""
    planned = plan(parsed(SASL % "password_file: weir.password"), parsed(SASL % "password_file: hunter2"))
    (problem,) = planned.problems
    assert str(problem).startswith("upstream.sasl.password_file: changes, which needs a restart — restart Weir")
    assert "hunter2" not in repr(planned)


def test_names_of_other_keys_are_shown_whole() -> None:
    (problem,) = problems_of(MINIMAL + "connections: {max_per_ip_overrides: {'2001:db8::1': x}}\n")
    assert problem.key == "connections.max_per_ip_overrides.2001:db8::1"
