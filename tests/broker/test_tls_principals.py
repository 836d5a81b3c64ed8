"""User names of certificates, compared with those of Java's X500Principal and Kafka's SslPrincipalMapper."""

from base64 import b64decode, b64encode
from datetime import UTC, datetime
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.name import _ASN1Type
from cryptography.x509.oid import NameOID

from gateway.proxy.tls.principal import PrincipalMapping
from gateway.proxy.tls.subject import subject
from loadtest.testkit.certificates import DAY
from loadtest.testkit.kafka import run_tool
from tests.gateway.proxy.tls.test_principal import ADMIN, DOCUMENTED, SERVICE

pytestmark = pytest.mark.broker

PROGRAM = Path(__file__).with_name("PrincipalNames.java")

CN, O, OU, C = NameOID.COMMON_NAME, NameOID.ORGANIZATION_NAME, NameOID.ORGANIZATIONAL_UNIT_NAME, NameOID.COUNTRY_NAME  # noqa: E741
TYPES = [
    CN, O, OU, NameOID.LOCALITY_NAME, NameOID.STATE_OR_PROVINCE_NAME, NameOID.STREET_ADDRESS, NameOID.USER_ID,
    NameOID.SERIAL_NUMBER, NameOID.SURNAME, NameOID.GIVEN_NAME, NameOID.TITLE, NameOID.DN_QUALIFIER, NameOID.PSEUDONYM,
    x509.ObjectIdentifier("2.5.4.97"), x509.ObjectIdentifier("2.999.123456789.1"), x509.ObjectIdentifier("1.3.6.1.4.1.99999.1"),
]  # fmt: skip
VALUES = [
    "a", "Ünï çødé 名前 🐟", "a,b", "a+b",
    'a"b', "a\\b", "a<b>c", "a;b", "a=b", "#a", "a#b", " a", "a ", "  a  b  ", " ", "   ",
    "a/b", "a\nb", "a\tb", "\ta\t", "a\rb", "x" * 300, "a\u00a0", "\\ ", " #", "=", "''", "a  ",
]  # fmt: skip
KINDS = [_ASN1Type.UTF8String, _ASN1Type.T61String, _ASN1Type.IA5String, _ASN1Type.PrintableString]


def names() -> list[x509.Name]:
    """Yield names with every attribute type, unusual values and encodings, RDNs of several attributes, and orders."""
    found = [x509.Name([x509.NameAttribute(oid, "Some Value")]) for oid in TYPES]
    found += [x509.Name([x509.NameAttribute(CN, value), x509.NameAttribute(O, "z")]) for value in VALUES if len(value) <= 64]
    found += [x509.Name([x509.NameAttribute(NameOID.STREET_ADDRESS, value)]) for value in VALUES]
    found += [
        x509.Name([x509.NameAttribute(OU, "plain, text", _type=kind)]) for kind in KINDS if kind != _ASN1Type.PrintableString
    ]
    found += [
        x509.Name([x509.NameAttribute(OU, "plain text", _type=_ASN1Type.PrintableString)]),
        x509.Name([x509.NameAttribute(NameOID.DOMAIN_COMPONENT, part) for part in ("com", "example", "kafka")]),
        x509.Name([x509.NameAttribute(C, "DE"), x509.NameAttribute(O, "Org"), x509.NameAttribute(CN, "me")]),
        x509.Name([x509.NameAttribute(NameOID.EMAIL_ADDRESS, "a@example.com"), x509.NameAttribute(CN, "me")]),
        x509.Name([x509.RelativeDistinguishedName([x509.NameAttribute(CN, "a"), x509.NameAttribute(NameOID.USER_ID, "b")])]),
        x509.Name([x509.NameAttribute(OU, "one"), x509.NameAttribute(OU, "two"), x509.NameAttribute(CN, "me")]),
    ]  # fmt: skip
    return found


def certificate(name: x509.Name, key: ec.EllipticCurvePrivateKey) -> bytes:
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key()).serial_number(1)
    return builder.not_valid_before(now - DAY).not_valid_after(now + DAY).sign(key, SHA256()).public_bytes(Encoding.DER)


RULES = [
    (DOCUMENTED, SERVICE),
    (DOCUMENTED, ADMIN),
    (DOCUMENTED, "OU=x,cn=Some.Body,O=y"),
    ("RULE:CN=(.*?)/$1/,DEFAULT", "CN=a,O=b"),
    ("RULE:.*/x/", "CN=a,O=b"),
    ("RULE:^CN=(.*?),O=(.*)$/$1@$4/", "CN=a,O=b"),
    ("RULE:^CN=(.*?),O=(.*)$/$21$0/", "CN=a,O=b"),
    ("RULE:^CN=(.*?),O=(.*)$/$10/", "CN=a,O=b"),
    ("RULE:^CN=(?<who>.*?),O=(.*)$/${who}-x/", "CN=a,O=b"),
    (r"RULE:^CN=(.*?),O=(.*)$/\$1/", "CN=a,O=b"),
    (r"RULE:^CN=(\w+)\/(\w+)$/$2\/$1/U", "CN=a/b"),
    (r"RULE:^CN=(.*?)(,O=x)?(,O=b)$/$1[$2]/", "CN=a,O=b"),
    (r"RULE:^CN=(\w+).*$/$1/,DEFAULT", "CN=ä"),
    ("RULE:^CN=x$/y/", "CN=a"),
    (" RULE:^CN=(.*)$/$1/L , DEFAULT", "CN=ÄB C"),
    *(
        (rule, f"CN=a{end}{more}")
        for rule in ("RULE:^CN=.*$/x/", "RULE:^CN=.*?,?$/x/", r"RULE:^CN=[^,]+?$/x/")
        for end in ("\x85", "\u2028", "\u2029", "\f")
        for more in ("", ",O=b", "\u2028")
    ),
    ("RULE:[^,]*?/x$0/", "CN=a"),
    ("RULE:^CN=([^],]+)$/$1/", "CN=a"),
    (r"RULE:^CN=([\w.-]+),[^\]\[]*$/$1/", "CN=a-.b,O=c"),
    (r"RULE:(?i)^cn=(\x61)(b)\2$/$1/", "CN=AbB"),
]


def test_names_match_java_and_kafka(tmp_path: Path) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    certificates = [certificate(name, key) for name in names()]
    cases = [tmp_path / "certificates", tmp_path / "cases"]
    cases[0].write_text("".join(b64encode(one).decode() + "\n" for one in certificates))
    cases[1].write_text("".join(f"{rules}\t{name}\n" for rules, name in RULES))
    said = run_tool(PROGRAM, *map(str, cases)).split()
    expected = [None if line == "-" else b64decode(line).decode() for line in said]
    mine = [*map(subject, certificates), *(PrincipalMapping(rules).user(name) for rules, name in RULES)]
    assert len(expected) == len(mine)
    assert mine == expected
