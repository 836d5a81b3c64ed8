"""The config keys that name Weir's own topics: the only list of these topics."""

from typing import Final

from gateway.config.model import WeirConfig

OWN_TOPICS: Final[tuple[tuple[str, ...], ...]] = (
    ("sharing", "topic"),
    ("sharing", "quotas_topic"),
    ("quotas", "volumes", "topic"),
    ("ledger", "topic"),
)


def own_topics(config: WeirConfig) -> frozenset[str]:
    """The names of Weir's own topics that this config uses."""
    names = set()
    for path in OWN_TOPICS:
        value: object = config
        for key in path:
            value = getattr(value, key, None)
        if isinstance(value, str):
            names.add(value)
    return frozenset(names)
