"""Random quotas and uses: a broker's own quota managers, run with a set time, and Weir's engine have to agree."""

import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from gateway.features.controller_mutations.rules import MutationQuota
from gateway.quotas.engine import QuotaEngine
from gateway.quotas.entity import DEFAULT, ClientQuotaEntity, EntityName, EntityQuota
from gateway.quotas.line import Consumer
from gateway.quotas.meter import Window, throttle_time_ms
from gateway.quotas.quota_table import QuotaTable
from gateway.quotas.settings import QuotaSettings
from loadtest.testkit.kafka import run_tool
from protocol.throttle import MAX_THROTTLE_MS
from tests.broker.broker_features import QUOTA_MANAGERS
from tests.gateway.quotas.engines import bucket_of

pytestmark = pytest.mark.broker

TOOL = Path(__file__).with_name("QuotaManagers.java")
RUNS = 100
START_MS = 1_700_000_123
WINDOWS = [(11, 1), (2, 1), (3, 5), (1, 1)]
NO_LIMIT = float(2**63 - 1)


class Script:
    """The steps for the broker's managers, and Weir's result of each step that has one."""

    def __init__(self) -> None:
        self.steps: list[str] = []
        self.weirs: list[str] = []

    def do(self, *words: object) -> None:
        self.steps.append(" ".join(map(str, words)))

    def ask(self, weirs: object, *words: object) -> None:
        self.do(*words)
        self.weirs.append(str(weirs).lower())

    def brokers(self, directory: Path) -> Sequence[str]:
        (file := directory / "steps").write_text("\n".join(self.steps) + "\n")
        return run_tool(TOOL, str(file)).splitlines()


@pytest.fixture(autouse=True)
def need_quota_managers() -> None:
    QUOTA_MANAGERS.require()


def name(word: str) -> EntityName:
    return None if word == "-" else DEFAULT if word == "*" else word


def window_settings(limit: int, window: Window) -> QuotaSettings:
    quota = EntityQuota(ClientQuotaEntity("u"), {"consumer_byte_rate": float(limit)})
    return QuotaSettings((quota,), algorithm="window", window=window)


def test_each_client_has_the_brokers_limit_and_bucket(tmp_path: Path) -> None:
    script = Script()
    for seed in range(RUNS):
        choice = random.Random(seed)
        pairs = {(choice.choice("ab*-"), choice.choice("xy*-")) for _ in range(choice.randint(1, 7))} - {("-", "-")}
        limits = {pair: float(choice.randint(1, 1_000_000)) for pair in sorted(pairs)}
        script.do("bytes", 11, 1)
        for (user, client_id), limit in limits.items():
            script.do("set", user, client_id, limit)
        rows = [
            EntityQuota(ClientQuotaEntity(*map(name, pair)), {"consumer_byte_rate": limit}) for pair, limit in limits.items()
        ]
        table = QuotaTable(rows)
        for user, client_id in [(user, client_id) for user in "abc" for client_id in "xyz"]:
            found = table.resolve("consumer_byte_rate", user, client_id)
            tags = f"{found.tags.user or ''} {found.tags.client_id or ''}"
            script.ask("unlimited" if found.limit is None else f"{found.limit} {tags}", "limit", user, client_id)
    # Clients without a limit share buckets in other ways, which throttle nobody.
    theirs = ["unlimited" if float(line.split(" ")[0]) == NO_LIMIT else line for line in script.brokers(tmp_path)]
    assert theirs == script.weirs


def test_window_throttles_fetches_as_a_broker(tmp_path: Path) -> None:
    """A throttled response is taken back, and quotas change meanwhile."""
    script = Script()
    for seed in range(RUNS):
        choice = random.Random(seed)
        samples, seconds = choice.choice(WINDOWS)
        window, limit, now_ms = Window(samples, float(seconds)), 1_000, START_MS
        script.do("at", now_ms)
        script.do("bytes", samples, seconds)
        script.do("set", "u", "-", limit)
        engine = QuotaEngine(window_settings(limit, window), now_ms / 1000)
        bucket, consumer = bucket_of(engine, "fetch", "u", "c", now_ms / 1000), Consumer()
        for _ in range(40):
            now_ms += choice.choice([0, 1, 250, 999, 1_000, 1_001, choice.randint(0, samples * seconds * 1_100)])
            now = now_ms / 1000
            script.do("at", now_ms)
            if choice.random() < 0.1:
                limit = choice.choice([10, 333, 1_000, 65_536])
                script.do("set", "u", "-", limit)
                engine.apply(window_settings(limit, window), now)
            size = choice.choice([0, 17, choice.randint(0, limit), choice.randint(0, 12 * limit), 100 * limit])
            delay, _ = bucket.charge_fetch(consumer, size, now)
            script.ask(throttle_time_ms(delay), "record", "u", "c", size)
            if delay > 0.0:
                bucket.record(-size, now)
                script.do("unrecord", "u", "c", size)
    assert all(int(ours) < MAX_THROTTLE_MS for ours in script.weirs)
    assert script.brokers(tmp_path) == script.weirs


def test_mutations_are_refused_and_throttled_as_by_a_broker(tmp_path: Path) -> None:
    script = Script()
    for seed in range(RUNS):
        choice = random.Random(seed)
        samples, seconds = choice.choice(WINDOWS)
        rate, now_ms = choice.choice([0.2, 1.0, 2.5, 5.0]), START_MS
        script.do("at", now_ms)
        script.do("mutations", samples, seconds)
        script.do("set", "-", "c", rate)
        quota = EntityQuota(ClientQuotaEntity(None, "c"), {"controller_mutation_rate": rate})
        engine = QuotaEngine(QuotaSettings((quota,), window=Window(samples, float(seconds))), now_ms / 1000)
        bucket = bucket_of(engine, "controller_mutation", "u", "c", now_ms / 1000)
        for _ in range(20):
            now_ms += choice.choice([0, 1, 1_000, choice.randint(0, samples * seconds * 1_500)])
            now = now_ms / 1000
            script.do("at", now_ms)
            strict = choice.random() < 0.6
            script.do("strict" if strict else "permissive", "u", "c")
            request = MutationQuota((bucket,), strict=strict)
            for _ in range(choice.randint(0, 4)):
                partitions = choice.choice([1, 2, 10, int(samples * seconds * rate) + 1])
                # A permissive request that finds a debt waits in Weir. KRaft executes it, and so does this step.
                admitted = request.admit(partitions, now) if strict else True
                if admitted:
                    request.charge(partitions, now)
                    request.reserved = 0
                script.ask(admitted, "mutate", partitions)
            request.settle(now)
            script.ask(throttle_time_ms(request.time_left(now)), "throttle")
    assert script.brokers(tmp_path) == script.weirs
