"""ssl.principal.mapping.rules: Kafka's documented examples, the corners of its parser, and what is refused."""

from time import thread_time

import pytest

from gateway.proxy.tls.principal import MAX_ATTRIBUTES, MAX_CHARACTERS, BadRuleError, HugeSubjectError, PrincipalMapping

# https://kafka.apache.org/documentation/#security_authz_ssl, and KIP-371.
DOCUMENTED = (
    "RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/,"
    "RULE:^CN=(.*?),OU=(.*?),O=(.*?),L=(.*?),ST=(.*?),C=(.*?)$/$1@$2/L,"
    "RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/L,"
    "DEFAULT"
)
SERVICE = "CN=serviceuser,OU=ServiceUsers,O=Unknown,L=Unknown,ST=Unknown,C=Unknown"
ADMIN = "CN=adminUser,OU=Admin,O=Unknown,L=Unknown,ST=Unknown,C=Unknown"


@pytest.mark.parametrize(
    ("rules", "subject", "user"),
    [
        (DOCUMENTED, SERVICE, "serviceuser"),
        (DOCUMENTED, ADMIN, "adminuser@admin"),
        (DOCUMENTED, "OU=x,cn=Some.Body,O=y", "some.body"),
        (DOCUMENTED, "O=nobody", "O=nobody"),
        ("DEFAULT", SERVICE, SERVICE),
        ("RULE:^CN=(.*?),.*$/$1/U", ADMIN, "ADMINUSER"),
        ("RULE:^CN=(.*?),.*$/$1/", "O=nobody", None),
        (" RULE:^CN=(.*?),.*$/$1/ , DEFAULT ", "O=nobody", "O=nobody"),
        # The whole subject has to match, as with Java's Matcher.matches().
        ("RULE:CN=(.*?)/$1/,DEFAULT", "CN=a,O=b", "a,O=b"),
        (r"RULE:^cn=(.*?),ou=(.*?),dc=(.*?),dc=(.*?)$/$1@$2\/$3/", "cn=a,ou=b,dc=c,dc=d", "a@b/c"),
        (r"RULE:^CN=(\w+)\/(\w+)$/$2/", "CN=a/b", "b"),
        # A reference that is no group is text; one with too many digits is the longest that is a group.
        ("RULE:^CN=(.*?),O=(.*)$/$1@$4/", "CN=a,O=b", "a@$4"),
        ("RULE:^CN=(.*?),O=(.*)$/$21/", "CN=a,O=b", "b1"),
        ("RULE:^CN=(?<who>.*?),O=(.*)$/${who}-x/", "CN=a,O=b", "a-x"),
        (r"RULE:^CN=(.*?),O=(.*)$/\$1/", "CN=a,O=b", "$1"),
        ("RULE:^.*$/fixed/", "CN=a", "fixed"),
        # Java's "." ends at all ends of lines, and "$" stands before the last one.
        (r"RULE:^CN=([\w ]+).*$/$1/", "CN=admin,OU=\u2028", None),
        ("RULE:^CN=.*$/x/", "CN=a\rb", None),
        ("RULE:^CN=.*$/x/", "CN=a\x85b", None),
        ("RULE:^CN=[^,]+?$/x/", "CN=a\u2028", "x\u2028"),
        ("RULE:^CN=[^,]+?$/x/", "CN=a\r\n", "x\r\n"),
        # After an empty match, Java looks on behind the next character.
        ("RULE:.*?/-/", "a=b", "-a-=-b-"),
        ("RULE:^CN=([.$]+)$/$1/", "CN=.$", ".$"),
        (r"RULE:^CN=(\w+)\.(\w+)\$?$/$2/", "CN=a.b", "b"),
        (r"RULE:(?i)^cn=([^\]\[]+),(?:OU|o)=\x41(\w)\2$/$1/", "CN=a-b,O=ABB", "a-b"),
    ],
)
def test_rules_map_subjects_to_users(rules: str, subject: str, user: str | None) -> None:
    assert PrincipalMapping(rules).user(subject) == user


