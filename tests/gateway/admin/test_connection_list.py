"""`/api/connections` and `weir connections`: rows, filters, orders, and bytes per second by a clock that the test moves."""

import argparse
import io
from dataclasses import replace

import aiohttp
import pytest
from rich.console import Console

from gateway.admin.connection_list import (
    DEFAULT_LIMIT,
    FILTERS,
    MAX_LIMIT,
    MAX_OFFSET,
    SORTS,
    ConnectionList,
    ConnectionQuery,
    merged,
)
from gateway.admin.connections_command import add_connections, print_connections, query_of
from gateway.admin.query import QueryError
from gateway.admin.server import AdminServer
from gateway.admin.view import AdminView
from gateway.commands import main
from gateway.proxy.sessions import ConnectionFacts
from loadtest.testkit.kafka import free_port
from tests.gateway.admin.serving import served

START = 1_000.0
PLAIN = ConnectionFacts("alice", "etl", "librdkafka", "2.3.0", "10.0.0.1:5001", "clients", None, START, 0, 0, "", 0.0)
EVERYBODY = [
    PLAIN,
    replace(PLAIN, user="bob", address="10.0.0.2:5002", broker=3, begun=START - 60, received_bytes=900, sent_bytes=100),
    replace(PLAIN, client_id="job-1", address="::1:5003", listener="tls", throttled_by="producer_byte_rate of user=alice",
            throttle_left=2.5, begun=START - 30, received_bytes=5_000, group="jobs"),
    replace(PLAIN, client_id="job-2", address="10.0.0.1:5004", software_name="", software_version="", broker=11,
            throttled_by="volumes", throttle_left=0.5, begun=START - 10),
]  # fmt: skip


class OneSession:
    def __init__(self, facts):
        self.current = facts

    def facts(self, now):
        return self.current


@pytest.fixture
def clock():
    """A clock that only sleeps move."""

    class Clock:
        now = START
        slept = 0.0

        def __call__(self):
            return self.now

        async def sleep(self, seconds):
            self.now += seconds
            self.slept += seconds

    return Clock()


def listed(clock, *facts):
    sessions = [OneSession(each) for each in facts or EVERYBODY]
    return sessions, ConnectionList(lambda: sessions, clock, lambda: 1_700_000_000.0 + clock.now - START, clock.sleep)


async def addresses(clock, **query):
    _, connections = listed(clock)
    answer = await connections.answer(ConnectionQuery.parse({name.replace("_", "-"): text for name, text in query.items()}))
    return [row["address"].rpartition(":")[2] for row in answer["rows"]]


async def test_row_has_the_facts_of_a_connection(clock) -> None:
    _, connections = listed(clock, EVERYBODY[2])
    (row,) = (await connections.answer(ConnectionQuery()))["rows"]
    assert row == {
        "user": "alice",
        "client_id": "job-1",
        "group": "jobs",
        "software_name": "librdkafka",
        "software_version": "2.3.0",
        "address": "::1:5003",
        "listener": "tls",
        "broker": None,
        "since": "2023-11-14T22:12:50.000Z",
        "bytes_per_second": 0.0,
        "received_bytes_per_second": 0.0,
        "sent_bytes_per_second": 0.0,
        "throttled_by": "producer_byte_rate of user=alice",
        "throttle_left": 2.5,
    }


@pytest.mark.parametrize(
    ("query", "ports"),
    [
        ({"user": "bob"}, ["5002"]),
        ({"client_id": "job-1"}, ["5003"]),
        ({"group": "jobs"}, ["5003"]),
        ({"group": ""}, ["5001", "5002", "5004"]),
        ({"text": "jobs"}, ["5003"]),
        ({"ip": "10.0.0.1"}, ["5001", "5004"]),
        ({"ip": "0:0::1"}, ["5003"]),
        ({"listener": "tls"}, ["5003"]),
        ({"broker": "3"}, ["5002"]),
        ({"software": "RDKAFKA 2"}, ["5001", "5002", "5003"]),
        ({"throttled": "true"}, ["5003", "5004"]),
        ({"throttled": "false"}, ["5001", "5002"]),
        ({"text": "alice job"}, ["5003", "5004"]),
        ({"user": "alice", "throttled": "false"}, ["5001"]),
        ({"user": "nobody"}, []),
    ],
)
async def test_filters_select_connections(clock, query, ports) -> None:
    assert sorted(await addresses(clock, **query)) == ports


