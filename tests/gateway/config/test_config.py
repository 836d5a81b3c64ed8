"""Config files, good and bad: the parsed config, and the messages about mistakes."""

import json
import re
from ipaddress import ip_network
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.config.checks import UNSUPPORTED
from gateway.config.endpoints import PortRange, ServerAddress
from gateway.config.model import QuotasConfig
from gateway.config.problems import ConfigError
from gateway.config.section import WindowConfig
from gateway.config.topic_keys import own_topics
from gateway.features.connection_quotas.config import connection_limits
from gateway.features.connection_quotas.rules import AcceptLimits, ConnectionLimits
from gateway.features.controller_mutations.config import MutationsConfig
from gateway.quotas.entity import DEFAULT, ClientQuotaEntity, EntityQuota
from gateway.quotas.kinds import KINDS, ROW_KINDS
from tests.gateway.config.texts import LISTENERS, MINIMAL, UPSTREAM, entities, listeners, parsed, problems_of, servers

SNI = (
    "listeners: [{{name: a, host: 0.0.0.0, advertised_host: kafka.example.com, bootstrap_port: 9092, tls: {{cert: c, key: k}},"
    " sni: 'broker-{{id}}.kafka.example.com'}}]\n"
    "upstream: {{bootstrap_servers: ['{}']}}\n"
)
RANGE = (
    "listeners: [{{name: a, host: {}, advertised_host: weir.example.com, bootstrap_port: 9092, broker_ports: 9100-9149}}]\n"
    "upstream: {{bootstrap_servers: ['{}']}}\n"
)


@pytest.mark.parametrize(
    ("own", "broker"), [("0.0.0.0", ServerAddress("::1", 9092)), ("'::'", ServerAddress("127.0.0.1", 9092))]
)
def test_broker_of_the_other_address_family_is_no_loop(own: str, broker: ServerAddress) -> None:
    assert parsed(RANGE.format(own, broker)).upstream.bootstrap_servers == (broker,)


def test_name_that_is_no_brokers_at_the_gateway_is_no_loop() -> None:
    broker = ServerAddress("broker-a.kafka.example.com", 9092)
    assert parsed(SNI.format("broker-a.kafka.example.com:9092")).upstream.bootstrap_servers == (broker,)


def test_only_upstream_and_listeners_have_no_default() -> None:
    config = parsed(MINIMAL)
    assert config.upstream.bootstrap_servers == (ServerAddress("127.0.0.1", 9092),)
    (listener,) = config.listeners
    assert parsed(UPSTREAM + "listeners: [{bootstrap_port: 29092}]\n").listeners == (listener,)
    assert (listener.host, listener.advertised_host) == ("127.0.0.1", "127.0.0.1")
    assert listener.broker_ports == PortRange(29093, 29192)
    assert len(listener.broker_ports.ports) == 100
    assert (config.quotas.enforce, config.quotas.algorithm, config.quotas.entities) == (True, "token_bucket", ())
    assert (config.quotas.window.samples, config.quotas.window.seconds) == (11, 1)
    connections = config.connections
    assert (connections.max_idle_ms, connections.max_per_ip) == (600_000, 1_000)
    assert (connections.max_frame_bytes, connections.drain_seconds) == (104_857_600, 10.0)
    assert (config.admin.host, config.admin.port) == ("127.0.0.1", 9644)


def test_every_key_is_read() -> None:
    config = parsed(
        """
        upstream:
          bootstrap_servers: ["kafka-1.example.com:9092", "[::1]:9093", 'kafka_2:9094']
        listeners:
          - {name: in, host: 0.0.0.0, advertised_host: weir.example.com, bootstrap_port: 1000, broker_ports: 2000-2009,
             max_connections: 8, connection_creation_rate: 9}
          - {name: v6, host: "::1", bootstrap_port: 3000}
        quotas:
          enforce: false
          algorithm: window
          window: {samples: 21, seconds: 2}
          entities:
            - {user: alice, client-id: etl, producer_byte_rate: 1048576, consumer_byte_rate: 2097152}
            - {user: "<default>", producer_byte_rate: 100000}
            - {client-id: mirror-maker, exempt: true}
            - {ip: "<default>", connection_creation_rate: 50}
            - {ip: "2001:DB8::0001", exempt: true}
        connections:
          {max_idle_ms: 1, max_per_ip: 2, max_frame_bytes: 3, drain_seconds: 0.5, max_connections: 4,
           connection_creation_rate: 5, max_per_ip_overrides: {"10.0.0.1": 6, "::0001": 7}}
        admin: {host: localhost, port: 4}
        workers: 1
        """
    )
    assert config.upstream.bootstrap_servers == (("kafka-1.example.com", 9092), ("::1", 9093), ("kafka_2", 9094))
    assert [str(server) for server in config.upstream.bootstrap_servers][1] == "[::1]:9093"
    assert config.listeners[0].advertised_host == "weir.example.com"
    assert config.listeners[0].broker_ports == PortRange(2000, 2009)
    assert config.listeners[1].advertised_host == "::1"
    assert (config.quotas.enforce, config.quotas.algorithm) == (False, "window")
    assert (config.quotas.window.samples, config.quotas.window.seconds) == (21, 2)
    assert config.quotas.entities == (
        EntityQuota(ClientQuotaEntity("alice", "etl"), {"producer_byte_rate": 1048576, "consumer_byte_rate": 2097152}),
        EntityQuota(ClientQuotaEntity(DEFAULT), {"producer_byte_rate": 100000}),
        EntityQuota(ClientQuotaEntity(None, "mirror-maker"), exempt=True),
        EntityQuota(ClientQuotaEntity(ip=DEFAULT), {"connection_creation_rate": 50}),
        EntityQuota(ClientQuotaEntity(ip="2001:db8::1"), exempt=True),
    )
    connections = config.connections
    assert (connections.max_idle_ms, connections.max_per_ip, connections.max_frame_bytes) == (1, 2, 3)
    assert connections.drain_seconds == 0.5
    assert connection_limits(connections, config.listeners) == ConnectionLimits(
        2, {"10.0.0.1": 6, "::1": 7}, AcceptLimits(4, 5), {"in": AcceptLimits(8, 9), "v6": AcceptLimits()}
    )
    assert (config.admin.host, config.admin.port) == ("localhost", 4)


