"""Kafka's `ssl.principal.mapping.rules` (KIP-371): from a certificate's subject to the name of a user."""

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
    """A mapping rule that can't be used; the message says which and why."""


@dataclass(frozen=True, slots=True)
class Rule:
    """`RULE:pattern/replacement/[LU]`; `DEFAULT` where there is no pattern."""

    pattern: re.Pattern[str] | None
    replacement: str
    case: str

    def apply(self, subject: str) -> str | None:
        """The user's name, None where the pattern does not match the whole of the subject."""
        if self.pattern is None:
            return subject
        if self.pattern.fullmatch(subject) is None:
            return None
        # As Kafka does: having matched the whole, it replaces whatever the pattern finds.
        return _CASES[self.case](self.pattern.sub(self._expanded, subject))

    def _expanded(self, match: re.Match[str]) -> str:
        """The replacement as Java's Matcher reads it: $1, ${name}, \\ before a literal character."""
        groups = match.re.groups

        def reference(found: re.Match[str]) -> str:
            if (literal := found["literal"]) is not None:
                return literal
            if found["name"] is not None:
                return match[found["name"]] or ""
            # The longest number that is a group; what follows it is text. None at all: the whole is text (Kafka's extension).
            digits = found["number"]
            for length in range(len(digits), 0, -1):
                if int(digits[:length]) <= groups:
                    return (match[int(digits[:length])] or "") + digits[length:]
            return found[0]

        return _REFERENCE.sub(reference, self.replacement)


class PrincipalMapping:
    """The rules in order; the first that matches gives the name."""

    def __init__(self, rules: str = "DEFAULT") -> None:
        """Parse the value of `ssl.principal.mapping.rules`. Raises BadRuleError."""
        self.text = rules
        self.rules = tuple(_parse(rules))

    def user(self, subject: str) -> str | None:
        """The user that a certificate's subject stands for; None where no rule applies, and then Kafka refuses the client."""
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
    """Java's regular expression as Python's; where the two mean different things, it is refused."""
    if "&&" in pattern:
        raise BadRuleError(f"{pattern!r} has '&&', the intersection of Java's character classes, which Weir does not know")
    try:
        compiled = re.compile(_NAMED_GROUP.sub("(?P<", pattern), re.ASCII)
    except re.error as error:
        raise BadRuleError(f"{pattern!r} is not a regular expression that Weir knows: {error}") from None
    for found in _REFERENCE.finditer(replacement):
        if found["name"] is not None and found["name"] not in compiled.groupindex:
            raise BadRuleError(f"{replacement!r} refers to the group {found['name']!r}, which {pattern!r} does not have")
        if found["number"] is not None and not compiled.groups and int(found["number"][0]) != 0:
            raise BadRuleError(f"{replacement!r} refers to the group {found['number']}, and {pattern!r} has no groups")
    return compiled
