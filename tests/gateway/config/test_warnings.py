"""Warnings about valid configs."""

import pytest

from tests.gateway.config.texts import LISTENERS, MINIMAL, entities, listeners, parsed

NOBODY = "quotas.entities: is empty"
EXEMPT = entities("{user: a, exempt: true}")
USER = "{user: a, producer_byte_rate: 1048576}"
DEFAULT_USER = '{user: "<default>", producer_byte_rate: 1048576}'
CLIENT = "{client-id: etl, producer_byte_rate: 1048576}"
VOLUMES = MINIMAL + "quotas: {enforce: false, entities: [{user: a, exempt: [rates]}], volumes: {%s}}\n"
NOTIFY = EXEMPT + 'notify: {targets: [{name: a, url: "https://b"}], page_url: "%s"}\n'
LOOPBACK_LINK = "notify.page_url: leads to admin.port, and other machines can't reach 127.0.0.1"
UNKNOWN_LINK = "notify.page_url: weir.example.com is not in admin.allowed_hosts"
ADMINS = 'quota_admins: ["User:ANONYMOUS"]\n'
SCRAM = "sasl: {mechanism: SCRAM-SHA-512, username: weir, password_file: f}"
KERBEROS = (
    'upstream: {bootstrap_servers: ["b:1"]}\nlisteners: [%s{bootstrap_port: 1, sasl: {required: true%s}}]\n'
    "quotas: {entities: [{user: a, exempt: true}]}\n" + ADMINS
)
OF_FOUR = "sharing: is empty, so each of the 4 workers gives every client its whole quota"

WARNINGS = {
    "no quotas": (MINIMAL, [NOBODY]),
    "unenforced": (
        MINIMAL + "quotas: {enforce: false, entities: [{user: a, exempt: true}]}\n",
        ["quotas.enforce: is false"],
    ),
    "volumes unenforced": (VOLUMES % "", ["quotas.volumes.enforce: ", "quotas.enforce: "]),
    "volumes enforced": (VOLUMES % "enforce: true", ["quotas.enforce: "]),
    "admin on every address": (EXEMPT + "admin: {host: 0.0.0.0}\n", ["admin.host: "]),
    "admin on a name": (EXEMPT + "admin: {host: weir.example.com}\n", ["admin.host: "]),
    "admin on localhost": (EXEMPT + "admin: {host: localhost}\n", []),
    "links to a loopback admin port": (NOTIFY % "http://10.0.0.1:9644", [LOOPBACK_LINK]),
    "links by an unknown name": (NOTIFY % "http://weir.example.com:9644", [LOOPBACK_LINK, UNKNOWN_LINK]),
    "links to a proxy by an unknown name": (NOTIFY % "https://weir.example.com", [UNKNOWN_LINK]),
    "links to a proxy by a known name": (
        NOTIFY % "https://Weir.example.com" + "admin: {allowed_hosts: [.example.com]}\n",
        [],
    ),
    "links to an open admin port by a known name": (
        NOTIFY % "http://weir.example.com:9644" + "admin: {host: 0.0.0.0, allowed_hosts: [weir.example.com]}\n",
        ["admin.host: "],
    ),
    "links to an open admin port by a name without a dot": (
        NOTIFY % "http://weir:9644" + "admin: {host: 0.0.0.0}\n",
        ["admin.host: "],
    ),
    "links on the same machine": (NOTIFY % "http://localhost:9644", []),
    "webhooks without TLS": (
        EXEMPT + 'notify: {targets: [{name: a, url: "http://b/c"}, {name: b, url: "HTTP://10.0.0.1/"}]}\n',
        ["notify.targets[0].url: has no TLS", "notify.targets[1].url: has no TLS"],
    ),
    "webhooks on the same machine, with TLS or in a file": (
        EXEMPT + "notify: {targets: [{name: a, url: 'http://[::1]/'}, {name: b, url: 'http://localhost:8080/'},"
        " {name: c, url: 'http://127.0.0.9/'}, {name: d, url: 'https://b/'}, {name: e, url_file: f}]}\n",
        [],
    ),
    "brokers' names unchecked": (
        EXEMPT.replace('9092"]', '9092"], tls: {verify_hostname: false}'),
        ["upstream.tls.verify_hostname: is false"],
    ),
    "brokers' names checked": (EXEMPT.replace('9092"]', '9092"], tls: {}'), []),
    "clients without a name may change quotas": (
        KERBEROS % ("", ""),
        ["quota_admins: User:ANONYMOUS stands for all clients with a hidden name"],
    ),
    "clients without a name may change quotas, by Weir's own login": (
        EXEMPT.replace('9092"]', f'9092"], {SCRAM}') + ADMINS,
        ["quota_admins: User:ANONYMOUS stands"],
    ),
    "only clients with a name come in": (KERBEROS % ("", ", unnamed: close"), []),
    "one listener lets clients without a name in": (
        KERBEROS % ("{name: b, bootstrap_port: 2000}, ", ", unnamed: close"),
        ["quota_admins: User:ANONYMOUS stands"],
    ),
    "all clients are without a name": (EXEMPT + ADMINS, []),
    "brokers judge clients without a name": (KERBEROS.replace('["User:ANONYMOUS"]', "broker_acls") % ("", ""), []),
    "workers": (EXEMPT + "workers: 4\n", []),
    "workers without sharing": (EXEMPT + "workers: 4\nsharing:\n", [OF_FOUR]),
    "mute over request timeout": (
        entities("{user: a, producer_byte_rate: 34952}", "{user: b, producer_byte_rate: 34953}"),
        ["quotas.entities[0].producer_byte_rate: 34952 bytes/s for user=a"],
    ),
    "mute over session timeout": (
        entities("{user: a, consumer_byte_rate: 23301}", "{user: b, consumer_byte_rate: 23302}"),
        ["quotas.entities[0].consumer_byte_rate: 23301 bytes/s for user=a"],
    ),
    "mute within timeouts": (
        entities(
            "{user: a, producer_byte_rate: 34953, consumer_byte_rate: 23302}", "{ip: 10.0.0.1, connection_creation_rate: 1}"
        ),
        [],
    ),
    "client-id exempt beside client quotas": (entities(CLIENT, "{client-id: mirror, exempt: true}"), []),
    "client-id exempt beside default client quotas": (
        entities('{client-id: "<default>", producer_byte_rate: 1048576}', "{client-id: mirror, exempt: true}"),
        ["quotas.entities[1].client-id: mirror is exempt"],
    ),
    "literal default": (
        entities("{user: default, producer_byte_rate: 1048576}", "{user: Default, client-id: a, producer_byte_rate: 1048576}"),
        ['quotas.entities[0].user: "default" is the name of one user', 'quotas.entities[1].user: "Default" is the name'],
    ),
    "asterisk": (
        entities('{client-id: "*", producer_byte_rate: 1048576}', '{client-id: "etl-*", producer_byte_rate: 1048576}'),
        ['quotas.entities[0].client-id: "*" is the name of one', 'quotas.entities[1].client-id: "etl-*" is a name and no'],
    ),
    "principal": (entities('{user: "User:a", producer_byte_rate: 1048576}'), ['quotas.entities[0].user: "User:a" is a']),
    "default entities": (entities(DEFAULT_USER, '{ip: "<default>", connection_creation_rate: 5}'), []),
    "user exempt": (entities(USER, "{user: mirror, exempt: true}"), []),
    "client-id of one user exempt": (entities(USER, "{user: a, client-id: mirror, exempt: true}"), []),
    "ip exempt": (entities(USER, "{ip: 10.0.0.1, exempt: true}"), []),
    "empty ledger": (MINIMAL + "ledger:\n", [NOBODY, "ledger: is empty"]),
    "empty volumes": (MINIMAL + "quotas: {volumes: }\n", [NOBODY, "quotas.volumes: is empty"]),
    "empty topics": (MINIMAL + "quotas: {topics: }\n", [NOBODY, "quotas.topics: is empty"]),
    "empty upstream.tls": (
        LISTENERS + 'upstream: {bootstrap_servers: ["b:1"], tls: }\n',
        [NOBODY, "upstream.tls: is empty"],
    ),
    "empty upstream.sasl": (
        LISTENERS + 'upstream: {bootstrap_servers: ["b:1"], sasl: }\n',
        [NOBODY, "upstream.sasl: is empty"],
    ),
    "empty listener tls": (
        listeners("{name: a, bootstrap_port: 1, tls: }"),
        [NOBODY, "listeners[0].tls: is empty"],
    ),
}
"""A text, and the beginnings of its warnings in their order."""