@pytest.mark.parametrize(
    ("section", "kind"), [(QuotasConfig, "produce"), (QuotasConfig, "fetch"), (MutationsConfig, "controller_mutation")]
)
def test_algorithms_are_those_of_the_kind(section: type, kind: str) -> None:
    assert get_args(section.model_fields["algorithm"].annotation) == tuple(KINDS[kind].meters)


@pytest.mark.parametrize("kind", ROW_KINDS, ids=lambda kind: kind.name)
def test_each_registered_kind_is_a_key_of_an_entity(kind) -> None:
    whose = "ip: 10.0.0.1" if "ip" in kind.entity_types else "user: a"
    config = parsed(entities(f"{{{whose}, {kind.config_key}: 7}}"))
    assert config.quotas.entities[0].limits == {kind.config_key: 7}


def test_config_survives_json_round_trip() -> None:
    config = parsed(entities("{user: a, client-id: <default>, producer_byte_rate: 50000}", "{client-id: b, exempt: true}"))
    text = config.model_dump_json()
    assert parsed(text) == config
    assert json.loads(text)["listeners"][0]["broker_ports"] == "29093-29192"


def test_state_file_lies_beside_the_config_or_at_its_path(tmp_path: Path) -> None:
    file = tmp_path / "weir.yaml"
    assert parsed(MINIMAL).state.file(file) == tmp_path / "weir.state.json"
    for path in ("kept.json", str(tmp_path / "kept.json")):
        config = parsed(f"{MINIMAL}state: {{path: {path}}}\n")
        assert config.state.file(file) == tmp_path / "kept.json"


def test_usage_file_lies_beside_the_state_file_or_at_its_path(tmp_path: Path) -> None:
    file = tmp_path / "weir.yaml"
    for state, path in (
        ("{}", "weir.state.usage.jsonl"),
        ("{path: kept/quotas.json}", "kept/quotas.usage.jsonl"),
        ("{path: kept/quotas.json, usage_path: usage}", "usage"),
    ):
        config = parsed(f"{MINIMAL}state: {state}\n")
        assert config.state.usage_file(file) == tmp_path / path
    assert config.state.usage_file(file, 3) == tmp_path / "usage.3"


def test_quota_admins_are_principals() -> None:
    assert parsed(MINIMAL).quota_admins == ()
    config = parsed(MINIMAL + 'quota_admins: ["User:admin", "User:CN=*.example.com,O=Big Example"]\n')
    assert config.quota_admins == ("User:admin", "User:CN=*.example.com,O=Big Example")


def test_broker_acls_stand_for_the_list_of_admins() -> None:
    assert parsed(MINIMAL + "quota_admins: broker_acls\n").quota_admins == "broker_acls"


def test_config_is_frozen() -> None:
    config = parsed(entities("{user: a, producer_byte_rate: 50000}"))
    with pytest.raises(ValueError, match="frozen"):
        config.quotas.enforce = False  # type: ignore[misc]
    with pytest.raises(TypeError):
        config.quotas.entities[0].limits["producer_byte_rate"] = 1  # type: ignore[index]


def aliases(levels, collection):
    """A small text whose aliases stand for 8 ** `levels` values."""
    lines = [f"a{level}: &a{level} {collection % ', '.join([f'*a{level - 1}'] * 8)}" for level in range(1, levels)]
    return "\n".join(["a0: &a0 {k: 1}", *lines, f"listeners: *a{levels - 1}"])


