"""A sample config: three keys are set, and every other key is a comment with its default or an example."""

import json
import re
from collections.abc import Iterator, Mapping
from textwrap import wrap
from typing import Any

import yaml
from config_keys import ConfigKey, all_keys
from configuration import SMALLEST

HEAD = """\
# A sample of Weir's config file with every key, written by .ci/reference from the config model.
#
# Three keys are set. Lines with ## explain the key below them. To set another key, remove the # before it, and before
# the section that it is in.
"""

EXAMPLES: Mapping[str, object] = {
    "upstream.tls.ca": "/etc/weir/brokers-ca.pem",
    "upstream.tls.cert": "/etc/weir/weir.pem",
    "upstream.tls.key": "/etc/weir/weir.key",
    "upstream.sasl.mechanism": "SCRAM-SHA-512",
    "upstream.sasl.username": "weir",
    "upstream.sasl.password_file": "/etc/weir/password",
    "upstream.sasl.token_file": "/etc/weir/token",
    "listeners[].max_connections": 10_000,
    "listeners[].connection_creation_rate": 100,
    "listeners[].host": "127.0.0.1",
    "listeners[].advertised_host": "127.0.0.1",
    "listeners[].broker_ports": "29093-29192",
    "listeners[].tls.cert": "/etc/weir/listener.pem",
    "listeners[].tls.key": "/etc/weir/listener.key",
    "listeners[].tls.client_ca": "/etc/weir/clients-ca.pem",
    "listeners[].tls.client_auth": "required",
    "listeners[].sni": "broker-{id}.kafka.example.com",
    "listeners[].sasl.required": True,
    "quotas.entities[].client-id": "etl",
    "quotas.entities[].ip": "10.0.0.1",
    "quotas.entities[].connection_creation_rate": 10,
    "quotas.entities[].max_connections": 100,
    **{
        f"quotas.{rows}[].{key}": value
        for rows in ("entities", "groups")
        for key, value in {
            "until": "2027-12-01T06:00Z",
            "schedule.days": "mon-fri",
            "schedule.from": "22:00",
            "schedule.to": "06:00",
            "schedule.zone": "Europe/Berlin",
            "request_rates": {"Metadata": 5, "OffsetCommit": 20},
            "shadow.request_rates": {"Metadata": 5},
        }.items()
    },
    "quotas.groups[].name": "jobs",
    "quotas.groups[].parent": "cluster",
    "quotas.groups[].match[].user": "flink-*",
    "quotas.groups[].match[].client-id": "job-*",
    "quotas.groups[].match[].claim": {"groups": "payments"},
    "quotas.groups[].match[].ip": "10.20.0.0/16",
    "quotas.groups[].match[].catch_up": True,
    "quotas.groups[].match[].max_lag_records": 100_000,
    "quotas.topics.total.bytes.in.per.sec.threshold": 104_857_600,
    "quotas.volumes.soft.type": "MinFreePercentage",
    "quotas.volumes.soft.level": 15,
    "quotas.volumes.hard.type": "MinFreePercentage",
    "quotas.volumes.hard.level": 5,
    "quotas.volumes.agent.broker_id": 3,
    "connections.max_connections": 10_000,
    "connections.connection_creation_rate": 100,
    "ledger.path": "./throttle-ledger",
    "ledger.gateway": "weir-1",
    "ledger.topic": "__weir_throttles",
    "notify.targets[].name": "operators",
    "notify.targets[].url": "https://chat.example.com/hook",
    "notify.targets[].url_file": "/etc/weir/hook",
    "notify.targets[].entities[].user": "alice",
    "notify.targets[].entities[].client-id": "etl",
    "notify.targets[].entities[].ip": "10.0.0.1",
    "notify.page_url": "http://weir.example.com:9644",
    "state.path": "weir.state.json",
    "state.usage_path": "weir.state.usage.jsonl",
}
"""Values of the keys without a default."""

_PLACEHOLDERS: Mapping[str, object] = {"true or false": True, "whole number": 1, "number": 1}

RATES: Mapping[str, int] = {
    "bytes per second": 1_048_576,
    "partitions per second": 5,
    "connections per second": 10,
    "requests per second": 50,
}
"""Examples of the limits of entities and groups, by unit."""

_OTHER_RATE = 100

FIRST = {"listeners[]": "bootstrap_port"}
"""The first key of a list's item, with the dash, if it is not the first one of the model."""

WIDTH = 110
_UNSET = object()


def page() -> str:
    keys = list(all_keys())
    for above, name in FIRST.items():
        (first,) = (key for key in keys if key.path == f"{above}.{name}")
        keys.remove(first)
        keys.insert([key.path for key in keys].index(above) + 1, first)
    lines = [HEAD.rstrip()]
    for before, key in zip([None, *keys], keys, strict=False):
        is_first = before is not None and before.path.endswith("[]") and key.path.startswith(f"{before.path}.")
        lines += _lines(key, is_first=is_first)
    return "\n".join(lines) + "\n"


def _lines(key: ConfigKey, *, is_first: bool) -> Iterator[str]:
    depth = _depth(key)
    indent = "  " * depth
    if depth == 0:
        yield ""
    yield from wrap(f"{key.description}{_notes(key)}", WIDTH, initial_indent=f"{indent}## ", subsequent_indent=f"{indent}## ")
    given = _set(key.path)
    mark = "#" if given is _UNSET else ""
    lead = f"{indent[:-2]}- " if is_first else indent
    value = "" if key.section is not None else f" {json.dumps(_value(key) if given is _UNSET else given)}"
    yield f"{mark}{lead}{key.name}:{value}"


def _set(path: str) -> object:
    """The value in the smallest config, or `_UNSET`."""
    value: Any = yaml.safe_load(SMALLEST)
    for part in path.replace("[]", "").split("."):
        value = value[0] if isinstance(value, list) and value and isinstance(value[0], dict) else value
        if not isinstance(value, dict) or part not in value:
            return _UNSET
        value = value[part]
    return value


def _depth(key: ConfigKey) -> int:
    """The number of levels above the key; an item of a list is a level too."""
    above = key.path.removesuffix("[]").removesuffix(key.name)
    return above.count(".") + above.count("[]")


def _value(key: ConfigKey) -> object:
    if key.path in EXAMPLES:
        return EXAMPLES[key.path]
    if (key.path.startswith("quotas.entities[]") and key.default == "no limit") or key.name == "ceiling":
        return RATES.get(key.unit, _OTHER_RATE)
    if key.default == "none":
        return {} if "by name" in key.kind else []
    found = re.findall("`(.*?)`", key.default)
    if not re.fullmatch("(`[^`]*`(, )?)+", key.default):
        return _PLACEHOLDERS.get(key.kind, "...")
    if key.kind.startswith("list"):
        return found
    return found[0] if key.kind in ("text", "choice") else yaml.safe_load(found[0])


def _notes(key: ConfigKey) -> str:
    words = [key.unit, key.range if key.section is None and key.range != "not empty" else ""]
    if key.default and not key.default.startswith("`") and key.default not in ("none", "required"):
        words.append(f"default: {key.default}")
    found = "; ".join(word for word in words if word)
    return f" ({found})" if found else ""
