"""Explains a failed handshake: a reason for metrics, and words for the log."""

import ssl
from typing import NamedTuple

from gateway.proxy.tls.client_hello import LargeKeyShareError


class Cause(NamedTuple):
    """`reason` comes from a fixed set. `words` complete the sentence "the handshake failed: "."""

    reason: str
    words: str


_UNKNOWN_CA = "certificate is from an authority that is not trusted here"
_CERTIFICATE = {
    2: Cause("unknown_ca", _UNKNOWN_CA),
    7: Cause("unknown_ca", f"{_UNKNOWN_CA}, although it has the name of a trusted one"),
    9: Cause("not_yet_valid", "certificate is not valid yet"),
    10: Cause("expired", "certificate has expired"),
    18: Cause("self_signed", "certificate is self-signed, and not trusted here"),
    19: Cause("unknown_ca", f"{_UNKNOWN_CA} (self-signed, in its chain)"),
    20: Cause("unknown_ca", _UNKNOWN_CA),
    21: Cause("unknown_ca", _UNKNOWN_CA),
    23: Cause("revoked", "certificate has been revoked"),
    26: Cause("wrong_purpose", "certificate is not meant for this use (its extended key usage)"),
    62: Cause("wrong_host", "certificate is for another host"),
    64: Cause("wrong_host", "certificate is for another host"),
}
"""By OpenSSL's X509_V_ERR number. The words follow the name of the certificate's owner."""

_PLAINTEXT = Cause(
    "not_tls", "the peer does not send TLS: is its security.protocol PLAINTEXT, or does a balancer send a PROXY header?"
)
_HTTP = Cause("not_tls", "the peer sends HTTP instead of TLS")
_VERSION = Cause("version", "the two sides have no TLS version in common")
_OTHER = {
    "HTTP_REQUEST": _HTTP,
    "HTTPS_PROXY_REQUEST": _HTTP,
    "WRONG_VERSION_NUMBER": _PLAINTEXT,
    "UNKNOWN_PROTOCOL": _PLAINTEXT,
    "UNEXPECTED_MESSAGE": _PLAINTEXT,
    "RECORD_LAYER_FAILURE": _PLAINTEXT,
    "UNSUPPORTED_PROTOCOL": _VERSION,
    "VERSION_TOO_LOW": _VERSION,
    "TLSV1_ALERT_PROTOCOL_VERSION": _VERSION,
    "NO_SHARED_CIPHER": Cause("cipher", "the two sides have no cipher in common"),
}
"""By the name of OpenSSL's error."""

_ABOUT_CERTIFICATES = ("certificate", "unknown ca")
"""Words of alerts. Java sends "bad certificate" if it got no certificate."""


def cause_of(error: BaseException, peers: str) -> Cause:
    """The cause of a failed handshake. `peers` is the other side in the possessive, such as "the client's"."""
    if isinstance(error, ssl.SSLCertVerificationError):
        cause = _CERTIFICATE.get(error.verify_code) or Cause("bad_certificate", "certificate is not valid")
        # OpenSSL's message contains the expected host.
        return Cause(cause.reason, f"{peers} {cause.words} ({error.verify_message.rstrip('.')})")
    if isinstance(error, LargeKeyShareError):
        return Cause(
            "key_share",
            f"{peers} ClientHello has {error.strerror}, whose computation would delay all clients. Let the client offer x25519"
            " or secp256r1, as all do by default",
        )
    if isinstance(error, ssl.SSLError):
        name = error.reason or ""
        if name == "PEER_DID_NOT_RETURN_A_CERTIFICATE":
            return Cause("no_certificate", f"{peers} certificate is missing, and one is required")
        if name in _OTHER:
            return _OTHER[name]
        if "ALERT" in name or name == "TLSV1_UNRECOGNIZED_NAME":
            alert = name.rpartition("ALERT_")[2].replace("_", " ").lower()
            about = " Weir's certificate, or the lack of one" if any(word in alert for word in _ABOUT_CERTIFICATES) else ""
            return Cause("refused_by_peer", f"the peer refused{about}, with the alert: {alert}")
        return Cause("other", str(error))
    if isinstance(error, ConnectionAbortedError | TimeoutError):
        return Cause("timeout", "the handshake did not finish in time")
    if isinstance(error, OSError):
        return Cause("closed", "the peer closed the connection during the handshake")
    return Cause("other", repr(error))