BAD = [
    (MINIMAL + "quota_admins: [admin]\n", "quota_admins[0]", "is not a principal", '"User:admin"'),
    (MINIMAL + "quota_admins: ['User:']\n", "quota_admins[0]", "is not a principal", '"User:admin"'),
    (MINIMAL + "quota_admins: ['user:a']\n", "quota_admins[0]", "is not a principal", '"User:a"'),
    (MINIMAL + "quota_admins: ['CN=a:b']\n", "quota_admins[0]", "is not a principal", '"User:CN=a:b"'),
    (MINIMAL + "quota_admins: ['User: ']\n", "quota_admins[0]", "is not a principal", '"User:admin"'),
    (MINIMAL + "quota_admins: ['User: a']\n", "quota_admins[0]", "has a space before or after the name", 'write "User:a"'),
    (MINIMAL + "quota_admins: ['User:a ']\n", "quota_admins[0]", "has a space before or after the name", 'write "User:a"'),
    (MINIMAL + "quota_admins: ['User:*']\n", "quota_admins[0]", "has a wildcard", "quota_admins: broker_acls"),
    (MINIMAL + "quota_admins: ['Group:x']\n", "quota_admins[0]", "the type Group", 'list each user, such as "User:admin"'),
    (
        MINIMAL + "quota_admins: User:a\n",
        "quota_admins",
        "is neither broker_acls nor a list",
        'write a list of principals: ["User:a"]',
    ),
    (
        MINIMAL + "quota_admins: true\n",
        "quota_admins",
        "is neither broker_acls nor a list",
        'principals: ["User:admin"], or broker_acls',
    ),
    (MINIMAL + "quota_admins: broker_acl\n", "quota_admins", "is neither broker_acls nor a list", "did you mean broker_acls?"),
    (MINIMAL + "quota_admins: [broker_acls]\n", "quota_admins[0]", "stands for the list", "write quota_admins: broker_acls"),
    (MINIMAL + "quota_admins: ['User:a', 7]\n", "quota_admins[1]", "must be text", "put it in quotes"),
    (MINIMAL + "quota_admins:\n", "quota_admins", "is empty", "remove the key"),
    (MINIMAL + "state: {path: ''}\n", "state.path", "is empty", "fill it in"),
    (
        MINIMAL + "state: {path: a, usage_path: a}\n",
        "state",
        "path and usage_path name the same file",
        "give each a file of its own",
    ),
    (MINIMAL + "state: {usage_interval_ms: 5}\n", "state.usage_interval_ms", "must be at least 100", "at least 100"),
    # the file itself
    ("", "(file)", "is empty", "upstream.bootstrap_servers"),
    ("# nothing but a comment\n", "(file)", "is empty", "upstream.bootstrap_servers"),
    ("null\n", "(file)", "is empty", "upstream.bootstrap_servers"),
    ("- a\n", "(file)", "must be a section with keys of its own, not a list", "indented"),
    ("just words\n", "(file)", "must be a section with keys of its own, not text", "indented"),
    ("upstream: [\n", "(file)", "is not valid YAML", "correct it"),
    ("upstream:\n\tbootstrap_servers: []\n", "(file)", "is indented with a tab", "use spaces"),
    (MINIMAL + "---\n" + MINIMAL, "(file)", "more than one YAML document", "keep one"),
    ("a: !!python/object:os.system {}\n", "(file)", "is not valid YAML", "correct it"),
    ("a: \x00\n", "(file)", "the character #x0000", "correct it"),
    ("a: 2026-13-45\n", "(file)", "a value that YAML can't read as its type, timestamp", "correct it"),
    ("a: !!timestamp soon\n", "(file)", "a value that YAML can't read as its type, timestamp", "correct it"),
    ("a: [1, !!bool maybe]\n", "(file)", "a value that YAML can't read as its type, bool", "correct it"),
    ("a: {b: !!int ''}\n", "(file)", "a value that YAML can't read as its type, int", "correct it"),
    ("!!float '': 1\n", "(file)", "a value that YAML can't read as its type, float", "correct it"),
    ("a: " + "[" * 1_000_000 + "\n", "(file)", "is nested too deeply", "correct it"),
    ("- " * 1_000_000 + "\n", "(file)", "is nested too deeply", "correct it"),
    (aliases(9, "[%s]"), "(file)", "has aliases (*) that stand for more than 100000 values", "correct it"),
    (aliases(9, "{<<: [%s]}"), "(file)", "has aliases (*) that stand for more than 100000 values", "correct it"),
    ("? [a]\n: b\n", "(file)", "unhashable key", "correct it"),
    (MINIMAL + "1: 2\n", "[1]", "is not a key, because it is not text", "quotes"),
    (MINIMAL + LISTENERS, "listeners", "is given twice, first on line 2", "keep one"),
    (MINIMAL + "admin: {port: 0100}\n", "admin.port", "is 0100, which YAML takes for a number of another base", "plain digits"),
    (MINIMAL + "admin: {port: 2:30:00}\n", "admin.port", "is 2:30:00, which YAML takes for a number", "in quotes"),
    (MINIMAL + "admin:\n  port: 1\n  port: 2\n", "admin.port", "is given twice, first on line 4", "keep one"),
    # keys
    (LISTENERS, "upstream", "is missing", "bootstrap_servers"),
    (UPSTREAM, "listeners", "is missing", "bootstrap_port: 29092"),
    (MINIMAL + "foo: 1\n", "foo", "is not a key of the file", "the keys there are upstream, listeners"),
    (MINIMAL + "quota: {}\n", "quota", "is not a key of the file", "did you mean quotas?"),
    (MINIMAL + "entities: []\n", "entities", "is not a key of the file", "belongs under quotas"),
    (MINIMAL + "admin: {Port: 1}\n", "admin.Port", "is not a key of admin", "did you mean port?"),
    (MINIMAL + "quotas:\n", "quotas", "is empty", "remove the key"),
    (MINIMAL + "quotas: {entities: [{username: a}]}\n", "quotas.entities[0].username", "is not a key", "did you mean user?"),
    (LISTENERS + UPSTREAM.replace("]", "], tls: {ca_file: a}"), "upstream.tls.ca_file", "is not a key", "did you mean ca?"),
    (MINIMAL + "quotas: {enforced: true}\n", "quotas.enforced", "is not a key of quotas", "did you mean enforce?"),
    # upstream
    (LISTENERS + "upstream:\n", "upstream", "is empty", "bootstrap_servers"),
    (LISTENERS + "upstream: {}\n", "upstream.bootstrap_servers", "is missing", "127.0.0.1:9092"),
    (servers("[]"), "upstream.bootstrap_servers", "is empty", "127.0.0.1:9092"),
    (servers("'a:1,b:2'"), "upstream.bootstrap_servers", "must be a list, not text", "write a list"),
    (servers('["a:1,b:2"]'), "upstream.bootstrap_servers[0]", "more than one address", "make each an item"),
    (servers("[kafka]"), "upstream.bootstrap_servers[0]", "has no port", "host:port"),
    (servers('[":9092"]'), "upstream.bootstrap_servers[0]", "has no host", "host:port"),
    (servers("['a:1', 'kafka:x']"), "upstream.bootstrap_servers[1]", "not a number from 1 to 65535", "host:port"),
    (servers("['kafka:0']"), "upstream.bootstrap_servers[0]", "not a number from 1 to 65535", "host:port"),
    (servers("['kafka:65536']"), "upstream.bootstrap_servers[0]", "not a number from 1 to 65535", "host:port"),
    (servers("['PLAINTEXT://kafka:9092']"), "upstream.bootstrap_servers[0]", "has a scheme in front", "host:port"),
    (servers("['::1:9092']"), "upstream.bootstrap_servers[0]", "without brackets", "[::1]:9092"),
    (servers("['a b:9092']"), "upstream.bootstrap_servers[0]", "is not a host name", "give one alone"),
    (servers("['a..b:9092']"), "upstream.bootstrap_servers[0]", "is not a host name", "give one alone"),
    (servers(f"['{64 * 'a'}.b:9092']"), "upstream.bootstrap_servers[0]", "is not a host name", "give one alone"),
    (servers("['1.2.3:9092']"), "upstream.bootstrap_servers[0]", "is not a host name", "give one alone"),
    (servers("[{kafka: 9092}]"), "upstream.bootstrap_servers[0]", "is not a broker's address", "host:port"),
    (servers("['localhost:29092']"), "upstream.bootstrap_servers[0]", "is listeners[0] of this gateway", "name a Kafka"),
    (RANGE.format("127.0.0.1", "127.0.0.1:9100"), "upstream.bootstrap_servers[0]", "is listeners[0] of this", "name a Kafka"),
    (RANGE.format("0.0.0.0", "localhost:9092"), "upstream.bootstrap_servers[0]", "is listeners[0] of this", "name a Kafka"),
    (RANGE.format("0.0.0.0", "127.0.0.2:9149"), "upstream.bootstrap_servers[0]", "is listeners[0] of this", "name a Kafka"),
    (RANGE.format("0.0.0.0", "[::ffff:127.0.0.1]:9092"), "upstream.bootstrap_servers[0]", "is listeners[0] of", "name a Kafka"),
    (RANGE.format("'::'", "localhost:9092"), "upstream.bootstrap_servers[0]", "is listeners[0] of this", "name a Kafka"),
    (RANGE.format("'::'", "[::1]:9092"), "upstream.bootstrap_servers[0]", "is listeners[0] of this", "name a Kafka"),
    (
        RANGE.format("0.0.0.0", "Weir.Example.COM.:9092"),
        "upstream.bootstrap_servers[0]",
        "is listeners[0] of this",
        "name a Ka",
    ),
    (SNI.format("broker-0.Kafka.example.com:9092"), "upstream.bootstrap_servers[0]", "is listeners[0] of this", "name a Kafka"),
    # listeners
    (listeners(), "listeners", "is empty", "bootstrap_port: 29092"),
    (UPSTREAM + "listeners: []\n", "listeners", "is empty", "bootstrap_port: 29092"),
    (UPSTREAM + "listeners: {name: a}\n", "listeners", "must be a list, not a section with keys", "write a list"),
    (listeners("clients"), "listeners[0]", "must be a section with keys of its own, not text", "indented"),
    (listeners("{bootstrap_port: 1}", "{bootstrap_port: 300}"), "listeners[1].name", "is the name of listeners[0]", "own"),
    (listeners('{name: "", bootstrap_port: 1}'), "listeners[0].name", "is empty", "name: clients"),
    (listeners("{name: 7, bootstrap_port: 1}"), "listeners[0].name", "must be text, not a number", "quotes"),
    (listeners("{name: yes, bootstrap_port: 1}"), "listeners[0].name", "must be text, not true or false", "quotes"),
    (listeners("{name: 2026-01-01, bootstrap_port: 1}"), "listeners[0].name", "must be text, not a date", "quotes"),
    (listeners("{name: [a], bootstrap_port: 1}"), "listeners[0].name", "must be text, not a list", "write one name"),
    (listeners("{name: a}"), "listeners[0].bootstrap_port", "is missing", "bootstrap_port: 29092"),
    (listeners("{name: a, bootstrap_port: 0}"), "listeners[0].bootstrap_port", "must be at least 1", "at least 1"),
    (listeners("{name: a, bootstrap_port: 70000}"), "listeners[0].bootstrap_port", "must be at most 65535", "at most"),
    (listeners('{name: a, bootstrap_port: "1"}'), "listeners[0].bootstrap_port", "must be a whole number, not text", "w"),
    (listeners("{name: a, bootstrap_port: 1.5}"), "listeners[0].bootstrap_port", "not a number with a fraction", "digits"),
    (listeners("{name: a, bootstrap_port: true}"), "listeners[0].bootstrap_port", "not true or false", "digits"),
    (listeners("{name: a, bootstrap_port: 65500}"), "listeners[0].broker_ports", "has a port outside", "first and the last"),
    (listeners("{name: a, bootstrap_port: 1, host: a:1}"), "listeners[0].host", "is not a host name", "without a port"),
    (listeners("{name: a, bootstrap_port: 1, host: 0.0.0.0}"), "listeners[0].advertised_host", "a wildcard", "set adv"),
    (listeners('{name: a, bootstrap_port: 1, host: "::"}'), "listeners[0].advertised_host", "a wildcard", "set adv"),
    (listeners("{name: a, bootstrap_port: 1, broker_ports: 9-2}"), "listeners[0].broker_ports", "runs backwards", '"2-9"'),
    (listeners("{name: a, bootstrap_port: 1, broker_ports: 9}"), "listeners[0].broker_ports", "is not a range", "29093-"),
    (listeners("{name: a, bootstrap_port: 1, broker_ports: a-b}"), "listeners[0].broker_ports", "is not a range", "2909"),
    (listeners("{name: a, bootstrap_port: 1, broker_ports: 0-5}"), "listeners[0].broker_ports", "has a port outside", "w"),
    (
        listeners("{name: a, bootstrap_port: 5, broker_ports: 1-9}"),
        "listeners[0].broker_ports",
        "takes port 5, which listeners[0].bootstrap_port takes too",
        "a port of its own",
    ),
    (
        listeners("{name: a, bootstrap_port: 100}", "{name: b, bootstrap_port: 150, broker_ports: 1-9}"),
        "listeners[1].bootstrap_port",
        "takes port 150, which listeners[0].broker_ports takes too",
        "a port of its own",
    ),
    (
        listeners(
            "{name: a, bootstrap_port: 1, broker_ports: 100-200}",
            "{name: b, host: localhost, bootstrap_port: 2, broker_ports: 190-290}",
        ),
        "listeners[1].broker_ports",
        "takes port 190-200, which listeners[0].broker_ports takes too",
        "a port of its own",
    ),
    (
        listeners("{name: a, host: 0.0.0.0, advertised_host: a, bootstrap_port: 9644}"),
        "admin.port",
        "takes port 9644, which listeners[0].bootstrap_port takes too",
        "a port of its own",
    ),
    (
        listeners(
            '{name: a, host: "::", advertised_host: a, bootstrap_port: 7}', '{name: b, host: "::1", bootstrap_port: 107}'
        ),
        "listeners[1].bootstrap_port",
        "takes port 107, which listeners[0].broker_ports takes too",
        "a port of its own",
    ),
    (
        listeners("{name: a, bootstrap_port: 100}", "{name: a, bootstrap_port: 1000}"),
        "listeners[1].name",
        "is the name of listeners[0] too",
        "a name of its own",
    ),
    # quotas
    (MINIMAL + "quotas: {enforce: 'no'}\n", "quotas.enforce", "must be true or false, not text", "without quotes"),
    (MINIMAL + "quotas: {algorithm: leaky}\n", "quotas.algorithm", "is not a choice", "'token_bucket' or 'window'"),
    (MINIMAL + "quotas: {scope: brokers}\n", "quotas.scope", "is not a choice", "'cluster' or 'broker'"),
    (MINIMAL + "quotas: {scope: 3}\n", "quotas.scope", "is not a choice", "'cluster' or 'broker'"),
    (MINIMAL + "quotas: {scope: }\n", "quotas.scope", "is empty", "to get its default"),
    (MINIMAL + "scope: broker\n", "scope", "is not a key of the file", "it belongs under quotas"),
    (
        entities("{group: jobs, producer_byte_rate: 1000}"),
        "quotas.entities[0].group",
        "is not a key of quotas.entities",
        "write a row of quotas.groups with name and match instead",
    ),
    (
        MINIMAL + "quotas: {groups: [{name: a, group: jobs, match: [{user: a}]}]}\n",
        "quotas.groups[0].group",
        "is not a key of quotas.groups",
        "write name",
    ),
    (MINIMAL + "quotas: {window: {samples: 1}}\n", "quotas.window.samples", "must be at least 2", "at least 2"),
    (MINIMAL + "quotas: {window: {seconds: 0}}\n", "quotas.window.seconds", "must be at least 1", "at least 1"),
    (MINIMAL + "sharing: true\n", "sharing", "must be a section with keys", "write `sharing: {}` for its defaults"),
    (MINIMAL + "notify: true\n", "notify", "must be a section with keys of its own, not true or false", "indented"),
    (
        MINIMAL + "quotas: {groups: [{name: a, match: [{user: b}], connection_creation_rate: 5}]}\n",
        "quotas.groups[0].connection_creation_rate",
        "is not a key of quotas.groups",
        "groups do not limit connections; write the key in a row of quotas.entities for ip or user",
    ),
    (
        MINIMAL + "quotas: {groups: [{name: a, match: [{user: b}], max_connections: 5}]}\n",
        "quotas.groups[0].max_connections",
        "is not a key of quotas.groups",
        "write the key in a row of quotas.entities for user",
    ),
    (MINIMAL + "quotas: {window: 11}\n", "quotas.window", "must be a section with keys", "indented"),
    (MINIMAL + "quotas: {mutations: {algorithm: window}}\n", "quotas.mutations.algorithm", "is not a choice", "'rate'"),
    (MINIMAL + "quotas: {mutations: {window: {samples: 1}}}\n", "quotas.mutations.window.samples", "at least 2", "at least 2"),
    (MINIMAL + "quotas: {mutations: {burst: 5}}\n", "quotas.mutations.burst", "is not a key", "algorithm"),
    (MINIMAL + "quotas: {entities: }\n", "quotas.entities", "is empty", "remove the key"),
    (entities("alice"), "quotas.entities[0]", "must be a section with keys", "indented"),
    (entities("{user: a}"), "quotas.entities[0]", "sets nothing", "producer_byte_rate"),
    (entities("{user: a, exempt: false}"), "quotas.entities[0]", "sets nothing", "shadow, or exempt: true"),
    (entities("{producer_byte_rate: 5}"), "quotas.entities[0]", "names no entity", "<default>"),
    (entities("{user: a, exempt: true, consumer_byte_rate: 5}"), "quotas.entities[0]", "is exempt and", "remove"),
    (entities("{user: , client-id: b, exempt: true}"), "quotas.entities[0].user", "is empty", "<default>"),
    (entities('{client-id: "", exempt: true}'), "quotas.entities[0].client-id", "is empty", "<default>"),
    (entities("{user: 12, exempt: true}"), "quotas.entities[0].user", "must be text, not a number", "quotes"),
    (entities("{user: a, exempt: 1}"), "quotas.entities[0].exempt", "is neither true, false nor a list", "write true"),
    (entities("{user: a, exempt: rates}"), "quotas.entities[0].exempt", "nor a list", "list some of rates, topics, volumes"),
    (entities("{user: a, exempt: }"), "quotas.entities[0].exempt", "is empty", "remove the key"),
    (entities("{user: a, exempt: [disks]}"), "quotas.entities[0].exempt", "has 'disks'", "rates, topics, volumes"),
    (entities("{user: a, exempt: []}"), "quotas.entities[0]", "sets nothing", "exempt: true"),
    (
        entities("{user: a, exempt: [rates, topics], producer_byte_rate: 5}"),
        "quotas.entities[0]",
        "is exempt and has producer_byte_rate",
        "remove exempt or the quotas",
    ),
    (entities("{ip: 10.0.0.1, exempt: [rates, volumes]}"), "quotas.entities[0]", "exempts an ip from volumes", "client-id"),
    (entities("{user: a, producer_byte_rate: 0}"), "quotas.entities[0].producer_byte_rate", "must be above 0", "above 0"),
    (entities("{user: a, producer_byte_rate: -5}"), "quotas.entities[0].producer_byte_rate", "must be above 0", "above"),
    (entities("{user: a, producer_byte_rate: 10MB}"), "quotas.entities[0].producer_byte_rate", "not text", "a unit"),
    (entities("{user: a, producer_byte_rate: 1e6}"), "quotas.entities[0].producer_byte_rate", "not text", "digits"),
    (
        entities("{user: a, producer_byte_rate: .inf}"),
        "quotas.entities[0].producer_byte_rate",
        "must be a whole number, and .inf is infinite",
        "write a whole number in plain digits; without the key, there is no limit",
    ),
    (
        entities("{user: a, controller_mutation_rate: .nan}"),
        "quotas.entities[0].controller_mutation_rate",
        "must be a number, and .nan is not a number",
        "write a number in plain digits; without the key, there is no limit",
    ),
    (
        MINIMAL + "connections: {drain_seconds: -.inf}\n",
        "connections.drain_seconds",
        "must be a number, and -.inf is infinite",
        "write a number in plain digits",
    ),
    (listeners("{name: .nan, bootstrap_port: 1}"), "listeners[0].name", "must be text, not the number .nan", "quotes"),
    (entities("{user: a, producer_byte_rate: true}"), "quotas.entities[0].producer_byte_rate", "not true", "digits"),
    (entities("{user: a, producer_byte_rate: }"), "quotas.entities[0].producer_byte_rate", "is empty", "remove the key"),
    (entities("{user: a, producer_byte_rates: 5}"), "quotas.entities[0].producer_byte_rates", "is not a key", "did you"),
    (entities(f"{{user: a, producer_byte_rate: {10**30}}}"), "quotas.entities[0].producer_byte_rate", "must be", "write"),
    (
        entities("{user: a, client-id: b, exempt: true}", "{client-id: b, user: a, producer_byte_rate: 5}"),
        "quotas.entities[1]",
        "is the same entity as quotas.entities[0]: user=a, client-id=b",
        "remove one of the two rows, or give the exempt one until",
    ),
    (MINIMAL + 'admin: {allowed_hosts: ["weir:9644"]}\n', "admin.allowed_hosts[0]", "is not a host name", "without a port"),
    (MINIMAL + 'admin: {allowed_hosts: ["*"]}\n', "admin.allowed_hosts[0]", "is not a host name", ".example.com"),
    (entities("{ip: 10.0.0, exempt: true}"), "quotas.entities[0].ip", "is not an IP address", "<default>"),
    (entities("{ip: example.com, exempt: true}"), "quotas.entities[0].ip", "is not an IP address", "10.0.0.1"),
    (entities("{ip: , exempt: true}"), "quotas.entities[0].ip", "is not an IP address", "10.0.0.1"),
    (entities("{ip: '::1'}"), "quotas.entities[0]", "sets nothing", "connection_creation_rate"),
    (entities("{ip: 10.0.0.1, user: a, exempt: true}"), "quotas.entities[0]", "combines ip with user", "a row of its own"),
    (
        entities("{user: a, client-id: b, connection_creation_rate: 5}"),
        "quotas.entities[0]",
        "a quota of ip and user",
        "a row with one of them alone",
    ),
    (entities("{client-id: b, connection_creation_rate: 5}"), "quotas.entities[0]", "a quota of ip and user", "such an entity"),
    (entities("{user: a, connection_creation_rate: 1/s}"), "quotas.entities[0].connection_creation_rate", "number", "digits"),
    (entities("{user: a, max_connections: 0}"), "quotas.entities[0].max_connections", "above 0", "write a number above 0"),
    (entities("{user: a, max_connections: 1.5}"), "quotas.entities[0].max_connections", "a number with a fraction", "whole"),
    (
        entities("{user: a, client-id: b, max_connections: 5}"),
        "quotas.entities[0]",
        "a limit of users",
        "connections.max_per_ip limits addresses",
    ),
    (entities("{ip: 10.0.0.1, max_connections: 5}"), "quotas.entities[0]", "a limit of users", "a row with user alone"),
    (entities("{ip: 10.0.0.1, producer_byte_rate: 5}"), "quotas.entities[0]", "a quota of client-id and user", "such"),
    (
        entities('{ip: "::1", exempt: true}', '{ip: "0:0::1", connection_creation_rate: 5}'),
        "quotas.entities[1]",
        "is the same entity as quotas.entities[0]: ip=::1",
        "remove one of the two rows, or give the exempt one until",
    ),
    (
        entities("{user: a, producer_byte_rate: 5}", "{user: a, exempt: true}"),
        "quotas.entities[1]",
        "is the same entity as quotas.entities[0]: user=a",
        "remove one of the two rows, or give the exempt one until",
    ),
    (
        entities("{user: a, producer_byte_rate: 5}", "{user: a, exempt: [volumes]}"),
        "quotas.entities[1]",
        "is the same entity as quotas.entities[0]: user=a",
        "merge the two rows",
    ),
    # connections, admin, workers
    (MINIMAL + "connections: {max_connections: 0}\n", "connections.max_connections", "must be above 0", "above 0"),
    (MINIMAL + "connections: {max_per_ip_overrides: 5}\n", "connections.max_per_ip_overrides", "is not a section", "10.0"),
    (
        MINIMAL + "connections: {max_per_ip_overrides: {localhost: 5}}\n",
        "connections.max_per_ip_overrides.localhost",
        "is not an IP address",
        "10.0.0.1",
    ),
    (
        MINIMAL + 'connections: {max_per_ip_overrides: {"::1": 0}}\n',
        "connections.max_per_ip_overrides.::1",
        "is not a number of connections",
        "1 or more",
    ),
    (
        MINIMAL + 'connections: {max_per_ip_overrides: {"::1": 1, "0::1": 2}}\n',
        "connections.max_per_ip_overrides.0::1",
        "is an address with another row: ::1",
        "keep one",
    ),
    (
        listeners("{name: a, bootstrap_port: 100, connection_creation_rate: 0.5}"),
        "listeners[0].connection_creation_rate",
        "must be a whole number",
        "digits",
    ),
    (MINIMAL + "connections: {max_idle_ms: 0}\n", "connections.max_idle_ms", "must be above 0", "above 0"),
    (MINIMAL + "connections: {max_per_ip: none}\n", "connections.max_per_ip", "must be a whole number", "digits"),
    (MINIMAL + "connections: {max_frame_bytes: 2147483648}\n", "connections.max_frame_bytes", "at most 2147483647", "at"),
    (MINIMAL + "connections: {drain_seconds: -1}\n", "connections.drain_seconds", "must be at least 0", "at least 0"),
    (MINIMAL + "connections: {drain_seconds: .nan}\n", "connections.drain_seconds", "must be", "write"),
    (MINIMAL + "admin: {port: 99999}\n", "admin.port", "must be at most 65535", "at most 65535"),
    (MINIMAL + "admin: {host: 'http://x'}\n", "admin.host", "is not a host name", "without a port or a scheme"),
    (MINIMAL + 'workers: 2\nquota_admins: ["User:a"]\nsharing:\n', "quota_admins", "several workers", "write 'sharing: {}'"),
    (
        MINIMAL + "sharing: {topic: a, quotas_topic: a}\n",
        "sharing",
        "topic and quotas_topic name the same topic",
        "a topic of its own",
    ),
    (MINIMAL + "workers: 0\n", "workers", "must be at least 1", "write a number at least 1"),
    (MINIMAL + "workers: 1000\n", "workers", "must be at most 256", "write a number at most 256"),
]


