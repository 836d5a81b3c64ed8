"""Key shares that are refused, in any form in which OpenSSL takes a ClientHello."""

import ssl

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.proxy.tls.client_hello import ALERT, LARGE_GROUPS, MAX_HELLO_BYTES, ClientHellos, RefusedHelloError
from gateway.proxy.tls.contexts import ServerTls, server_context
from loadtest.testkit.certificates import LOOPBACK, Authority

FFDHE2048, FFDHE8192, X25519 = 0x0100, 0x0104, 0x001D
SHARE_BYTES = {X25519: 32, FFDHE2048: 256, 0x0101: 384, 0x0102: 512, 0x0103: 768, FFDHE8192: 1024}
WARNING = b"\x15\x03\x01\x00\x02\x01\x5a"
EMPTY = b"\x16\x03\x01\x00\x00"


def vector(data, length_bytes=2):
    return len(data).to_bytes(length_bytes, "big") + data


def numbers(*values):
    return b"".join(value.to_bytes(2, "big") for value in values)


def client_hello(*groups, shares):
    """A ClientHello of TLS 1.3 with key shares of these groups."""
    keys = b"".join(numbers(group) + vector(b"\x02" * SHARE_BYTES[group]) for group in shares)
    extensions = {43: b"\x02\x03\x04", 10: vector(numbers(*groups)), 13: vector(numbers(0x0804, 0x0403)), 51: vector(keys)}
    encoded = b"".join(numbers(kind) + vector(content) for kind, content in extensions.items())
    body = b"\x03\x03" + bytes(32) + vector(b"", 1) + vector(numbers(0x1301)) + b"\x01\x00" + vector(encoded)
    return b"\x01" + vector(body, 3)


def records(message, size=16_384):
    return b"".join(b"\x16\x03\x01" + vector(message[at : at + size]) for at in range(0, len(message), size))


def refusal(data, step):
    """The group that is refused; None if the bytes pass."""
    hellos, outgoing = ClientHellos(), ssl.MemoryBIO()
    for at in range(0, len(data), step):
        try:
            hellos.check(data[at : at + step], outgoing)
        except RefusedHelloError as error:
            assert outgoing.read() == ALERT
            return error.strerror.removeprefix("a key share of ")
    assert outgoing.read() == b""
    return None


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    files = Authority(tmp_path_factory.mktemp("authority")).issue("server", LOOPBACK)
    return server_context(ServerTls(files.cert, files.key, None, "none", "1.2"))


def answer(server, data):
    """The type of the first message of OpenSSL's answer: 2 is a ServerHello."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    connection = server.wrap_bio(incoming, outgoing, server_side=True)
    incoming.write(data)
    with pytest.raises(ssl.SSLWantReadError):
        connection.do_handshake()
    sent = outgoing.read()
    assert sent[0] == 22
    return sent[5]


@pytest.mark.parametrize("step", [1, 7, 100_000])
@pytest.mark.parametrize("size", [1, 50, 16_384])
@pytest.mark.parametrize("shares", [(FFDHE8192,), (X25519, FFDHE8192), (FFDHE2048, FFDHE8192)])
def test_large_group_is_refused_in_any_pieces(shares, size, step):
    hello = client_hello(FFDHE8192, X25519, FFDHE2048, shares=shares)
    assert refusal(WARNING + EMPTY + records(hello, size), step) == "ffdhe8192"


@pytest.mark.parametrize(("group", "name"), LARGE_GROUPS.items())
def test_each_large_group_is_refused(group, name):
    assert refusal(records(client_hello(group, shares=[group])), 1_000) == name


def test_openssl_would_take_what_is_refused(server):
    """Since 3.5, OpenSSL takes only this one of the groups by default."""
    hello = records(client_hello(0x0101, shares=[0x0101]), 100)
    assert answer(server, hello) == 2
    assert refusal(hello, 1_000) == "ffdhe3072"


def test_second_hello_after_a_retry_is_refused(server):
    first = records(client_hello(FFDHE2048, FFDHE8192, shares=[]))
    assert answer(server, first) == 2, "a HelloRetryRequest"
    cipher_change = b"\x14\x03\x03\x00\x01\x01"
    assert refusal(first + cipher_change + records(client_hello(FFDHE8192, shares=[FFDHE8192])), 64) == "ffdhe8192"


@pytest.mark.parametrize("shares", [(), (X25519,), (FFDHE2048,), (X25519, FFDHE2048)])
def test_shares_of_ordinary_clients_pass(shares):
    """Java without x25519 sends a share of ffdhe2048 as well. Clients offer large groups without a share of them."""
    assert refusal(records(client_hello(*LARGE_GROUPS, X25519, shares=shares)), 10) is None


def test_long_hello_is_refused_by_its_length():
    """OpenSSL would make room for all of it at once."""
    beginning = b"\x01" + MAX_HELLO_BYTES.to_bytes(3, "big")
    assert refusal(records(beginning), 100) == f"its ClientHello has {MAX_HELLO_BYTES + 4} bytes, more than {MAX_HELLO_BYTES}"
    shorter = b"\x01" + (MAX_HELLO_BYTES - 4).to_bytes(3, "big")
    assert refusal(records(shorter), 100) is None


def test_nothing_is_read_behind_another_message():
    key_exchange = b"\x10" + vector(bytes(10), 3)
    assert refusal(records(key_exchange + client_hello(FFDHE8192, shares=[FFDHE8192])), 1_000) is None


@given(st.binary(max_size=300), st.integers(1, 1_300), st.integers(1, 300))
def test_damaged_hello_raises_nothing_else(noise, at, step):
    hello = records(client_hello(FFDHE8192, shares=[FFDHE8192]))
    refusal(hello[:at] + noise + hello[at:], step)
    refusal(noise, step)
