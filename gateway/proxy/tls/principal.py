"""Kafka's `ssl.principal.mapping.rules` (KIP-371): map a certificate's subject to a user."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

MAX_ATTRIBUTES = 20
MAX_CHARACTERS = 1024
"""The largest subject that rules are tried on. Backtracking takes time by powers of both, and all clients wait (008)."""

_REMEMBERED = 1000
"""Subjects whose user is remembered, so that one certificate can't cost the time of the rules again and again."""

_RULE = re.compile(
    r"\s*(?:(?P<default>DEFAULT)|RULE:(?P<pattern>(?:\\.|[^\\/])*)/(?P<name>(?:\\.|[^\\/])*)/(?P<case>[LU]?))\s*(?:,\s*|$)"
)
_PART = re.compile(
    r"(?P<escape>\\(?:\d+|.))|(?P<set>\[\^?\]?(?:\\.|[^\]\\])*\])|(?P<flags>\(\?[A-Za-z-]+[:)])|(?P<group>\(\?<(?=[A-Za-z]))|[.$]",
    re.DOTALL,
)
"""The parts of a pattern in Java's syntax that need a look; `group` begins a named group."""
_ESCAPE = re.compile(r"\\(?:\d+|.)", re.DOTALL)
_SAME_ESCAPE = re.compile(r"\\(?:[1-9dDsSwWAtnrfaxu]|[^A-Za-z0-9])")
_REFERENCE = re.compile(r"\\(?P<literal>.)|\$(?P<number>\d+)|\$\{(?P<name>\w+)\}", re.ASCII | re.DOTALL)

_JAVAS = {
    ".": r"[^\n\r\x85\u2028\u2029]",
    "$": r"(?:\Z|(?=(?:\r\n|[\r\x85\u2028\u2029])\Z)|(?<!\r)(?=\n\Z))",
}
"""Java's meaning in Python's syntax. Java has more ends of lines, and "$" also stands before the last one of them."""

_CASES: dict[str, Callable[[str], str]] = {"": str, "L": str.lower, "U": str.upper}


class BadRuleError(ValueError):
    """An invalid mapping rule. The message has the rule and the reason."""

    def __init__(
        self,
        message: str,
        remedy: str = "write rules as in Kafka's ssl.principal.mapping.rules, such as RULE:^CN=(.*?),.*$/$1/L,DEFAULT",
    ) -> None:
        super().__init__(message)
        self.remedy = remedy


class HugeSubjectError(ValueError):
    """A subject that is too large for rules. The message has the maxima and the remedy."""


@dataclass(frozen=True, slots=True)
class PrincipalRule:
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
        parts, end, at = [], 0, 0
        while at <= len(subject) and (found := self.pattern.search(subject, at)) is not None:
            parts += [subject[end : found.start()], self._expanded(found)]
            end = found.end()
            at = end + (found.start() == end)  # Python's `sub` would look for text where Java found an empty match
        return _CASES[self.case]("".join(parts) + subject[end:])

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
        self._rules = tuple(_parse(rules))
        self._remembered = lru_cache(_REMEMBERED)(self._found)

    def user(self, subject: str) -> str | None:
        """The user for a certificate's subject. None if no rule matches, in which case Kafka refuses the client.

        Raises `HugeSubjectError`.
        """
        if self._rules[0].pattern is None:
            return subject
        attributes = subject.count("=") - subject.count("\\=")  # Java escapes the "=" of values
        if attributes > MAX_ATTRIBUTES or len(subject) > MAX_CHARACTERS:
            raise HugeSubjectError(
                f"the certificate's {subject[:100]!r}... has {attributes} attributes and {len(subject)} characters, and"
                f" tls.principal_mapping_rules are for {MAX_ATTRIBUTES} and {MAX_CHARACTERS} — give the client a shorter one"
            )
        return self._remembered(subject)

    def _found(self, subject: str) -> str | None:
        return next((user for rule in self._rules if (user := rule.apply(subject)) is not None), None)


def _parse(text: str) -> list[PrincipalRule]:
    rules: list[PrincipalRule] = []
    at = 0
    while at < len(text) or not rules:
        found = _RULE.match(text, at)
        if found is None:
            raise BadRuleError(f"{text[at:].strip() or 'the empty text'!r} is not a rule")
        at = found.end()
        if found["default"]:
            rules.append(PrincipalRule(None, "", ""))
        else:
            rules.append(PrincipalRule(_compiled(found["pattern"], found["name"]), found["name"], found["case"]))
    return rules


def _compiled(pattern: str, replacement: str) -> re.Pattern[str]:
    """Compiles Java's regular expression in Python. Refuses syntax with another meaning in Python."""
    try:
        compiled = re.compile(_PART.sub(_translated, pattern), re.ASCII)
    except re.error as error:
        raise BadRuleError(f"{pattern!r} is not a regular expression that Weir supports: {error.msg}") from None
    for found in _REFERENCE.finditer(replacement):
        if found["name"] is not None and found["name"] not in compiled.groupindex:
            raise BadRuleError(f"{replacement!r} refers to the group {found['name']!r}, which {pattern!r} does not have")
        if found["number"] is not None and not compiled.groups and int(found["number"][0]) != 0:
            raise BadRuleError(f"{replacement!r} refers to the group {found['number']}, and {pattern!r} has no groups")
    return compiled


def _translated(part: re.Match[str]) -> str:
    """The part with Java's meaning in Python's syntax. Raises `BadRuleError` if there is none."""
    text, kind = part[0], part.lastgroup
    if kind == "group":
        return "(?P<"
    if kind == "flags" and text.strip("(?:)") != "i":
        raise _other_meaning(part, text, "use the flag i alone, such as (?i)")
    if kind in {"escape", "set"}:
        for escape in _ESCAPE.findall(text):
            if _SAME_ESCAPE.fullmatch(escape) is None:
                raise _other_meaning(part, escape, r"use \d, \w or \s, characters in brackets such as [^,], or $ for the end")
    if kind == "set" and ("&&" in text or "[" in _ESCAPE.sub("", text[1:])):
        raise _other_meaning(part, text, r"write one pair of brackets without &&, such as [a-zA-Z], and \[ for a bracket in it")
    return _JAVAS.get(text, text)


def _other_meaning(part: re.Match[str], text: str, remedy: str) -> BadRuleError:
    return BadRuleError(f"{part.string!r} has {text!r}, which Weir can't read as Java does", remedy)
