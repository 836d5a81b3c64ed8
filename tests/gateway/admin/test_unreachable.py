"""An admin server that can't be reached: the cause and the remedy."""

import socket
import threading
from typing import Any

import aiohttp
import pytest

from gateway.commands import main

ADMIN = "weir.example.com"


@pytest.mark.parametrize(
    ("number", "cause"),
    [
        (socket.EAI_NONAME, f"the host name {ADMIN} is unknown"),
        (socket.EAI_AGAIN, f"the host name {ADMIN} can't be looked up: Try later"),
    ],
)
@pytest.mark.parametrize("command", ["quotas --once", "connections", "quotas forgive --user a"])
def test_unknown_host_is_named(number: int, cause: str, command: str, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    async def lookup(*_: Any, **__: Any) -> Any:
        raise socket.gaierror(number, "Try later")

    monkeypatch.setattr(aiohttp.ThreadedResolver, "resolve", lookup)
    assert main([*command.split(), "--admin", f"http://{ADMIN}:9644"]) == 1
    error = capsys.readouterr().err
    assert f"can't be reached: {cause} — correct the name in --admin, or give the address of the gateway's host" in error
    assert "ssl:default" not in error


def test_tls_to_a_port_without_it_has_a_remedy(capsys) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

        def answer() -> None:
            peer, _ = server.accept()
            with peer:
                peer.recv(1)
                peer.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                peer.recv(65_536)

        threading.Thread(target=answer, daemon=True).start()
        assert main(["quotas", "--once", "--admin", f"https://127.0.0.1:{port}"]) == 1
    error = capsys.readouterr().err
    assert "can't be reached: TLS fails: " in error
    assert "write http:// in --admin: Weir's own admin port has no TLS" in error
