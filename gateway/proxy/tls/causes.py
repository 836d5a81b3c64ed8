"""Why a handshake failed: a word for metrics, and words for people that name the cause."""

import ssl
from typing import NamedTuple


class Cause(NamedTuple):
    """`reason` is one of a fixed set; `words` go on from "the handshake failed: "."""

    reason: str
    words: str


_CERTIFICATE = {
    7: Cause("unknown_ca", "{whose} certificate is from an authority that is not trusted here, only one of the same name is"),
    9: Cause("not_yet_valid", "{whose} certificate is not valid yet"),
    10: Cause("expired", "{whose} certificate has expired"),
    18: Cause("self_signed", "{whose} certificate is self-signed, by no authority that is trusted here"),
    19: Cause("unknown_ca", "{whose} certificate is from an authority that is not trusted here (self-signed, in its chain)"),
    2: Cause("unknown_ca", "{whose} certificate is from an authority that is not trusted here"),
    20: Cause("unknown_ca", "{whose} certificate is from an authority that is not trusted here"),
    21: Cause("unknown_ca", "{whose} certificate is from an authority that is not trusted here"),
    23: Cause("revoked", "{whose} certificate has been revoked"),
    26: Cause("wrong_purpose", "{whose} certificate is not meant for this use (its extended key usage)"),
    62: Cause("wrong_host", "{whose} certificate is for another host"),
    64: Cause("wrong_host", "{whose} certificate is for another host"),
}
"""By OpenSSL's X509_V_ERR number."""

_PLAIN = Cause("not_tls", "what came is not TLS: is security.protocol PLAINTEXT on the other side?")
_OTHER = {
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": Cause("no_certificate", "{whose} certificate is missing, and one is required"),
    "HTTP_REQUEST": Cause("not_tls", "what came is not TLS but HTTP"),
    "HTTPS_PROXY_REQUEST": Cause("not_tls", "what came is not TLS but HTTP"),
    "WRONG_VERSION_NUMBER": _PLAIN,
    "UNKNOWN_PROTOCOL": _PLAIN,
    "UNEXPECTED_MESSAGE": _PLAIN,
    "RECORD_LAYER_FAILURE": _PLAIN,
    "UNSUPPORTED_PROTOCOL": Cause("version", "the two sides have no TLS version in common"),
    "VERSION_TOO_LOW": Cause("version", "the two sides have no TLS version in common"),
    "TLSV1_ALERT_PROTOCOL_VERSION": Cause("version", "the two sides have no TLS version in common"),
    "NO_SHARED_CIPHER": Cause("cipher", "the two sides have no cipher in common"),
}

_ABOUT_CERTIFICATES = ("certificate", "unknown ca")
"""Words of alerts. Java says "bad certificate" where it got none."""


def cause_of(error: BaseException, whose: str) -> Cause:
    """What went wrong, where `whose` is the other side, such as "the client's"."""
    if isinstance(error, ssl.SSLCertVerificationError):
        known = _CERTIFICATE.get(error.verify_code)
        cause = known or Cause("bad_certificate", "{whose} certificate is not valid")
        # OpenSSL's own words name the host that was expected.
        words = f"{cause.words.format(whose=whose)} ({error.verify_message.rstrip('.')})"
        return Cause(cause.reason, words)
    if isinstance(error, ssl.SSLError):
        name = error.reason or ""
        if name in _OTHER:
            return Cause(_OTHER[name].reason, _OTHER[name].words.format(whose=whose))
        if "ALERT" in name or name == "TLSV1_UNRECOGNIZED_NAME":
            said = name.rpartition("ALERT_")[2].replace("_", " ").lower()
            what = " this one's certificate, or the lack of one" if any(word in said for word in _ABOUT_CERTIFICATES) else ""
            return Cause("refused_by_peer", f"the other side refused{what}, and said: {said}")
        return Cause("other", str(error))
    if isinstance(error, ConnectionAbortedError | TimeoutError):
        return Cause("timeout", "it was not finished in time")
    if isinstance(error, OSError):
        return Cause("closed", "the connection was closed before it was finished")
    return Cause("other", repr(error))