@pytest.mark.parametrize(("text", "key", "message", "remedy"), BAD, ids=[f"{key}-{words}" for _, key, words, _ in BAD])
def test_invalid_value_is_reported_with_key_and_remedy(text: str, key: str, message: str, remedy: str) -> None:
    (problem,) = problems_of(text)
    assert problem.key == key
    assert message in problem.message
    assert remedy in problem.remedy


@pytest.mark.parametrize("keys", UNSUPPORTED, ids=".".join)
def test_key_of_a_later_release_is_refused(keys: tuple[str, ...]) -> None:
    document: dict = {
        "upstream": {"bootstrap_servers": ["127.0.0.1:9092"]},
        "listeners": [{"name": "clients", "bootstrap_port": 29092}],
    }
    match keys:
        case ("upstream", key):
            document["upstream"] |= {key: {}}
        case ("listeners", key):
            document["listeners"][0][key] = {}
        case ("quotas", "entities", key):
            document["quotas"] = {"entities": [{"user": "a", key: 5}]}
        case ("quotas", "groups", key):
            document["quotas"] = {"groups": [{"name": "a", "match": [{"user": "a"}], key: 5}]}
        case ("quotas", "entities", "shadow", key):
            document["quotas"] = {"entities": [{"user": "a", "shadow": {key: 5}}]}
        case ("quotas", "groups", "shadow", key):
            document["quotas"] = {"groups": [{"name": "a", "match": [{"user": "a"}], "shadow": {key: 5}}]}
        case ("quotas", "groups", quota, key):
            document["quotas"] = {"groups": [{"name": "a", "match": [{"user": "a"}], quota: {"ceiling": 7, key: 5}}]}
        case ("quotas", key):
            document["quotas"] = {key: {}}
        case (key,):
            document[key] = {}
    (problem,) = problems_of(json.dumps(document))
    assert re.sub(r"\[\d+\]", "", problem.key) == ".".join(keys)
    assert "remove it" in problem.remedy