@pytest.mark.parametrize(
    ("query", "ports"),
    [
        ({"sort": "throttle"}, ["5003", "5004", "5001", "5002"]),
        ({"sort": "since"}, ["5002", "5003", "5004", "5001"]),
        ({"sort": "since", "reverse": "true"}, ["5001", "5004", "5003", "5002"]),
        ({"sort": "user"}, ["5001", "5004", "5003", "5002"]),
        ({"sort": "client-id"}, ["5001", "5002", "5003", "5004"]),
        ({"sort": "group", "reverse": "true", "limit": "1"}, ["5003"]),
        ({"sort": "software"}, ["5004", "5001", "5002", "5003"]),
        ({"sort": "broker"}, ["5001", "5003", "5002", "5004"]),
        ({"sort": "ip", "limit": "2"}, ["5001", "5004"]),
        ({"sort": "ip", "limit": "2", "offset": "1"}, ["5004", "5002"]),
        ({"sort": "ip", "limit": "1", "offset": "1", "whole": "true"}, ["5001", "5004"]),
        ({"sort": "ip", "offset": str(MAX_OFFSET)}, []),
    ],
)
async def test_orders_and_parts_of_the_list(clock, query, ports) -> None:
    assert await addresses(clock, **query) == ports


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ({"users": "alice"}, "users: there is no such parameter: use some of user"),
        ({"sort": "rate"}, "sort: there is no order 'rate': use one of bytes"),
        ({"limit": "0"}, "limit: '0' is out of range: write a number from 1 to 1000"),
        ({"limit": "²"}, "limit: '²' is out of range"),
        ({"offset": "-1"}, "offset: '-1' is out of range: write a number from 0 to 10000"),
        ({"ip": "10.0.0"}, "ip: '10.0.0' is not an IP address: write one, such as 10.0.0.7"),
        ({"broker": "\u0663"}, "broker: '\u0663' is not the node id of a broker"),
        ({"broker": "b1"}, "broker: 'b1' is not the node id of a broker: write a number, such as 3"),
        ({"broker": "1" * 5_000}, "broker: '1111"),
        ({"throttled": "yes"}, "throttled: 'yes' is neither true nor false: write one of them"),
        ({"reverse": "1"}, "reverse: '1' is neither true nor false"),
    ],
)
def test_bad_parameter_is_named_with_remedy(query, message) -> None:
    with pytest.raises(QueryError) as caught:
        ConnectionQuery.parse(query)
    assert str(caught.value).startswith(message)


async def test_rate_is_that_of_the_last_second_or_more(clock) -> None:
    (session,), connections = listed(clock, replace(PLAIN, begun=START - 100, received_bytes=1_000))
    (row,) = (await connections.answer(ConnectionQuery()))["rows"]
    assert (row["bytes_per_second"], clock.slept) == (0.0, 1.0)  # the bytes before are not of this second
    clock.now += 4.0
    session.current = replace(session.current, received_bytes=5_000, sent_bytes=800)
    (row,) = (await connections.answer(ConnectionQuery()))["rows"]
    rates = [row[f"{name}bytes_per_second"] for name in ("", "received_", "sent_")]
    assert rates == [1_200.0, 1_000.0, 200.0]
    assert clock.slept == 1.0
    clock.now += 1_000.0
    await connections.answer(ConnectionQuery())
    assert clock.slept == 2.0  # a mean over 1000 s would say nothing


async def test_rate_of_a_new_connection_is_its_mean(clock) -> None:
    sessions, connections = listed(clock, PLAIN)
    await connections.answer(ConnectionQuery())
    clock.now += 4.0
    sessions.append(OneSession(replace(PLAIN, address="10.0.0.9:9", begun=clock.now - 2.0, received_bytes=500)))
    rows = (await connections.answer(ConnectionQuery.parse({"ip": "10.0.0.9"})))["rows"]
    assert [row["bytes_per_second"] for row in rows] == [250.0]


