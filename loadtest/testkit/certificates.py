"""Creates certificates for tests and measurements at run time."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

DAY = timedelta(days=1)
LOOPBACK = ("localhost", "127.0.0.1")


@dataclass(frozen=True)
class Files:
    """A certificate and its key as PEM files. `both` has them in one file, for Kafka's ssl.keystore.location."""

    cert: Path
    key: Path

    @property
    def both(self) -> Path:
        both = self.cert.with_suffix(".both.pem")
        both.write_bytes(self.key.read_bytes() + self.cert.read_bytes())
        return both

    def replace_with(self, other: "Files") -> None:
        """Replace both files, the key first. Between the two steps, certificate and key do not match."""
        for mine, theirs in ((self.key, other.key), (self.cert, other.cert)):
            new = mine.with_suffix(".new")
            new.write_bytes(theirs.read_bytes())
            new.replace(mine)


class Authority:
    """A certificate authority whose files are in `directory`."""

    def __init__(self, directory: Path, name: str = "Test CA") -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = subject_of(name)
        now = datetime.now(UTC)
        certificate = (
            x509.CertificateBuilder()
            .subject_name(self._name)
            .issuer_name(self._name)
            .public_key(self._key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - 30 * DAY)
            .not_valid_after(now + 30 * DAY)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(_signs_certificates(), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), critical=False)
            .sign(self._key, SHA256())
        )
        self.cert = directory / "ca.pem"
        self.cert.write_bytes(certificate.public_bytes(Encoding.PEM))

    def issue(
        self,
        name: str,
        hosts: Sequence[str] = (),
        *,
        subject: x509.Name | None = None,
        valid: tuple[timedelta, timedelta] = (-DAY, 20 * DAY),
        self_signed: bool = False,
    ) -> Files:
        """A certificate for `CN=name` or `subject` with these hosts and addresses. `valid` is (from, until), relative to
        now.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        signer = key if self_signed else self._key
        now = datetime.now(UTC)
        whose = subject or subject_of(name)
        uses = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        builder = (
            x509.CertificateBuilder()
            .subject_name(whose)
            .issuer_name(whose if self_signed else self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now + valid[0])
            .not_valid_after(now + valid[1])
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.ExtendedKeyUsage(uses), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
        )
        if hosts:
            builder = builder.add_extension(
                x509.SubjectAlternativeName([_general_name(host) for host in hosts]), critical=False
            )
        certificate = builder.sign(signer, SHA256())
        files = Files(self._directory / f"{name}.pem", self._directory / f"{name}.key")
        files.cert.write_bytes(certificate.public_bytes(Encoding.PEM))
        files.key.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        return files


def subject_of(name: str, *units: str) -> x509.Name:
    """`CN=name,OU=unit,...,O=Weir` as a subject, encoded from the general to the specific, as in real certificates."""
    attributes = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, "Weir")]
    attributes += [x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, unit) for unit in reversed(units)]
    return x509.Name([*attributes, x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _signs_certificates() -> x509.KeyUsage:
    """The key usage of an authority. Like the key identifiers, clients of Python 3.13 and later require it, by RFC 5280."""
    return x509.KeyUsage(
        digital_signature=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=True,
        encipher_only=False,
        decipher_only=False,
    )


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)
