from ipaddress import IPv6Address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.proxy_header import (
    MAX_HEADER_BYTES,
    MAX_LINE_BYTES,
    InvalidProxyHeader,
    ProxyHeader,
    begins_proxy_header,
    parse_proxy_header,
)
from tests.protocol.proxy_headers import IPV4, IPV6, LOCAL, SIGNATURE, UNIX, binary, line, tlv

ADDRESSES = st.one_of(
    st.tuples(st.ip_addresses(v=4), st.ip_addresses(v=4)),
    st.tuples(st.ip_addresses(v=6).filter(lambda ip: ip.ipv4_mapped is None), st.ip_addresses(v=6)),
)
PORTS = st.integers(0, 65_535)
TLVS = st.lists(st.builds(tlv, st.integers(0, 255), st.binary(max_size=300)), max_size=5).map(b"".join)
REQUEST = bytes.fromhex("00000014001200030000000100046162636400000000")


def parsed_in_chunks(data: bytes, cuts: list[int]) -> ProxyHeader | str | None:
    """The result of the first chunk that decides, each chunk behind those before it. An error is its message."""
    for end in [*sorted(cuts), len(data)]:
        try:
            header = parse_proxy_header(data[:end])
        except InvalidProxyHeader as error:
            return str(error)
        if header is not None:
            return header
    return None


@st.composite
def headers(draw: st.DrawFn) -> tuple[bytes, ProxyHeader]:
    (source, destination), port, other = draw(ADDRESSES), draw(PORTS), draw(PORTS)
    version = draw(st.sampled_from([1, 2]))
    if version == 1:
        data = line(f"TCP{source.version} {source} {destination} {port} {other}")
    else:
        data = binary(source, destination, port, other, draw(TLVS))
    return data, ProxyHeader(len(data), version, local=False, source=(str(source), port))


@given(headers(), st.binary(max_size=200), st.data())
def test_built_header_parses_back_in_any_chunks(built, behind, data):
    sent, header = built
    cuts = data.draw(st.lists(st.integers(0, len(sent) + len(behind)), max_size=10))
    assert begins_proxy_header(sent)
    assert parsed_in_chunks(sent + behind, cuts) == header
    assert parsed_in_chunks(sent, list(range(len(sent)))) == header
    assert parse_proxy_header(sent[:-1]) is None


@given(
    st.one_of(
        st.binary(max_size=60),
        st.text("PROXY TCP46UNKNOW0123456789.:\r\n", max_size=120).map(lambda text: b"PROXY " + text.encode()),
        st.binary(max_size=60).map(lambda data: SIGNATURE + data),
    ),
    st.data(),
)
def test_any_bytes_give_one_result_in_any_chunks(sent, data):
    cuts = data.draw(st.lists(st.integers(0, len(sent)), max_size=10))
    whole, chunked = parsed_in_chunks(sent, []), parsed_in_chunks(sent, cuts)
    # Only the message may depend on the chunks: it shows the bytes so far.
    assert chunked == whole or (isinstance(whole, str) and isinstance(chunked, str))


WORST_LINE = "UNKNOWN " + " ".join([":".join(["ffff"] * 8)] * 2) + " 65535 65535"

VALID = {
    "v1 of IPv4": (line("TCP4 192.0.2.7 10.0.0.9 56324 9092"), 1, ("192.0.2.7", 56324)),
    "v1 of IPv6": (line("TCP6 2001:DB8:0::7 ::1 0 65535"), 1, ("2001:db8::7", 0)),
    "v1 of mapped IPv4": (line("TCP6 ::ffff:192.0.2.7 ::1 5 6"), 1, ("192.0.2.7", 5)),
    "v1 unknown": (line("UNKNOWN"), 1, None),
    "v1 unknown with addresses": (line(WORST_LINE), 1, None),
    "v2 of IPv4": (binary(IPV4, IPV4, 5, 6), 2, (str(IPV4), 5)),
    "v2 of IPv6": (binary(IPV6, IPV6, 5, 6), 2, (str(IPV6), 5)),
    "v2 of mapped IPv4": (binary(IPv6Address("::ffff:192.0.2.7"), IPV6, 5, 6), 2, ("192.0.2.7", 5)),
    "v2 of UDP": (binary(IPV4, IPV4, 5, 6, family=0x12), 2, (str(IPV4), 5)),
    "v2 of IPv4 without a transport": (binary(IPV4, IPV4, 5, 6, family=0x10), 2, None),
    "v2 with TLVs": (binary(IPV4, IPV4, 5, 6, tlv(0x20, b"\1\0\0\0\0") + tlv(4, b"")), 2, (str(IPV4), 5)),
    "v2 with bytes that are no TLV": (binary(IPV4, IPV4, 5, 6, b"\x20\xff"), 2, (str(IPV4), 5)),
    "v2 of the largest size": (binary(IPV4, IPV4, 5, 6, bytes(MAX_HEADER_BYTES - 28)), 2, (str(IPV4), 5)),
    "v2 of a Unix socket": (SIGNATURE + b"\x21\x31\0\xd8" + UNIX, 2, None),
    "v2 of no family": (SIGNATURE + b"\x21\0\0\3abc", 2, None),
    "v2 local": (LOCAL, 2, None),
    "v2 local with an address": (SIGNATURE + b"\x20\x11\0\x0c" + bytes(12), 2, None),
    "v2 local of an unknown family": (SIGNATURE + b"\x20\x7f\0\1x", 2, None),
}