def test_answers_of_workers_become_one_list() -> None:
    rows = [{"address": f"10.0.0.{number}:1", "user": "u"} for number in range(6)]
    answers = [
        {"total": 9, "matching": 4, "rows": [rows[0], rows[2], rows[5]]},
        {"total": 1, "matching": 1, "rows": [rows[1]]},
    ]
    answer = merged(ConnectionQuery(sort="ip", limit=2, offset=1), answers)
    assert answer == {"total": 10, "matching": 5, "rows": [rows[1], rows[2]]}


def parsed(*arguments):
    parser = argparse.ArgumentParser()
    add_connections(parser.add_subparsers())
    return parser.parse_args(["connections", *arguments])


def test_every_parameter_has_an_option() -> None:
    filters = [f"--{name}={'10.0.0.1' if name == 'ip' else '3'}" for name in FILTERS if name != "throttled"]
    for sort in SORTS:
        query = query_of(parsed(*filters, "--throttled", "--reverse", f"--sort={sort}", "--limit=5", "--offset=7"))
        found = ConnectionQuery.parse(query)
        assert (found.filters.keys(), found.sort, found.reverse) == (set(FILTERS), sort, True)
        assert (found.limit, found.offset) == (5, 7)


def test_help_has_the_default_and_the_maximum_of_rows(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parsed("--help")
    assert f"from 1 to {MAX_LIMIT} (default: {DEFAULT_LIMIT})" in " ".join(capsys.readouterr().out.split())
    assert parsed().limit == str(DEFAULT_LIMIT)


async def test_table_shows_each_connection(clock) -> None:
    evil = replace(PLAIN, user="\x1b[2Jeve", address="10.0.0.66:1")
    _, connections = listed(clock, *EVERYBODY, evil)
    answer = {"generated_at": "now"} | await connections.answer(ConnectionQuery.parse({"limit": "4", "sort": "throttle"}))
    screen = io.StringIO()
    print_connections(answer, Console(file=screen, width=180, color_system=None))
    text = screen.getvalue()
    assert "producer_byte_rate of user=alice" in text
    assert "librdkafka 2.3.0" in text
    assert "2.5 s" in text
    assert "4 of 5 matching connections: use filters" in text
    assert "\x1b" not in text


@pytest.mark.parametrize("name", ["nope", "a:key:b"])  # rich prints an emoji in place of :key:
async def test_filter_without_a_match_is_named(clock, name) -> None:
    _, connections = listed(clock)
    answer = {"generated_at": "now"} | await connections.answer(ConnectionQuery.parse({"listener": name}))
    screen = io.StringIO()
    print_connections(answer, Console(file=screen, width=180, color_system=None), [f"--listener {name}"])
    assert screen.getvalue().startswith(f"4 open connections, and no connection matches --listener {name}: names must be equal")


@pytest.fixture
async def port(view: AdminView):
    view = replace(view, sessions=lambda: [OneSession(each) for each in EVERYBODY])
    async with served(AdminServer(view, ("127.0.0.1", 0))) as server:
        yield server.port


async def test_admin_server_answers_and_refuses(port: int) -> None:
    async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as client:
        async with client.get("/api/connections", params={"user": "bob", "sort": "since"}) as response:
            answer = await response.json()
            assert (answer["total"], answer["matching"], answer["sort"], answer["limit"]) == (4, 1, "since", 100)
        async with client.get("/api/connections", params={"sort": "rate"}) as response:
            assert response.status == 400
            assert (await response.text()).startswith("sort: there is no order 'rate'")


def test_unreachable_gateway_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["connections", "--admin", f"http://127.0.0.1:{free_port()}"]) == 1
    assert "can't be reached" in capsys.readouterr().err


async def test_connection_that_has_ended_meanwhile_is_left_out(clock) -> None:
    sessions, connections = listed(clock, *EVERYBODY[:2])
    sessions[0].current = None
    (row,) = (await connections.answer(ConnectionQuery()))["rows"]
    assert row["client_id"] == EVERYBODY[1].client_id
