import socket

import pytest

from gateway.proxy.listeners.accept_queue import AcceptQueue

pytestmark = pytest.mark.skipif(not hasattr(socket, "TCP_INFO"), reason="only Linux tells how long the queue is")


@pytest.fixture(params=["127.0.0.1", "::1"])
def bound(request):
    family = socket.AF_INET6 if ":" in request.param else socket.AF_INET
    with socket.create_server((request.param, 0), family=family) as bound:
        bound.setblocking(False)
        yield bound


@pytest.fixture
def clients(bound):
    opened = [socket.create_connection(bound.getsockname()[:2]) for _ in range(3)]
    yield opened
    for client in opened:
        client.close()


def test_queue_tells_the_number_of_waiting_connections(bound, clients):
    queue = AcceptQueue(bound, bare=True)
    numbers = []
    for _ in clients:
        numbers.append(queue.waiting())
        queue.take()[0].close()
    assert numbers == [3, 2, 1]


def test_empty_queue_is_worth_one_look(bound):
    queue = AcceptQueue(bound, bare=True)
    assert queue.waiting() == 1
    with pytest.raises(BlockingIOError):
        queue.take()


def test_closed_queue_has_no_connection(bound):
    queue = AcceptQueue(bound, bare=True)
    bound.close()
    assert queue.waiting() == 0


@pytest.mark.parametrize("bare", [True, False])
def test_taken_socket_is_that_of_the_client(bound, clients, bare):
    connection, address = AcceptQueue(bound, bare=bare).take()
    with clients[0] as client:
        assert (address, connection.getpeername()) == (client.getsockname(), client.getsockname())
        assert (connection.family, connection.type) == (bound.family, socket.SOCK_STREAM)
        assert isinstance(connection, socket.socket) is not bare
        client.sendall(b"hello")
        connection.settimeout(10)
        assert connection.recv(5) == b"hello"
    connection.close()