def slow(number: int) -> str:
    """A subject of about `number` attributes. DOCUMENTED takes time by a power of it."""
    each = number // 4
    return "CN=x" + ",OU=a" * each + ",O=a" * each + ",L=a" * each + ",ST=a" * each


def test_subject_with_many_attributes_is_refused() -> None:
    with pytest.raises(HugeSubjectError, match=f"has 145 attributes .* for {MAX_ATTRIBUTES} and .* — give the client"):
        PrincipalMapping(DOCUMENTED).user(slow(144))


def test_long_subject_is_refused() -> None:
    with pytest.raises(HugeSubjectError, match=f"and 1025 characters, .* and {MAX_CHARACTERS} — give the client"):
        PrincipalMapping(DOCUMENTED).user("CN=" + "a" * (MAX_CHARACTERS - 2))


@pytest.mark.parametrize("subject", ["CN=a" + ",DC=b" * (MAX_ATTRIBUTES - 1), "CN=" + r"\=" * 510])
def test_largest_subjects_have_users(subject: str) -> None:
    assert PrincipalMapping("RULE:^CN=(.*)$/$1/").user(subject) == subject.removeprefix("CN=")


def test_huge_subject_without_rules_is_the_user() -> None:
    assert PrincipalMapping().user(slow(144)) == slow(144)


def test_one_subject_costs_the_time_of_rules_once() -> None:
    mapping, subject = PrincipalMapping(DOCUMENTED), slow(MAX_ATTRIBUTES - 1) + "a" * 900
    began = thread_time()
    user = mapping.user(subject)
    first = thread_time() - began
    assert mapping.user(subject) == user
    assert thread_time() - began - first < first / 5


@pytest.mark.parametrize(
    ("rules", "why"),
    [
        ("", "is not a rule"),
        ("default", "'default' is not a rule"),
        ("DEFAULT/L", "is not a rule"),
        ("RULE:CN=.*/$1", "is not a rule"),
        ("RULE:^CN=(.*)$/$1/X", "is not a rule"),
        ("RULE:^CN=(.*)$/$1/LU", "is not a rule"),
        ("DEFAULT,RULE:x", "'RULE:x' is not a rule"),
        ("RULE:^CN=(.*$/$1/", "is not a regular expression"),
        ("RULE:^CN=.*$/$1/", "has no groups"),
        ("RULE:^CN=(.*)$/${who}/", "'who'"),
    ],
)
def test_unusable_rules_are_refused(rules: str, why: str) -> None:
    with pytest.raises(BadRuleError, match=why.replace("(", r"\(")):
        PrincipalMapping(rules)


@pytest.mark.parametrize(
    ("pattern", "part", "remedy"),
    [
        (r"^CN=(\p{Alpha}+)$", r"\p", "[^,]"),
        (r"^CN=(.+?)\b.*$", r"\b", "[^,]"),
        (r"^CN=(.*)\Z", r"\Z", "$ for the end"),
        (r"^CN=\0101$", r"\0101", "[^,]"),
        (r"^CN=(a)\11$", r"\11", "[^,]"),
        (r"^CN=([\v,]+)$", r"\v", "[^,]"),
        ("^CN=([a-z[A-Z]]+)$", "[a-z[A-Z]", "such as [a-zA-Z]"),
        ("^CN=([a-z&&b-y]+)$", "[a-z&&b-y]", "without &&"),
        ("^CN=([^],[-]+)$", "[^],[-]", r"\[ for a bracket"),
        ("(?s)^CN=(.*)$", "(?s)", "(?i)"),
        ("^CN=(?im:.*)$", "(?im:", "(?i)"),
    ],
)
def test_parts_with_another_meaning_are_refused(pattern: str, part: str, remedy: str) -> None:
    with pytest.raises(BadRuleError) as refused:
        PrincipalMapping(f"RULE:{pattern}/x/")
    assert str(refused.value) == f"{pattern!r} has {part!r}, which Weir can't read as Java does"
    assert remedy in refused.value.remedy