def test_all_problems_are_listed_in_file_order() -> None:
    found = problems_of(
        """\
upstream:
  bootstrap_servers: [kafka]
  tsl: {}
listeners:
  - {name: a, bootstrap_port: 100}
  - {name: a, bootstrap_port: 150, hots: x}
  - {name: b, bootstrap_port: 150, broker_ports: 1-9}
quotas:
  enforce: maybe
  enforce: true
  entities:
    - {user: a, producer_byte_rate: -1}
    - {user: b, producer_byte_rate: 1}
    - {user: b, producer_byte_rate: 2}
sharing: {interval_ms: 1}
"""
    )
    assert [(problem.key, problem.line) for problem in found] == [
        ("upstream.bootstrap_servers[0]", 2),
        ("upstream.tsl", 3),
        ("listeners[1].hots", 6),
        ("listeners[2].bootstrap_port", 7),
        ("quotas.enforce", 10),
        ("quotas.entities[0].producer_byte_rate", 12),
        ("quotas.entities[2]", 14),
        ("sharing.interval_ms", 15),
    ]


def test_problem_is_one_line_with_value_line_and_remedy() -> None:
    (problem,) = problems_of(MINIMAL + "admin: {port: 99999}\n")
    assert str(problem) == "admin.port: must be at most 65535 (value 99999, line 3) — write a number at most 65535"


