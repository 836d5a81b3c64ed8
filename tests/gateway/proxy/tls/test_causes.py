"""Error messages of real handshakes in memory."""

import ssl
from pathlib import Path

import pytest

from gateway.proxy.tls.causes import cause_of
from gateway.proxy.tls.contexts import ClientTls, ServerTls, client_context, server_context
from loadtest.testkit.certificates import LOOPBACK, Authority


def handshake(client: ssl.SSLContext, server: ssl.SSLContext, host: str = "localhost") -> tuple[ssl.SSLError | None, ...]:
    """Run both sides against each other and return the errors of client and server."""
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = [
        client.wrap_bio(to_client, to_server, server_hostname=host),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    errors: list[ssl.SSLError | None] = [None, None]
    for _ in range(6):
        for index, side in enumerate(sides):
            if errors[index] is None:
                try:
                    side.do_handshake()
                except ssl.SSLWantReadError:
                    pass
                except ssl.SSLError as error:
                    errors[index] = error
    return tuple(errors)


def server(authority: Authority, hosts=LOOPBACK, **changes) -> ssl.SSLContext:
    files = authority.issue("server", hosts)
    return server_context(
        ServerTls(files.cert, files.key, **{"client_ca": None, "client_auth": "none", "min_version": "1.2", **changes})
    )


def client(authority: Authority, **changes) -> ssl.SSLContext:
    given = {"ca": authority.cert, "cert": None, "key": None, "verify_hostname": True, "min_version": "1.2"}
    return client_context(ClientTls(**{**given, **changes}))


def test_good_handshake_has_no_error(authority: Authority) -> None:
    assert handshake(client(authority), server(authority)) == (None, None)


def test_certificate_for_another_host_is_explained(authority: Authority) -> None:
    error, _ = handshake(client(authority), server(authority), "kafka.example.com")
    reason, words = cause_of(error, "the broker's")
    assert reason == "wrong_host"
    assert words.startswith("the broker's certificate is for another host (Hostname mismatch")
    assert "kafka.example.com" in words


def test_other_host_passes_without_verification(authority: Authority) -> None:
    assert handshake(client(authority, verify_hostname=False), server(authority), "kafka.example.com") == (None, None)


def test_untrusted_certificate_is_explained(authority: Authority, tmp_path: Path) -> None:
    stranger = Authority(tmp_path / "stranger", "stranger")
    mine, theirs = handshake(client(stranger), server(authority))
    assert cause_of(mine, "the broker's").reason == "unknown_ca"
    assert cause_of(theirs, "the client's") == (
        "refused_by_peer",
        "the peer refused Weir's certificate, or the lack of one, with the alert: unknown ca",
    )


def test_missing_common_version_is_explained(authority: Authority) -> None:
    old = client(authority)
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    _, error = handshake(old, server(authority, min_version="1.3"))
    assert cause_of(error, "the client's") == ("version", "the two sides have no TLS version in common")


def test_unknown_server_name_gets_alert(authority: Authority) -> None:
    files = authority.issue("server", LOOPBACK)
    tls = ServerTls(files.cert, files.key, None, "none", "1.2")
    names = []

    def known(name: str | None) -> bool:
        names.append(name)
        return name == "localhost"

    context = server_context(tls, known)
    assert handshake(client(authority), context) == (None, None)
    mine, theirs = handshake(client(authority), context, "Other.Example.COM")
    assert theirs.reason == "CALLBACK_FAILED"
    assert mine.reason == "TLSV1_UNRECOGNIZED_NAME"
    assert names == ["localhost", "other.example.com"]


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ConnectionAbortedError("SSL handshake is taking longer"), "timeout"),
        (TimeoutError(), "timeout"),
        (ConnectionResetError(104, "Connection reset by peer"), "closed"),
        (ValueError("?"), "other"),
    ],
)
def test_errors_outside_tls_have_a_reason(error: Exception, reason: str) -> None:
    assert cause_of(error, "the client's").reason == reason
