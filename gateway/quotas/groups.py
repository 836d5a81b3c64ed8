"""Groups of clients: the rules that put a client into a group, and the table that finds a client's group.

A client belongs to the first group, in the file's order, that has a matching rule. Its requests are charged to the group's
bucket beside its own.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address
from typing import Final

from gateway.quotas.addresses import Network, address_of
from gateway.quotas.entity import ClientQuotaEntity, EntityQuota
from gateway.quotas.name_pattern import NamePattern
from gateway.quotas.schedule import When

Claims = frozenset[tuple[str, str]]
"""The claims of a bearer token as pairs of name and text. A claim with a list of texts has a pair for each."""

NO_CLAIMS: Final[Claims] = frozenset()

MAX_CLAIMS: Final = 1_500
"""The pairs that a connection remembers: as many as there are UUIDs of groups in the longest token. Later ones are ignored."""

MAX_CLAIM_CHARACTERS: Final = 255
"""Longer names and texts are ignored."""

MAX_FOUND: Final = 10_000
"""The maximum number of clients whose group the table remembers. Beyond it, the table forgets all of them."""

MAX_FOUND_CHARACTERS: Final = 512 * MAX_FOUND
"""The maximum number of characters in the names of these clients."""

CLAIMS_OF_ONE_TOKEN: Final = frozenset({"jti", "nonce"})
"""Claims that no two tokens have alike. No rule could use them, so no connection keeps them."""

DEFAULT_MAX_LAG: Final = 100_000
"""The lag in records above which a consumer catches up, unless the rule has another one."""

ANY_LAG: Final = 2**63 - 1
"""The lag of a client to which every rule for consumers that catch up applies."""


def claims_of(payload: Mapping[str, object]) -> Claims:
    """The claims of a token's payload that have a text, or a list with texts."""
    found: set[tuple[str, str]] = set()
    for name, value in payload.items():
        if len(name) > MAX_CLAIM_CHARACTERS or name in CLAIMS_OF_ONE_TOKEN:
            continue
        for text in value if isinstance(value, list) else (value,):
            if len(found) >= MAX_CLAIMS:
                return frozenset(found)
            if isinstance(text, str) and len(text) <= MAX_CLAIM_CHARACTERS:
                found.add((name, text))
    return frozenset(found)


@dataclass(frozen=True, slots=True)
class GroupRule:
    """Matches a client to which all of its parts apply.

    `user` and `client_id` are shell patterns: `*` is any text, `?` one character, and every other character itself. None: any
    name. The client's token has all pairs of `claims`, and the client's address lies in `network` (None: any address). With
    `max_lag`, the client reads more than that many records behind the end of the log.
    """

    user: str | None = None
    client_id: str | None = None
    claims: Claims = NO_CLAIMS
    network: Network | None = None
    max_lag: int | None = None

    def __str__(self) -> str:
        parts = (("user", self.user), ("client-id", self.client_id))
        found = [f"{name}={pattern}" for name, pattern in parts if pattern is not None]
        found += [f"claim {name}={text}" for name, text in sorted(self.claims)]
        found += [] if self.network is None else [f"ip={self.network}"]
        return ", ".join([*found, *([] if self.max_lag is None else [f"catch_up, max_lag_records={self.max_lag}"])])


@dataclass(frozen=True, slots=True)
class Group:
    """A group of the config file: its rules, and its ceilings by quota key. `line`, `when` and `shadow` as in `EntityQuota`.

    A group with a `parent` shares the parent's ceilings with its siblings, by `guarantees` and `weights`. A group that is a
    parent has no rules.
    """

    name: str
    rules: tuple[GroupRule, ...]
    limits: Mapping[str, float] = field(default_factory=dict)
    line: int | None = field(default=None, compare=False)
    when: When | None = None
    shadow: Mapping[str, float] = field(default_factory=dict)
    parent: str | None = None
    guarantees: Mapping[str, float] = field(default_factory=dict)
    weights: Mapping[str, float] = field(default_factory=dict)

    @property
    def identity(self) -> str:
        return self.name

    @property
    def quota(self) -> EntityQuota:
        """The ceilings as the quota of an entity of the type `group`."""
        return EntityQuota(ClientQuotaEntity(group=self.name), self.limits, line=self.line, when=self.when, shadow=self.shadow)