@pytest.mark.parametrize(
    ("names", "keys"),
    [
        ("ip: 10.0.0.1", {"connection_creation_rate"}),
        ("user: a", {*(kind.config_key for kind in ROW_KINDS), "max_connections", "request_rates"}),
        ("client-id: a", {kind.config_key for kind in ROW_KINDS} - {"connection_creation_rate"} | {"request_rates"}),
        ("user: a, client-id: b", {kind.config_key for kind in ROW_KINDS} - {"connection_creation_rate"} | {"request_rates"}),
    ],
)
def test_empty_row_is_offered_the_keys_of_its_entity(names: str, keys: set[str]) -> None:
    (problem,) = problems_of(entities(f"{{{names}}}"))
    offered = problem.remedy.removeprefix("give it one of ").removesuffix(", or exempt: true, or remove it")
    assert set(offered.split(", ")) == {*keys, "shadow"}


def test_infinite_value_is_shown_as_in_yaml() -> None:
    (problem,) = problems_of(MINIMAL + "connections: {max_idle_ms: .inf}\n")
    assert (problem.value, problem.remedy) == (".inf", "write a whole number in plain digits")


def test_each_bad_override_of_an_address_is_named() -> None:
    rows = ["localhost: 5", '"10.0.0.1": many', '"10.0.0.2": 4', '"10.0.0.3": 0']
    found = problems_of(MINIMAL + "connections:\n  max_per_ip_overrides:\n" + "".join(f"    {row}\n" for row in rows))
    assert [(problem.key.rpartition("overrides.")[2], problem.line, problem.value) for problem in found] == [
        ("localhost", 5, "5"),
        ("10.0.0.1", 6, '"many"'),
        ("10.0.0.3", 8, "0"),
    ]


