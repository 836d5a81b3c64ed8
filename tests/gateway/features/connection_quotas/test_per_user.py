"""The limits on connections of users: counts and rates, without sockets."""

from collections import Counter

import pytest

from gateway.features.connection_quotas.per_user import LONGEST_WAIT_SECONDS, LOOKUPS, MAX_REFUSED
from gateway.features.connection_quotas.rules import ConnectionLimits, ConnectionQuotas, ConnectionSlot
from gateway.quotas.engine import QuotaEngine
from gateway.quotas.entity import DEFAULT, ClientQuotaEntity, EntityQuota, short_name
from gateway.quotas.kind_buckets import BUCKET_IDLE_SECONDS
from gateway.quotas.settings import QuotaSettings
from tests.gateway.quotas.engines import rows_of

START = 1_000.0
MOST, RATE = "max_connections", "connection_creation_rate"


def settings(*rows, exempt=(), **rest):
    """`rows`: (user, key, limit)."""
    quotas = [EntityQuota(ClientQuotaEntity(user), {key: limit}) for user, key, limit in rows]
    quotas += [EntityQuota(ClientQuotaEntity(user), exempt=True) for user in exempt]
    return QuotaSettings(tuple(quotas), **rest)


class Gateway:
    """Connections that are accepted from one address and then authenticate."""

    def __init__(self, *rows, **rest):
        self.engine = QuotaEngine(settings(*rows, **rest), START)
        self.quotas = ConnectionQuotas(self.engine, ConnectionLimits(100_000, listeners={"clients": NONE}), START)
        self.refusals = []
        self.quotas.on_refusal(lambda slot, user, reason: self.refusals.append((slot.ip, slot.listener, user, reason)))

    def slot(self):
        slot = self.quotas.accept("clients", "10.0.0.1", START)
        assert isinstance(slot, ConnectionSlot)
        return slot

    def log_in(self, user="alice", now=START):
        slot = self.slot()
        return slot, slot.identify(user, now)

    def admitted(self, count, user="alice", now=START):
        """Admit that many connections; returns their slots."""
        found = [self.log_in(user, now) for _ in range(count)]
        assert [verdict.refusal for _, verdict in found] == [""] * count
        return [slot for slot, _ in found]


NONE = ConnectionLimits(1).gateway


@pytest.mark.parametrize(
    ("rows", "exempt", "user", "most"),
    [
        ([("alice", MOST, 2)], (), "alice", 2),
        ([("alice", MOST, 2)], (), "bob", None),
        ([(DEFAULT, MOST, 3)], (), "bob", 3),
        ([(DEFAULT, MOST, 3), ("bob", MOST, 1)], (), "bob", 1),
        ([(DEFAULT, MOST, 3)], ("bob",), "bob", None),
        ([("ANONYMOUS", MOST, 1)], (), "ANONYMOUS", 1),
        ([("a" * 300, MOST, 2)], (), "a" * 300, 2),
    ],
)
def test_user_has_at_most_max_connections(rows, exempt, user, most):
    gateway = Gateway(*rows, exempt=exempt)
    gateway.admitted(20 if most is None else most, user)
    _, verdict = gateway.log_in(user)
    assert verdict.refusal == ("" if most is None else "max_per_user")
    if most is not None:
        assert verdict.delay == 1.0  # the client does not come back at once
        assert gateway.refusals == [("10.0.0.1", "clients", user, "max_per_user")]


def test_closed_connection_makes_room():
    gateway = Gateway(("alice", MOST, 1))
    (slot,) = gateway.admitted(1)
    refused, _ = gateway.log_in()
    slot.release()
    slot.release()
    assert gateway.quotas.users.count("alice") == 0
    gateway.admitted(1)
    refused.release()
    assert gateway.quotas.users.count("alice") == 1


def test_second_authentication_counts_nothing():
    gateway = Gateway(("alice", MOST, 1), ("alice", RATE, 1))
    slot, _ = gateway.log_in()
    for _ in range(100):
        assert slot.identify("alice", START).delay == 0.0
    assert gateway.quotas.users.count("alice") == 1
    (row,) = rows_of(gateway.engine, START)
    assert (row.user, row.amount_total) == ("alice", 1)


def test_another_user_of_the_connection_replaces_the_first():
    gateway = Gateway(("ANONYMOUS", MOST, 1), ("alice", MOST, 1))
    slot, _ = gateway.log_in("ANONYMOUS")
    assert slot.identify("alice", START).refusal == ""
    users = gateway.quotas.users
    assert (users.count("ANONYMOUS"), users.count("alice")) == (0, 1)


def test_limit_of_a_reload_counts_open_connections():
    gateway = Gateway()
    gateway.admitted(5)
    gateway.admitted(1, "bob")
    gateway.engine.apply(settings(("alice", MOST, 5)), START)
    assert gateway.log_in()[1].refusal == "max_per_user"
    assert list(gateway.quotas.users.limited()) == [("alice", 5, 5)]


