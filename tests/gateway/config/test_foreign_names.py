"""Names of Kafka's settings in a config: each gets the key of Weir that has its place, and no secret is shown."""

import pytest

from gateway.config.foreign_names import _REMEDIES, folded
from gateway.config.keys import SECTIONS
from tests.gateway.config.texts import LISTENERS, MINIMAL, UPSTREAM, check_problem, entities, parsed, problems_of

IN_UPSTREAM = LISTENERS + 'upstream: {bootstrap_servers: ["b:1"], %s}\n'
IN_LISTENER = UPSTREAM + "listeners: [{bootstrap_port: 1, %s}]\n"
IN_QUOTAS = MINIMAL + "quotas: {%s}\n"


@pytest.mark.parametrize(
    ("text", "key", "words"),
    [
        (MINIMAL + "security_protocol: SASL_SSL\n", "security_protocol", "for SASL_SSL, both"),
        (MINIMAL + "security.protocol: SASL_SSL\n", "security.protocol", "upstream.tls: {}"),
        (IN_UPSTREAM % "security.protocol: SSL", "upstream.security.protocol", "upstream.tls: {}"),
        (IN_LISTENER % "security_protocol: SSL", "listeners[0].security_protocol", "add tls: {cert: FILE, key: FILE}"),
        (MINIMAL + "bootstrap.servers: b:1\n", "bootstrap.servers", "write upstream.bootstrap_servers, a list"),
        (IN_UPSTREAM % "bootstrap-servers: b", "upstream.bootstrap-servers", "did you mean bootstrap_servers?"),
        (IN_UPSTREAM % "sasl.mechanism: PLAIN", "upstream.sasl.mechanism", 'write "sasl: {mechanism: NAME}" below upstream'),
        (IN_UPSTREAM % "ssl.truststore.location: a.jks", "upstream.ssl.truststore.location", "upstream.tls.ca as a PEM file"),
        (IN_UPSTREAM % "tls: {ssl.ca.location: a}", "upstream.tls.ssl.ca.location", "upstream.tls.ca"),
        (IN_LISTENER % "ssl.keystore.location: a", "listeners[0].ssl.keystore.location", "listeners[].tls.cert"),
        (IN_LISTENER % "ssl.truststore.location: a", "listeners[0].ssl.truststore.location", "listeners[].tls.client_ca"),
        (IN_QUOTAS % "client_id: a", "quotas.client_id", "client-id in a row of quotas.entities"),
        (IN_QUOTAS % "quota.window.num: 3", "quotas.quota.window.num", "quotas.window.samples"),
        (MINIMAL + "max.connections.per.ip: 3\n", "max.connections.per.ip", "connections.max_per_ip"),
        (MINIMAL + "group.id: a\n", "group.id", "clients keep their own settings"),
        (MINIMAL + "max-entities: 3\n", "max-entities", "it belongs under quotas"),
    ],
)
def test_foreign_name_gets_weirs_key(text: str, key: str, words: str) -> None:
    check_problem(text, key, words)


@pytest.mark.parametrize(
    "line",
    [
        "sasl.jaas.config: 'required password=\"hidden\";'",
        "ssl.keystore.password: hidden",
        "sasl_plain_password: hidden",
        "ssl.keystore.key: hidden",
    ],
)
def test_value_of_a_secret_name_is_not_shown(line: str) -> None:
    (problem,) = problems_of(MINIMAL + line + "\n")
    assert problem.value is None
    assert "hidden" not in str(problem)


def test_each_remedy_names_existing_keys() -> None:
    known = {
        ".".join((*path, field.alias or name)) for path, model in SECTIONS.items() for name, field in model.model_fields.items()
    }
    for remedy in _REMEDIES.values():
        named = remedy.replace("{tls}.{ca}", "upstream.tls.ca").replace("{tls}", "upstream.tls").replace("[]", "")
        paths = [
            word.strip(",;.")
            for word in named.split()
            if word.startswith(("upstream.", "listeners.", "connections.", "quotas."))
        ]
        assert [path for path in paths if path not in known] == []


def test_kafkas_own_keys_may_be_in_snake_case() -> None:
    rows = entities("{client_id: etl, producer_byte_rate: 100000}")
    assert parsed(rows) == parsed(rows.replace("client_id", "client-id"))
    topics = MINIMAL + "quotas: {topics: {total.bytes.in.per.sec.threshold: 7, bytes.in.per.sec.threshold: {a: 3}}}\n"
    snake_case = topics.replace("bytes.in.per.sec.threshold", "bytes_in_per_sec_threshold").replace("total.", "total_")
    assert "_" in folded("a.b")
    assert parsed(topics) == parsed(snake_case)


def test_alias_beside_its_key_is_refused() -> None:
    check_problem(entities("{client_id: a, client-id: b, exempt: true}"), "quotas.entities[0].client_id", "means the same as")


def test_problem_of_an_alias_has_its_line() -> None:
    (problem,) = problems_of(MINIMAL + "quotas:\n  entities:\n    - exempt: true\n      client_id: 7\n")
    assert (problem.key, problem.line) == ("quotas.entities[0].client-id", 6)
