"""Reads a certificate: its subject as Java writes it, for Kafka's mapping rules, and the end of its validity."""

from collections.abc import Iterator

from cryptography import x509

_KEYWORDS = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.9": "STREET",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "0.9.2342.19200300.100.1.1": "UID",
    "0.9.2342.19200300.100.1.25": "DC",
}
"""The attribute types with a name in RFC 2253 (section 2.3). Java writes all other types as numbers."""

_TEXT = {0x0C: "utf-8", 0x13: "ascii", 0x14: "latin-1", 0x16: "ascii", 0x1B: "ascii", 0x1C: "utf-32-be", 0x1E: "utf-16-be"}
"""The encodings of ASN.1's strings by tag: UTF8-, Printable-, T61-, IA5-, General-, Universal- and BMPString."""

_ESCAPED = frozenset(',=+<>#;"\\')


def subject(certificate: bytes) -> str:
    """The subject of a DER certificate in the form of Java's `X500Principal.getName()` (RFC 2253), most specific part first.

    Raises `ValueError` if the bytes are not a certificate.
    """
    try:
        name = x509.load_der_x509_certificate(certificate).subject.public_bytes()
    except x509.InvalidVersion as error:
        raise ValueError(str(error)) from error
    _, content, _ = _element(name, 0)
    return ",".join(reversed(["+".join(_attribute(part) for _, part, _ in _elements(rdn)) for _, rdn, _ in _elements(content)]))


def expiry(certificate: bytes) -> float:
    """The last second in which a DER certificate is valid, since the epoch. Raises `ValueError` as `subject`."""
    return x509.load_der_x509_certificate(certificate).not_valid_after_utc.timestamp()


def _attribute(encoded: bytes) -> str:
    """One `type=value`. A type without a name, or a value that is not text, has the form #hex (RFC 2253, 2.4)."""
    (_, type_, _), (tag, content, value) = _elements(encoded)
    number = _dotted(type_)
    keyword = _KEYWORDS.get(number)
    if keyword is None or tag not in _TEXT:
        return f"{keyword or number}=#{value.hex()}"
    return f"{keyword}={_escaped(content.decode(_TEXT[tag], 'replace'))}"


def _escaped(text: str) -> str:
    """The value with Java's escapes: those of RFC 2253, "=" and "#" at any position, and spaces at both ends."""
    body = text.strip(" \n\r")
    begin = text.index(body) if body else len(text)
    inner = "".join("\\00" if char == "\0" else f"\\{char}" if char in _ESCAPED else char for char in body)
    before, after = text[:begin], text[begin + len(body) :]
    return "".join(f"\\{blank}" for blank in before) + inner + "".join(f"\\{blank}" for blank in after)


def _dotted(encoded: bytes) -> str:
    """An object identifier as numbers separated by dots."""
    numbers, value = [], 0
    for octet in encoded:
        value = value << 7 | octet & 0x7F
        if octet < 0x80:
            numbers.append(value)
            value = 0
    first = min(numbers[0] // 40, 2)
    return ".".join(map(str, (first, numbers[0] - 40 * first, *numbers[1:])))


def _elements(content: bytes) -> Iterator[tuple[int, bytes, bytes]]:
    """The DER elements of a constructed element: tag, content, and the whole element."""
    at = 0
    while at < len(content):
        tag, inner, end = _element(content, at)
        yield tag, inner, content[at:end]
        at = end


def _element(encoded: bytes, at: int) -> tuple[int, bytes, int]:
    """The DER element at an offset: tag, content, and the offset behind it. The input must be well-formed."""
    length, begin = encoded[at + 1], at + 2
    if length & 0x80:
        octets = length & 0x7F
        length, begin = int.from_bytes(encoded[begin : begin + octets]), begin + octets
    return encoded[at], encoded[begin : begin + length], begin + length
