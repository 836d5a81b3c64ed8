"""Host names in entities of type `ip`: at most one lookup at a time, and slow name servers hold up little."""

import asyncio
from socket import AF_INET, AF_INET6, SOCK_STREAM

import pytest

from gateway.features.quota_api import host_names
from gateway.features.quota_api.host_names import HostNames


class Dns:
    """Name servers: `slow` names have no answer until the test sets `answer`."""

    def __init__(self, *slow):
        self.slow = slow
        self.answer = asyncio.Event()
        self.running = 0
        self.most = 0
        self.asked = []

    async def lookup(self, name):
        self.asked.append(name)
        self.running += 1
        self.most = max(self.most, self.running)
        if name in self.slow:
            await self.answer.wait()
        await asyncio.sleep(0)
        self.running -= 1
        return "10.0.0.1"


async def test_addresses_need_no_lookup(monkeypatch):
    monkeypatch.setattr(host_names, "_lookup", None)
    assert await HostNames().addresses(["10.0.0.7", "[::1]", "::0001", "::ffff:10.0.0.7"]) == {
        "10.0.0.7": "10.0.0.7",
        "::ffff:10.0.0.7": "10.0.0.7",
        "[::1]": "::1",
        "::0001": "::1",
    }


async def test_names_are_looked_up_one_by_one(monkeypatch):
    dns = Dns()
    monkeypatch.setattr(host_names, "_lookup", dns.lookup)
    monkeypatch.setattr(host_names, "LOOKUP_SECONDS", 60.0)
    names = [f"h{number}" for number in range(5_000)]
    assert await HostNames().addresses(names) == dict.fromkeys(names, "10.0.0.1")
    assert dns.most == 1


async def test_slow_lookup_is_never_doubled(monkeypatch):
    """A second call waits for the slow lookup of the first, and goes on once that is over."""
    monkeypatch.setattr(host_names, "LOOKUP_SECONDS", 0.01)
    dns = Dns("slow")
    monkeypatch.setattr(host_names, "_lookup", dns.lookup)
    found = HostNames()
    for _ in range(3):
        assert await found.addresses(["slow", "10.0.0.7"]) == {"10.0.0.7": "10.0.0.7"}
    assert dns.asked == ["slow"]
    dns.answer.set()
    monkeypatch.setattr(host_names, "LOOKUP_SECONDS", 60.0)
    assert await found.addresses(["slow"]) == {"slow": "10.0.0.1"}
    assert dns.most == 1


@pytest.mark.parametrize(
    ("addresses", "expected"),
    [
        (["2001:db8::7", "10.0.0.8", "10.0.0.7"], "10.0.0.8"),
        (["10.0.0.7", "2001:db8::7"], "10.0.0.7"),
        (["2001:db8::8", "2001:db8::7"], "2001:db8::8"),
    ],
)
async def test_name_with_both_families_has_its_first_ipv4_address(monkeypatch, addresses, expected):
    """Java's `InetAddress.getByName`, which brokers use, prefers IPv4. RFC 6724 sorts IPv6 first."""

    async def resolve(name, port):
        return [
            (AF_INET6, SOCK_STREAM, 6, "", (ip, 0, 0, 0)) if ":" in ip else (AF_INET, SOCK_STREAM, 6, "", (ip, 0))
            for ip in addresses
        ]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolve)
    assert await HostNames().addresses(["dual.example.com"]) == {"dual.example.com": expected}


@pytest.mark.parametrize("name", ["nowhere.invalid", "not a host", "a\0b", "", "x" * 5_000])
async def test_name_without_address_is_left_out(name):
    assert await HostNames().addresses([name]) == {}
