"""Nobody looks at a certificate until it has expired: the gateway says when that is, and takes it no longer."""

import socket
import ssl
import time

import pytest

from loadtest.testkit.certificates import DAY, LOOPBACK, Authority
from tests.gateway.proxy import messages as m
from tests.weir_process import wait_until

METRIC = "weir_tls_certificate_expiry_timestamp_seconds"


def days_left(weir, key: str) -> float:
    return (weir.metric(METRIC, config_key=f"listeners[clients].tls.{key}") - time.time()) / DAY.total_seconds()


@pytest.mark.parametrize("workers", [1, 2])
def test_expiry_is_that_of_the_certificate_in_use(workers, broker, start_weir, tmp_path):
    authority = Authority(tmp_path / "pki")
    files = authority.issue("first", LOOPBACK, valid=(-DAY, 5 * DAY))
    tls = {"cert": str(files.cert), "key": str(files.key), "client_ca": str(authority.cert), "client_auth": "requested"}
    sharing = {"workers": workers} if workers > 1 else {}
    weir = start_weir(broker.bootstrap_servers, listener={"tls": tls}, **sharing)
    assert days_left(weir, "cert") == pytest.approx(5, abs=0.1)
    assert days_left(weir, "client_ca") == pytest.approx(30, abs=0.1)
    files.cert.write_bytes(authority.issue("other", LOOPBACK, valid=(-DAY, 9 * DAY)).cert.read_bytes())
    wait_until(lambda: weir.metric("weir_tls_reloads_total", result="failure") > 0, "a half of the new files is refused")
    assert days_left(weir, "cert") == pytest.approx(5, abs=0.1)
    files.replace_with(authority.issue("second", LOOPBACK, valid=(-DAY, 20 * DAY)))
    wait_until(lambda: days_left(weir, "cert") > 19, "the new certificate is in use")


def test_replaced_files_are_named_in_the_log(broker, start_weir, tmp_path):
    authority = Authority(tmp_path / "pki")
    files, expired = (authority.issue(name, LOOPBACK, valid=(-9 * DAY, end)) for name, end in (("a", 20 * DAY), ("b", -DAY)))
    weir = start_weir(broker.bootstrap_servers, listener={"tls": {"cert": str(files.cert), "key": str(files.key)}})
    key = files.key.read_bytes()
    for text, fault in ((b"text", "holds no private key"), (expired.key.read_bytes(), "is not the key of the certificate")):
        files.key.write_bytes(text)
        (line,) = weir.logged(fault)
        assert line["msg"].startswith("listeners[clients].tls: the files have changed and can't be used")
        assert f"(value {files.key})" in line["msg"]
    files.key.write_bytes(key)
    wait_until(lambda: weir.metric("weir_tls_reloads_total", result="success") == 1, "the certificate is used again")
    files.replace_with(expired)
    (line,) = weir.logged("expired on")
    assert (line["level"], str(files.cert) in line["msg"]) == ("warning", True)


def beats(weir, context, session=None):
    """Log in by TLS, and return the session after an answer, or None if the gateway closes the connection."""
    host, _, port = weir.bootstrap_servers.rpartition(":")
    with (
        socket.create_connection((host, int(port)), timeout=20.0) as plain,
        context.wrap_socket(plain, server_hostname=host, session=session) as client,
    ):
        assert client.session_reused is (session is not None)
        try:
            client.sendall(m.api_versions(1))
            return client.session if client.recv(1) else None
        except ConnectionError:
            return None


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_expired_client_cannot_resume_its_session(version, broker, start_weir, tmp_path, faults):
    """OpenSSL looks at the certificate in the first handshake only, and each session gives a ticket for the next one."""
    authority = Authority(tmp_path / "pki")
    server, mine = authority.issue("server", LOOPBACK), authority.issue("client", valid=(-DAY, 5 * DAY))
    tls = {"cert": str(server.cert), "key": str(server.key), "client_ca": str(authority.cert), "client_auth": "required"}
    weir = start_weir(broker.bootstrap_servers, listener={"tls": tls})
    context = ssl.create_default_context(cafile=authority.cert)
    context.load_cert_chain(mine.cert, mine.key)
    context.maximum_version = version
    session = beats(weir, context)
    faults("wall", 4 * DAY.total_seconds())
    session = beats(weir, context, session)
    assert session is not None
    faults("wall", 6 * DAY.total_seconds())
    assert beats(weir, context, session) is None
    assert weir.metric("weir_tls_handshake_failures_total", reason="expired") == 1