def test_unenforced_limits_refuse_nobody():
    gateway = Gateway(("alice", MOST, 1), ("alice", RATE, 1), enforce=False)
    gateway.admitted(200)
    _, verdict = gateway.log_in()
    assert (verdict.refusal, verdict.enforced) == ("", False)
    (row,) = rows_of(gateway.engine, START)
    assert row.throttled_total == 191  # the burst is ten connections


def test_connection_over_rate_waits_for_its_turn():
    gateway = Gateway(("alice", RATE, 2))
    gateway.admitted(20)  # the burst
    delays = [gateway.log_in()[1].delay for _ in range(4)]
    assert delays == pytest.approx([0.5, 1.0, 1.5, 2.0])
    assert gateway.log_in("bob")[1].delay == 0.0


def test_connection_with_a_long_wait_is_refused_and_not_charged():
    gateway = Gateway(("alice", RATE, 1))
    gateway.admitted(10 + int(LONGEST_WAIT_SECONDS))
    for _ in range(50):
        _, verdict = gateway.log_in()
        assert (verdict.refusal, verdict.delay) == ("creation_rate_per_user", 1.0)
    _, later = gateway.log_in(now=START + 1.0)
    assert (later.refusal, later.delay) == ("", pytest.approx(LONGEST_WAIT_SECONDS))


def test_connection_over_the_rate_of_a_window_is_refused():
    gateway = Gateway(("alice", RATE, 2), algorithm="window")
    gateway.admitted(20)
    assert [gateway.log_in()[1].refusal for _ in range(4)] == ["creation_rate_per_user"] * 4
    gateway.admitted(20, now=START + 11.0)


def test_users_get_at_most_the_rate_of_a_window():
    gateway = Gateway(("alice", RATE, 5), algorithm="window")
    served = [now for now in range(330) for _ in range(50) if not gateway.log_in(now=START + now)[1].refused]
    assert len(served) <= 330 * 5


def test_users_get_exactly_the_rate():
    gateway = Gateway(("alice", RATE, 5))
    gateway.admitted(50)
    served = [(verdict.delay, now) for now in range(100) for _ in range(8)
              if not (verdict := gateway.log_in(now=START + now)[1]).refusal]  # fmt: skip
    due = sorted(delay + now for delay, now in served)
    assert len([when for when in due if when <= 100.0]) == 500


def test_bucket_of_a_user_is_dropped_after_an_hour():
    gateway = Gateway(("alice", RATE, 2))
    gateway.admitted(1)
    gateway.engine.tick(START + 1.0)
    gateway.engine.tick(START + 1.0 + BUCKET_IDLE_SECONDS)
    assert list(gateway.engine.buckets()) == []


@pytest.mark.parametrize(("key", "admitted"), [(MOST, 1), (RATE, 10 + int(LONGEST_WAIT_SECONDS))])
def test_few_refused_connections_stay_open(key, admitted):
    gateway = Gateway(("alice", key, 1))
    gateway.admitted(admitted)
    refused = [gateway.log_in() for _ in range(MAX_REFUSED + 1)]
    assert [verdict.delay for _, verdict in refused[-2:]] == [1.0, 0.0]
    for slot, _ in refused[:2]:
        slot.release()
    assert gateway.log_in()[1].delay == 1.0


def test_connections_of_peers_count():
    gateway = Gateway(("alice", MOST, 10), ("b" * 300, MOST, 10))
    gateway.admitted(3)
    gateway.quotas.heed_peers({("user", "alice"): 6, ("user", short_name("b" * 300)): 10}, 1)
    gateway.admitted(1)
    assert gateway.log_in()[1].refusal == gateway.log_in("b" * 300)[1].refusal == "max_per_user"
    gateway.quotas.heed_peers({}, 1)
    gateway.admitted(6)


def test_unreachable_gateway_has_its_part():
    gateway = Gateway(("alice", MOST, 10), ("bob", MOST, 1))
    gateway.quotas.heed_peers({}, 4)
    gateway.admitted(2)
    gateway.admitted(1, "bob")
    assert gateway.log_in()[1].refusal == gateway.log_in("bob")[1].refusal == "max_per_user"


def test_limits_of_many_users_follow_a_reload_in_parts():
    gateway = Gateway((DEFAULT, MOST, 5))
    for number in range(LOOKUPS + 10):
        gateway.admitted(1, f"u{number}")
    gateway.engine.apply(settings((DEFAULT, MOST, 7)), START)
    found = [Counter(most for _, _, most in gateway.quotas.users.limited()) for _ in range(2)]
    assert found == [{7: LOOKUPS, 5: 10}, {7: LOOKUPS + 10}]