def test_long_value_is_cut() -> None:
    (problem,) = problems_of(MINIMAL + f"admin: {{port: {'x' * 5000}}}\n")
    assert len(str(problem)) < 300


def test_recursive_document_is_refused() -> None:
    assert problems_of(MINIMAL + "quotas: &q {entities: *q}\n")


def test_aliases_and_merge_keys_work() -> None:
    config = parsed(entities("&a {user: a, producer_byte_rate: 50000}", "{<<: *a, user: b}", "{<<: *a, user: c}"))
    assert [(row.entity.user, row.limits) for row in config.quotas.entities] == [
        (user, {"producer_byte_rate": 50000}) for user in "abc"
    ]


def test_same_port_on_two_addresses_is_allowed() -> None:
    text = listeners("{name: a, host: 127.0.0.1, bootstrap_port: 100}", "{name: b, host: 127.0.0.2, bootstrap_port: 100}")
    assert len(parsed(text).listeners) == 2


@pytest.mark.parametrize(("host", "other"), [("0.0.0.0", "::"), ("0.0.0.0", "::1"), ("::", "127.0.0.1"), ("::", "localhost")])
def test_listeners_of_both_address_families_share_a_port(host: str, other: str) -> None:
    more = "advertised_host: weir.example.com, bootstrap_port: 100"
    text = listeners(*(f'{{name: {name}, host: "{each}", {more}}}' for name, each in (("a", host), ("b", other))))
    assert [listener.bootstrap_port for listener in parsed(text).listeners] == [100, 100]