@pytest.mark.parametrize(("sent", "version", "source"), VALID.values(), ids=VALID)
def test_header_is_read_without_the_bytes_behind(sent, version, source):
    header = ProxyHeader(len(sent), version, sent[12:13] == b"\x20", source)
    assert parse_proxy_header(sent + REQUEST) == header
    assert parsed_in_chunks(sent + REQUEST, list(range(len(sent)))) == header


def test_longest_line_is_the_limit():
    assert len(line(WORST_LINE)) == MAX_LINE_BYTES


INVALID = {
    "another start": (b"PROXX TCP4", "begins with b'PROXX TCP4'"),
    "version 1 without a space": (b"PROXY\tTCP4", "begins with"),
    "half a signature": (SIGNATURE[:11] + b"X", "begins with"),
    "two spaces": (line("TCP4  192.0.2.7 10.0.0.9 1 2"), "two addresses and two ports"),
    "a port too few": (line("TCP4 192.0.2.7 10.0.0.9 1"), "two addresses and two ports"),
    "a port too many": (line("TCP4 192.0.2.7 10.0.0.9 1 2 3"), "two addresses and two ports"),
    "UDP": (line("UDP4 192.0.2.7 10.0.0.9 1 2"), "'UDP4'"),
    "lower case": (line("tcp4 192.0.2.7 10.0.0.9 1 2"), "'tcp4'"),
    "no protocol": (line(""), "''"),
    "leading zero": (line("TCP4 192.0.2.07 10.0.0.9 1 2"), "'192.0.2.07'"),
    "three numbers": (line("TCP4 192.0.2 10.0.0.9 1 2"), "'192.0.2'"),
    "a name": (line("TCP4 kafka 10.0.0.9 1 2"), "'kafka'"),
    "IPv6 as IPv4": (line("TCP4 ::1 10.0.0.9 1 2"), "'::1'"),
    "IPv4 as IPv6": (line("TCP6 192.0.2.7 ::1 1 2"), "'192.0.2.7'"),
    "zone": (line("TCP6 fe80::1%eth0 ::1 1 2"), "'fe80::1%eth0'"),
    "bad destination": (line("TCP4 192.0.2.7 10.0.0.999 1 2"), "'10.0.0.999'"),
    "port too large": (line("TCP4 192.0.2.7 10.0.0.9 65536 2"), "'65536'"),
    "negative port": (line("TCP4 192.0.2.7 10.0.0.9 1 -2"), "'-2'"),
    "port with a leading zero": (line("TCP4 192.0.2.7 10.0.0.9 01 2"), "'01'"),
    "port in other digits": (line("TCP4 192.0.2.7 10.0.0.9 \N{ARABIC-INDIC DIGIT ONE} 2"), "must be a number"),
    "LF alone": (b"PROXY UNKNOWN\n", "LF instead of CRLF"),
    "LF inside": (b"PROXY UNKNOWN a\nb\r\n", "LF instead of CRLF"),
    "a line without end": (b"PROXY UNKNOWN " + b"x" * 500, "no CRLF within 107 bytes"),
    "a byte too long": (line("UNKNOWN " + "x" * (MAX_LINE_BYTES - 15)), "no CRLF within 107 bytes"),
    "version 3": (SIGNATURE + b"\x31\x11\0\x0c" + bytes(12), "the version 3"),
    "unknown command": (SIGNATURE + b"\x22\x11\0\x0c" + bytes(12), "command 2"),
    "unknown family": (SIGNATURE + b"\x21\x41\0\x0c" + bytes(12), "address family 4"),
    "unknown transport": (SIGNATURE + b"\x21\x13\0\x0c" + bytes(12), "transport 3"),
    "IPv4 addresses cut": (SIGNATURE + b"\x21\x11\0\x0b" + bytes(11), "11 bytes, and the addresses of family 1 take 12"),
    "IPv6 addresses cut": (SIGNATURE + b"\x21\x21\0\x0c" + bytes(12), "12 bytes, and the addresses of family 2 take 36"),
    "Unix addresses cut": (SIGNATURE + b"\x21\x31\0\xd7" + bytes(215), "215 bytes, and the addresses of family 3 take 216"),
    "no addresses": (SIGNATURE + b"\x21\x11\0\0", "0 bytes, and the addresses"),
    "64 KiB": (SIGNATURE + b"\x21\x11\xff\xff", "announces 65551 bytes, and Weir reads at most 4096"),
    "64 KiB of a health check": (SIGNATURE + b"\x20\0\xff\xff", "announces 65551 bytes"),
}


@pytest.mark.parametrize(("sent", "words"), INVALID.values(), ids=INVALID)
def test_invalid_header_is_refused_with_its_reason(sent, words):
    with pytest.raises(InvalidProxyHeader) as caught:
        parse_proxy_header(sent)
    assert words in str(caught.value)
    assert isinstance(parsed_in_chunks(sent, list(range(len(sent)))), str)


@pytest.mark.parametrize("first", [b"", REQUEST, b"\x16\x03\x01\x00\xf8\x01", b"GET / HTTP/1.1\r\n", b"\x0c\xff\xff\xff"])
def test_requests_and_tls_begin_no_header(first):
    assert not begins_proxy_header(first)


def test_line_without_end_is_refused_at_its_longest():
    start = b"PROXY TCP4 ".ljust(MAX_LINE_BYTES, b"1")
    assert parse_proxy_header(start[:-1]) is None
    with pytest.raises(InvalidProxyHeader, match="no CRLF within 107 bytes"):
        parse_proxy_header(start)


def test_header_without_addresses_is_complete():
    header = SIGNATURE + b"\x21\x00\x00\x00"
    assert parse_proxy_header(header) == ProxyHeader(16, 2, local=False, source=None)
