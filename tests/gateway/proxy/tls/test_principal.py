"""ssl.principal.mapping.rules: Kafka's documented examples, the corners of its parser, and what is refused."""

import pytest

from gateway.proxy.tls.principal import BadRuleError, PrincipalMapping

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
    ],
)
def test_rules_map_subjects_to_users(rules: str, subject: str, user: str | None) -> None:
    assert PrincipalMapping(rules).user(subject) == user


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
        (r"RULE:^CN=(\p{Alpha}+)$/$1/", "is not a regular expression"),
        ("RULE:^CN=([a-z&&[^b]]+)$/$1/", "intersection"),
        ("RULE:^CN=.*$/$1/", "has no groups"),
        ("RULE:^CN=(.*)$/${who}/", "'who'"),
    ],
)
def test_unusable_rules_are_refused(rules: str, why: str) -> None:
    with pytest.raises(BadRuleError, match=why.replace("(", r"\(")):
        PrincipalMapping(rules)
