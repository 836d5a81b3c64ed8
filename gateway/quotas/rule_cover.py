"""The certainty that one rule of a group matches every client of another rule."""

import re
from ipaddress import IPv4Network, IPv6Network
from typing import Final

from gateway.quotas.addresses import Network
from gateway.quotas.groups import GroupRule
from gateway.quotas.name_pattern import NO_STAR, NamePattern

_WILDCARDS: Final = re.compile(r"[*?]+")


class RuleCover:
    """A rule that is compiled once, for comparisons with many others."""

    __slots__ = ("_client_id", "_rule", "_user")

    def __init__(self, rule: GroupRule) -> None:
        self._rule = rule
        self._user = None if rule.user is None else _PatternCover(rule.user)
        self._client_id = None if rule.client_id is None else _PatternCover(rule.client_id)

    def covers(self, other: "RuleCover") -> bool:
        """True if it is certain that this rule matches every client that `other` matches."""
        if self._client_id is not None and not self._client_id.covers(other._client_id):
            return False
        if self._user is not None and not self._user.covers(other._user):
            return False
        rule, narrower = self._rule, other._rule
        return (
            rule.claims <= narrower.claims
            and _network_covers(rule.network, narrower.network)
            and (rule.max_lag is None or (narrower.max_lag is not None and rule.max_lag <= narrower.max_lag))
        )


class _PatternCover:
    __slots__ = ("_pattern", "_text")

    def __init__(self, pattern: str) -> None:
        self._text = _normal(pattern)
        self._pattern = NamePattern(self._text, NO_STAR)

    def covers(self, other: "_PatternCover | None") -> bool:
        """True if this pattern matches every name that `other` matches, as far as a look at the texts shows."""
        if other is None:  # any name
            return self._text == "*"
        return self._pattern.matches(other._text)


def _normal(pattern: str) -> str:
    """The pattern with each run of wildcards in one spelling: first every `?`, then one `*` if there is any."""
    return _WILDCARDS.sub(lambda run: "?" * run[0].count("?") + "*" * ("*" in run[0]), pattern)


def _network_covers(network: Network | None, other: Network | None) -> bool:
    if network is None:
        return True
    if isinstance(network, IPv4Network):
        return isinstance(other, IPv4Network) and other.subnet_of(network)
    return isinstance(other, IPv6Network) and other.subnet_of(network)