class _Matcher:
    """A compiled rule."""

    __slots__ = ("_claims", "_client_id", "_max_lag", "_network", "_user", "group", "rule")

    def __init__(self, group: Group, rule: GroupRule) -> None:
        self.group = group
        self.rule = rule
        self._user = None if rule.user is None else NamePattern(rule.user)
        self._client_id = None if rule.client_id is None else NamePattern(rule.client_id)
        self._claims = rule.claims
        self._network = rule.network
        self._max_lag = rule.max_lag or 0

    def matches(
        self, user: str, client_id: str, address: IPv4Address | IPv6Address | None, claims: Claims, behind: int
    ) -> bool:
        if behind < self._max_lag:
            return False
        if self._user is not None and not self._user.matches(user):
            return False
        if self._client_id is not None and not self._client_id.matches(client_id):
            return False
        if not self._claims <= claims:
            return False
        return self._network is None or (address is not None and address in self._network)


class GroupTable:
    """The groups of a config, compiled. It remembers the groups of clients, so that each is found once for all quota kinds."""

    def __init__(self, groups: Sequence[Group] = ()) -> None:
        self._matchers = [_Matcher(group, rule) for group in groups for rule in group.rules]
        self._by_ip = any(rule.network is not None for group in groups for rule in group.rules)
        self._claims: Claims = frozenset([claim for group in groups for rule in group.rules for claim in rule.claims])
        self._by_lag = any(rule.max_lag is not None for group in groups for rule in group.rules)
        self.rules = len(self._matchers)
        """Their number. A new client is compared with each, which takes about as long as parsing a byte of a request."""
        self._found: dict[tuple[str, str, str, Claims, int], str | None] = {}
        self._characters = 0

    def find(self, user: str, client_id: str, ip: str, claims: Claims, behind: int = 0) -> str | None:
        """The name of a client's group. `ip` "" if the address is not known, `behind` from `passed_limit`."""
        if not self._matchers:
            return None
        key = (user, client_id, ip if self._by_ip else "", claims & self._claims, behind if self._by_lag else 0)
        if key in self._found:
            return self._found[key]
        match = self.match(user, client_id, ip, claims, behind)
        name = None if match is None else match[0].name
        characters = len(user) + len(client_id)
        if len(self._found) >= MAX_FOUND or self._characters + characters > MAX_FOUND_CHARACTERS:
            self._found = {}
            self._characters = 0
        self._found[key] = name
        self._characters += characters
        return name

    def match(self, user: str, client_id: str, ip: str, claims: Claims, behind: int = 0) -> tuple[Group, GroupRule] | None:
        """A client's group, and the rule that puts the client into it."""
        address = _address(ip) if self._by_ip else None
        for matcher in self._matchers:
            if matcher.matches(user, client_id, address, claims, behind):
                return matcher.group, matcher.rule
        return None

    def lag_limits(self, user: str, client_id: str, ip: str, claims: Claims) -> tuple[int, ...]:
        """The limits in records, ascending, on the lag that decides about a client's group. None for most clients."""
        found: set[int] = set()
        if self._by_lag:
            address = _address(ip) if self._by_ip else None
            for matcher in self._matchers:
                if matcher.matches(user, client_id, address, claims, ANY_LAG):
                    if matcher.rule.max_lag is None:
                        break
                    found.add(matcher.rule.max_lag)
        return tuple(sorted(found))


def passed_limit(lag: int, limits: tuple[int, ...], before: int) -> int:
    """The largest of the ascending `limits` that a consumer has passed; 0 if none. `before` is the previous result.

    A consumer passes a limit with a larger lag, and falls back with less than a tenth of it. So it does not change groups with
    each response, and few old records are left for its usual group.
    """
    passed = 0
    for limit in limits:
        if lag > limit or (limit <= before and lag * 10 >= limit):
            passed = limit
    return passed


def _address(ip: str) -> IPv4Address | IPv6Address | None:
    """A client's address. None if it is not known."""
    try:
        return address_of(ip)
    except ValueError:
        return None
