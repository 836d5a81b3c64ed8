"""The page of the config file: every key."""

import re
from collections.abc import Iterable, Iterator, Sequence

from config_keys import ConfigKey, all_keys
from markdown import anchor, below_title, code, table

from gateway.config.keys import restart_keys

SMALLEST = """\
upstream: {bootstrap_servers: ["127.0.0.1:9092"]}
listeners: [{bootstrap_port: 29092}]
quotas: {entities: [{user: "<default>", producer_byte_rate: 1048576}]}
"""

CHANGES = {"reload": "reload", "restart": "restart", "agent": "restart of the agent"}

INTRO = """\
# Configuration

All commands read one YAML file, usually `weir.yaml`. `weir init` writes one for a running cluster, and `weir check` lists its
mistakes. [weir.yaml](weir.yaml) is a sample with every key as a comment. The smallest useful file has three keys:

```yaml
{smallest}```

- **Keys** are in snake_case. An entity's type has Kafka's name `client-id`; `client_id` is the same.
- **Relative file names** start at the folder of the config file. Only `ledger.path` starts at the working directory.
- **Change**: a `reload` takes effect when the file is saved, or at SIGHUP. Weir refuses a file with a changed `restart` key as
  a whole, and the config in effect stays. With `by key`, the keys
  of the section differ. `weir volumes publish` reads its keys when it starts.
- **Keys that need a restart**: {restart}.
- **Sections** without a required key are optional. `none` or an empty default means that the key is absent.
"""


def page() -> str:
    keys = list(all_keys())
    sections = [("", "Top level", "The sections of the file, and keys outside of sections.")]
    sections += [(f"{key.path}.", key.path, key.description) for key in keys if key.section is not None]
    parts = [INTRO.format(smallest=SMALLEST, restart=", ".join(map(_restart, restart_keys())))]
    for prefix, title, description in sections:
        rows = [_row(key, keys) for key in _of(prefix, keys)]
        heading = f"## `{title}` {{#{anchor(title)}}}" if prefix else f"## {title}"
        parts.append(
            f"{heading}\n\n{description}\n\n{table(('key', 'type', 'default', 'range', 'change', 'description'), rows)}"
        )
    return below_title("\n".join(parts))


def _restart(words: str) -> str:
    """`listeners (except a and b)` with the keys as code."""
    key, _, rest = words.partition(" (except ")
    return code(key) + (f" (except {' and '.join(map(code, rest.rstrip(')').split(' and ')))})" if rest else "")


def _of(prefix: str, keys: Iterable[ConfigKey]) -> Iterator[ConfigKey]:
    """The keys directly in a section. A few keys of Kafka's have dots in their names."""
    return (key for key in keys if key.path.removesuffix("[]") == prefix + key.name)


def _row(key: ConfigKey, keys: Sequence[ConfigKey]) -> tuple[str, ...]:
    changes = {CHANGES[each.changes] for each in keys if each.path.startswith(f"{key.path}.")} or {CHANGES[key.changes]}
    name = code(key.name)
    shown = f"[{name}](#{anchor(key.path)})" if key.section is not None else name
    kind = key.kind + (f" ({key.unit})" if key.unit else "")
    return shown, kind, key.default, key.range, changes.pop() if len(changes) == 1 else "by key", _linked(key.description)


def _linked(text: str) -> str:
    """The names of pages become links."""
    return re.sub(r"\bdocs/([\w/-]+\.md)", r"[docs/\1](../\1)", text)