def test_mapped_addresses_are_those_of_ipv4() -> None:
    config = parsed(
        listeners('{bootstrap_port: 100, proxy_protocol: {mode: required, trusted: ["::ffff:10.0.0.0/104"]}}')
        + 'connections: {max_per_ip_overrides: {"::ffff:10.0.0.1": 5}}\n'
        "quotas:\n"
        '  entities: [{ip: "::ffff:10.0.0.1", connection_creation_rate: 5}]\n'
        '  groups: [{name: g, match: [{ip: "::ffff:10.0.0.0/104"}], request_rate: 5}]\n'
        'notify: {targets: [{name: a, url: "https://example.com", entities: [{ip: "::ffff:10.0.0.1"}]}]}\n'
    )
    assert config.connections.max_per_ip_overrides == {"10.0.0.1": 5}
    assert config.quotas.entities[0].entity == ClientQuotaEntity(ip="10.0.0.1")
    assert config.quotas.groups[0].rules[0].network == ip_network("10.0.0.0/8")
    assert config.listeners[0].proxy_protocol.trusted == (ip_network("10.0.0.0/8"),)
    assert config.notify is not None
    assert config.notify.targets[0].entities[0].ip == "10.0.0.1"


@given(st.text(max_size=200))
def test_random_text_raises_only_config_errors(text: str) -> None:
    assert all(problem.message and problem.remedy for problem in problems_of(text))


_SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
_KEYS = st.sampled_from(["upstream", "listeners", "quotas", "connections", "admin", "entities", "window", "user", "name"])
_VALUES = st.recursive(
    _SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_KEYS, inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=60)
@given(st.dictionaries(_KEYS, _VALUES, max_size=5))
def test_random_structure_raises_only_config_errors(document: dict) -> None:
    with pytest.raises(ConfigError) as caught:
        parsed(json.dumps(document))
    assert str(caught.value)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", set()),
        ("workers: 2\n", {"__weir_usage", "__weir_quotas"}),
        ("sharing: {topic: a, quotas_topic: b}\nledger: {path: l, topic: c}\nquotas: {volumes: {topic: d}}\n", {*"abcd"}),
        ("ledger: {path: l}\nquotas: {volumes: {}}\n", {"__weir_volume_usage"}),
    ],
)
def test_own_topics_are_those_in_use(text: str, names: set[str]) -> None:
    assert own_topics(parsed(MINIMAL + text)) == names


def test_exemptions_and_limits_may_be_combined() -> None:
    config = parsed(entities("{user: a, exempt: [volumes, topics], producer_byte_rate: 5000000}"))
    (quota,) = config.quotas.entities
    assert (quota.exempt, quota.exempt_from, dict(quota.limits)) == (False, ("topics", "volumes"), {"producer_byte_rate": 5e6})
    again = parsed(config.model_dump_json(by_alias=True))
    assert again == config


@pytest.mark.parametrize(
    ("text", "topic"),
    [
        ("workers: 1\n", None),
        ("workers: 4\n", "__weir_usage"),
        ("workers: 4\nsharing: {topic: ours}\n", "ours"),
        ("workers: 4\nsharing:\n", None),
    ],
)
def test_workers_share_quotas_by_default(text: str, topic: str | None) -> None:
    sharing = parsed(MINIMAL + text).sharing
    assert (None if sharing is None else sharing.topic) == topic


def test_workers_with_shared_topic_accept_quota_admins() -> None:
    text = MINIMAL + 'workers: 2\nquota_admins: ["User:a"]\n'
    config = parsed(text)
    assert config.sharing is not None
    assert config.sharing.quotas_topic == "__weir_quotas"


def test_mutations_have_their_own_algorithm_and_window() -> None:
    config = parsed(MINIMAL + "quotas: {mutations: {algorithm: rate, window: {samples: 100}}}\n")
    assert (config.quotas.mutations.algorithm, config.quotas.mutations.window) == ("rate", WindowConfig(samples=100, seconds=1))
    assert parsed(MINIMAL).quotas.mutations == MutationsConfig(algorithm="token_bucket", window=None)


@pytest.mark.parametrize("rate", [0.5, 2])
def test_mutation_rate_may_be_a_fraction(rate: float) -> None:
    (row,) = parsed(entities(f"{{user: a, controller_mutation_rate: {rate}}}")).quotas.entities
    assert row.limits == {"controller_mutation_rate": rate}


def test_path_too_long_is_a_problem_of_its_key() -> None:
    (problem,) = problems_of(MINIMAL + f"ledger: {{path: {'x' * 5_000}}}\n")
    assert problem.key == "ledger.path"
    assert "File name too long" in problem.message


def test_ledger_name_too_long_for_file_names_is_a_problem() -> None:
    (problem,) = problems_of(MINIMAL + f"ledger: {{path: ledger, gateway: {'日' * 80}}}\n")
    assert problem.key == "ledger.gateway"
    assert "has 240 bytes in UTF-8" in problem.message
    assert parsed(MINIMAL + f"ledger: {{path: ledger, gateway: {'日' * 66}}}\n").ledger


def test_recursive_alias_is_a_problem_of_the_file() -> None:
    (problem,) = problems_of(UPSTREAM + "listeners: &a [*a]\n")
    assert problem.key == "(file)"
    assert "alias" in problem.message