@pytest.mark.parametrize("case", WARNINGS)
def test_questionable_config_warns(case: str) -> None:
    text, beginnings = WARNINGS[case]
    warnings = parsed(text).warnings()
    assert [warning[: len(start)] for warning, start in zip(warnings, beginnings, strict=True)] == beginnings


@pytest.mark.parametrize("guard", ["volumes: {}", "topics: {total.bytes.in.per.sec.threshold: 5}"])
def test_exempt_true_beside_a_guard_warns(guard: str) -> None:
    (warning,) = parsed(EXEMPT.replace("quotas:", f"quotas:\n  {guard}")).warnings()
    assert warning.startswith("quotas.entities[0].exempt: true exempts user=a from rates alone")
    assert f"write [rates, {guard.partition(':')[0]}], or [rates]" in warning
    assert parsed(EXEMPT.replace("exempt: true", "exempt: [rates]").replace("quotas:", f"quotas:\n  {guard}")).warnings() == []


@pytest.mark.parametrize(
    ("row", "key", "words"),
    [
        (
            "{user: a, producer_byte_rate: 34952}",
            "producer_byte_rate",
            "one full request of 1 MiB mutes its connection for 30 s, longer than the usual request timeout (30 s)",
        ),
        (
            "{user: a, controller_mutation_rate: 1}",
            "controller_mutation_rate",
            "1 partitions/s for user=a: one topic of 50 partitions mutes its connection for 50 s",
        ),
        (
            "{user: a, consumer_byte_rate: 10000}",
            "consumer_byte_rate",
            "one full batch of 1 MiB mutes its connection for 105 s, longer than the usual session timeout (45 s)",
        ),
        (
            "{user: a, producer_byte_rate: 1}",
            "producer_byte_rate",
            "one full request of 1 MiB mutes its connection for 3600 s",  # the longest debt of a token bucket
        ),
    ],
)
def test_quota_that_outlasts_a_timeout_warns(row: str, key: str, words: str) -> None:
    (warning,) = parsed(entities(row)).warnings()
    assert warning.startswith(f"quotas.entities[0].{key}: ")
    assert words in warning
    assert "for user=a" in warning


@pytest.mark.parametrize("limited", [USER, DEFAULT_USER])
@pytest.mark.parametrize("exempt", ["client-id: mirror", 'client-id: "<default>"', 'user: "<default>", client-id: mirror'])
def test_exempt_client_id_beside_user_quotas_warns(limited: str, exempt: str) -> None:
    (warning,) = parsed(entities(limited, f"{{{exempt}, exempt: true}}")).warnings()
    assert warning.startswith("quotas.entities[1].client-id: ")
    name = "<default>" if 'client-id: "<' in exempt else "mirror"
    assert f"{name} is exempt, and a client chooses its own client-id" in warning
    assert "{user: NAME, exempt: true}" in warning
