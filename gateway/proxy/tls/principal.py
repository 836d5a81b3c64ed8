"""Kafka's `ssl.principal.mapping.rules` (KIP-371): map a certificate's subject to a user."""

import re
from collections.abc import Callable
from dataclasses import dataclass

_RULE = re.compile(
    r"\s*(?:(?P<default>DEFAULT)|RULE:(?P<pattern>(?:\\.|[^\\/])*)/(?P<name>(?:\\.|[^\\/])*)/(?P<case>[LU]?))\s*(?:,\s*|$)"
)
_NAMED_GROUP = re.compile(r"\(\?<(?=[A-Za-z])")
_REFERENCE = re.compile(r"\\(?P<literal>.)|\$(?P<number>\d+)|\$\{(?P<name>\w+)\}", re.ASCII | re.DOTALL)

_CASES: dict[str, Callable[[str], str]] = {"": str, "L": str.lower, "U": str.upper}


class BadRuleError(ValueError):
    """An invalid mapping rule. The message has the rule and the reason."""


@dataclass(frozen=True, slots=True)
class Rule:
    """`RULE:pattern/replacement/[LU]`. `pattern` is None for `DEFAULT`."""

    pattern: re.Pattern[str] | None
    replacement: str
    case: str

    def apply(self, subject: str) -> str | None:
        """The user's name, or None if the pattern does not match the whole subject."""
        if self.pattern is None:
            return subject
        if self.pattern.fullmatch(subject) is None:
            return None
        # Like Kafka: the pattern must match the whole subject, and then every match is replaced.
        return _CASES[self.case](self.pattern.sub(self._expanded, subject))

    def _expanded(self, match: re.Match[str]) -> str:
        """The replacement in the syntax of Java's Matcher: $1, ${name}, and \\ before a literal character."""
        groups = match.re.groups

        def reference(found: re.Match[str]) -> str:
            if (literal := found["literal"]) is not None:
                return literal
            if found["name"] is not None:
                return match[found["name"]] or ""
            # The longest number with a group counts, and the digits after it are text. Without such a group, all is text,
            # which is Kafka's extension.
            digits = found["number"]
            for length in range(len(digits), 0, -1):
                if int(digits[:length]) <= groups:
                    return (match[int(digits[:length])] or "") + digits[length:]
            return found[0]

        return _REFERENCE.sub(reference, self.replacement)


class PrincipalMapping:
    """The rules in order. The first rule that matches gives the user."""

    def __init__(self, rules: str = "DEFAULT") -> None:
        """Parses the value of `ssl.principal.mapping.rules`. Raises `BadRuleError`."""
        self.text = rules
        self.rules = tuple(_parse(rules))

    def user(self, subject: str) -> str | None:
        """The user for a certificate's subject. None if no rule matches, in which case Kafka refuses the client."""
        return next((user for rule in self.rules if (user := rule.apply(subject)) is not None), None)


def _parse(text: str) -> list[Rule]:
    rules: list[Rule] = []
    at = 0
    while at < len(text) or not rules:
        found = _RULE.match(text, at)
        if found is None:
            raise BadRuleError(f"{text[at:].strip() or 'the empty text'!r} is not a rule")
        at = found.end()
        if found["default"]:
            rules.append(Rule(None, "", ""))
        else:
            rules.append(Rule(_compiled(found["pattern"], found["name"]), found["name"], found["case"]))
    return rules


def _compiled(pattern: str, replacement: str) -> re.Pattern[str]:
    """Compiles Java's regular expression in Python. Refuses syntax with another meaning in Python."""
    if "&&" in pattern:
        raise BadRuleError(f"{pattern!r} has '&&', the intersection of Java's character classes, which Weir does not support")
    try:
        compiled = re.compile(_NAMED_GROUP.sub("(?P<", pattern), re.ASCII)
    except re.error as error:
        raise BadRuleError(f"{pattern!r} is not a regular expression that Weir supports: {error}") from None
    for found in _REFERENCE.finditer(replacement):
        if found["name"] is not None and found["name"] not in compiled.groupindex:
            raise BadRuleError(f"{replacement!r} refers to the group {found['name']!r}, which {pattern!r} does not have")
        if found["number"] is not None and not compiled.groups and int(found["number"][0]) != 0:
            raise BadRuleError(f"{replacement!r} refers to the group {found['number']}, and {pattern!r} has no groups")
    return compiled
