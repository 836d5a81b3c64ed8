"""A PROXY header is read alike in one piece and byte by byte, and anything else raises `InvalidProxyHeader`."""

from ipaddress import ip_address

from protocol.proxy_header import InvalidProxyHeader, ProxyHeader, begins_proxy_header, parse_proxy_header
from tests.protocol import proxy_headers as headers

WORDS = (headers.SIGNATURE, b"PROXY TCP4 ", b"PROXY TCP6 ", b"PROXY UNKNOWN", b"\r\n", b"255.255.255.255", b"::ffff:", b"65535")


def check(data: bytes) -> None:
    header = _parse(data)
    for cut in range(min(len(data), 300)):
        part = _parse(data[:cut])
        if part is None:
            continue  # more bytes are missing
        assert isinstance(part, str) == isinstance(header, str), (part, header)
        if isinstance(part, ProxyHeader):
            assert part == header
            assert cut >= part.size
    if isinstance(header, ProxyHeader):
        assert begins_proxy_header(data)
        assert 0 < header.size <= len(data)
        assert _parse(data[: header.size]) == header
        if header.source is not None:
            assert str(ip_address(header.source[0])) == header.source[0]
            assert 0 <= header.source[1] <= 65_535


def _parse(data: bytes) -> ProxyHeader | str | None:
    try:
        return parse_proxy_header(data)
    except InvalidProxyHeader as error:
        return str(error)


def seeds():
    yield headers.line("TCP4 192.0.2.7 192.0.2.8 1024 9092") + b"rest"
    yield headers.line("TCP6 2001:db8::7 ::1 1024 65535")
    yield headers.line("UNKNOWN anything")
    yield headers.LOCAL
    yield headers.binary(headers.IPV4, headers.IPV4, 1, 9092, headers.tlv(4, b"noop")) + b"rest"
    yield headers.binary(headers.IPV6, headers.IPV6, 65_535, 9092)
    yield headers.SIGNATURE + b"\x21\x31" + len(headers.UNIX).to_bytes(2, "big") + headers.UNIX
