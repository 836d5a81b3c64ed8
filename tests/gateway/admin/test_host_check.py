"""The host names that the admin server accepts."""

import socket

import pytest

from gateway.admin.host_check import HostCheck

LISTED = ("weir.example.com", ".corp.example")


@pytest.mark.parametrize(
    "host",
    ["", "localhost", "LocalHost.:9644", "a.localhost", "127.0.0.1:9644", "8.8.8.8", "[::1]", "[2001:db8::1]:9644", "::1",
     "ip6-localhost", "weir.example.com:80", "WEIR.example.com.", "corp.example", "a.b.corp.example", socket.gethostname()],
)  # fmt: skip
def test_listed_hosts_are_allowed(host):
    assert HostCheck("127.0.0.1", lambda: LISTED).allows(host)


@pytest.mark.parametrize(
    "host",
    ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "xcorp.example", "a.weir.example.com", "2130706433",
     "app", "user@localhost", "[evil.example]:80", "127.0.0.1, evil.example"],
)  # fmt: skip
def test_other_hosts_are_refused(host):
    assert not HostCheck("127.0.0.1", lambda: LISTED).allows(host)


@pytest.mark.parametrize(("bound", "allowed"), [("0.0.0.0", True), ("10.0.0.5", True), ("localhost", False), ("::1", False)])
def test_name_without_dots_needs_reachable_port(bound, allowed):
    assert HostCheck(bound, tuple).allows("weir:9644") is allowed


def test_bound_name_is_allowed():
    assert HostCheck("gw.corp.example", tuple).allows("gw.corp.example:9644")


def test_full_name_is_learned(monkeypatch):
    subject = HostCheck("127.0.0.1", tuple)
    monkeypatch.setattr(socket, "getfqdn", lambda: "gw1.corp.example")
    assert not subject.allows("gw1.corp.example")
    subject.learn_full_name().join()
    assert subject.allows("gw1.corp.example")
