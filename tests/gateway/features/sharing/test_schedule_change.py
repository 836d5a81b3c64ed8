"""Two gateways that share a quota, while a temporary row ends. Their wall clocks differ by half a second."""

from datetime import UTC, datetime, timedelta

import pytest

from gateway.events import GrantExpired, QuotaChanged
from gateway.features.client_quotas.feature import ClientQuotas, quota_settings
from gateway.features.sharing.member import Member
from gateway.observer import Outlet
from gateway.quotas.engine import QuotaEngine
from tests.gateway.config.texts import entities, parsed

END = datetime(2026, 12, 1, 6, tzinfo=UTC)
INTERVAL = 0.2
STEP = 0.02
REQUEST = 1_000
BEFORE, AFTER = 80_000, 20_000
LATE = 0.5


class ScheduledGateway:
    """An engine with temporary rows, a member, and one client that sends as fast as the quota lets it."""

    def __init__(self, number: int, rows: tuple[str, ...], wall: datetime, now: float) -> None:
        self.wall = wall
        self.events: list[object] = []
        section = parsed(entities(*rows)).quotas
        self.engine = QuotaEngine(quota_settings(section.at(wall)[0]), now, shared=True)
        outlet = Outlet(f"weir-{number}", [self])
        self.quotas = ClientQuotas(section, self.engine, outlet, lambda: None, lambda: self.wall)
        self.member = Member(f"{number + 1:016x}", self.engine, INTERVAL, now)
        self.muted_until = 0.0

    def notify(self, event: object) -> None:
        self.events.append(event)

    def sends(self, now: float) -> int:
        """The bytes that the client sends until it is muted. Ten requests fit into one step."""
        sent = 0
        (bucket,) = self.engine.acquire_path("produce", "alice", "etl", now)
        while now >= self.muted_until and sent < 10 * REQUEST:
            sent += REQUEST
            self.muted_until = now + bucket.charge(REQUEST, now)[0]
        self.engine.release(bucket, now)
        return sent


class Schedule:
    def __init__(self, monkeypatch: pytest.MonkeyPatch, *rows: str) -> None:
        self.now = 1_000.0
        monkeypatch.setattr("gateway.clock.monotonic", lambda: self.now)
        self.gateways = [
            ScheduledGateway(number, rows, END - timedelta(seconds=20.0 + LATE * number), self.now) for number in range(2)
        ]

    def second(self) -> int:
        """The bytes of both clients within the next second."""
        sent = 0
        for step in range(1, round(1.0 / STEP) + 1):
            self.now += STEP
            for gateway in self.gateways:
                gateway.wall += timedelta(seconds=STEP)
                gateway.quotas.look(gateway.wall)
                sent += gateway.sends(self.now)
            if step % round(INTERVAL / STEP) == 0:
                records = [record for gateway in self.gateways for record in gateway.member.step(self.now)]
                for gateway in self.gateways:
                    for record in records:
                        gateway.member.receive(*record, self.now)
        for gateway in self.gateways:
            gateway.engine.tick(self.now)
        return sent


ROW = f"{{user: alice, producer_byte_rate: {AFTER}}}"
GRANT = f"{{user: alice, producer_byte_rate: {BEFORE}, until: 2026-12-01T06:00Z}}"
NIGHT = f'{{user: alice, producer_byte_rate: {BEFORE}, schedule: {{from: "22:00", to: "06:00", zone: UTC}}}}'


@pytest.mark.parametrize("row", [GRANT, NIGHT])
def test_both_gateways_keep_the_new_limit_after_the_end(monkeypatch: pytest.MonkeyPatch, row: str) -> None:
    schedule = Schedule(monkeypatch, ROW, row)
    seconds = [schedule.second() for _ in range(50)]
    before, change, after = seconds[10:20], seconds[20:22], seconds[22:]
    assert sum(before) == pytest.approx(BEFORE * len(before), rel=0.03)
    # Until the later clock reaches the end, its gateway still gives the old limit.
    assert sum(change) <= BEFORE * LATE + AFTER * len(change) + 2 * AFTER
    assert sum(after) == pytest.approx(AFTER * len(after), rel=0.03)
    assert min(after) > 0


def test_each_gateway_reports_the_end_of_a_grant_once(monkeypatch: pytest.MonkeyPatch) -> None:
    schedule = Schedule(monkeypatch, ROW, GRANT)
    for _ in range(25):
        schedule.second()
    expired = [event for gateway in schedule.gateways for event in gateway.events if isinstance(event, GrantExpired)]
    assert [event.gateway for event in expired] == ["weir-0", "weir-1"]
    assert {event.time_ms for event in expired} == {int(END.timestamp() * 1000)}
    changed = [event for gateway in schedule.gateways for event in gateway.events if isinstance(event, QuotaChanged)]
    assert [(event.gateway, event.old_limit, event.new_limit) for event in changed] == [
        ("weir-0", BEFORE, AFTER),
        ("weir-1", BEFORE, AFTER),
    ]
