"""The modules that get mutants, and the quick tests that have to notice them."""

from dataclasses import dataclass, field
from pathlib import Path

_ENGINE = "tests/gateway/quotas/"
_PROXY = "tests/gateway/proxy/"
_SESSIONS = tuple(
    f"{_PROXY}test_{name}.py"
    for name in (
        "any_order", "arriving_first_request", "channel_throttle", "collected", "consumers", "draining", "handler", "in_flight",
        "locks_on_connection", "members_on_connection", "membership", "mute_states", "pass_through", "protocol_errors",
        "request_rate_on_connection", "sessions", "splitter", "states", "throttle_on_connection", "user_limits",
        "waiting_for_debt",
    )
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Area:
    """`tests` meet the mutants of functions. `at_import` has tests for each module that meet the mutants of other code."""

    name: str
    modules: tuple[str, ...]
    tests: tuple[str, ...]
    at_import: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def import_tests(self, module: str) -> tuple[str, ...]:
        own = [str(file) for file in self.test_files() if file.name == f"test_{Path(module).name}"]
        return (*own, *self.at_import.get(module, ()))

    def test_files(self) -> list[Path]:
        paths = [Path(test) for test in self.tests]
        return sorted(file for path in paths for file in ([path] if path.suffix else path.rglob("*.py")))


AREAS = (
    Area(
        "quotas",
        tuple(sorted(str(file) for file in Path("gateway/quotas").glob("*.py") if file.name != "__init__.py")),
        (
            _ENGINE,
            *(f"{_PROXY}test_{name}.py" for name in (
                "arriving_first_request", "catch_up_on_connection", "channel_throttle", "consumers",
                "group_shares_on_connection", "groups_on_connection", "members_on_connection", "request_rate_on_connection",
                "shadows_on_connection", "throttle_on_connection", "waiting_for_debt",
            )),
            "tests/gateway/features/recent_use/test_rules.py",
            "tests/gateway/features/sharing/test_shared_usage.py",
            "tests/gateway/features/sharing/test_group_demands.py",
            "tests/gateway/features/sharing/test_unenforced_sharing.py",
            "tests/gateway/admin/test_table.py",
            "tests/gateway/config/test_timed_rows.py",
        ),
        {
            "gateway/quotas/entity.py": (
                f"{_ENGINE}test_names.py", f"{_ENGINE}test_quota_table.py", f"{_ENGINE}test_engine_buckets.py",
            ),
            "gateway/quotas/line.py": (f"{_ENGINE}test_bucket.py", f"{_PROXY}test_arriving_first_request.py"),
            "gateway/quotas/schedule.py": ("tests/gateway/config/test_timed_rows.py",),
            "gateway/quotas/group_buckets.py": (f"{_ENGINE}test_group_shares.py",),
            "gateway/quotas/group_meter.py": (f"{_ENGINE}test_group_buckets.py", f"{_ENGINE}test_group_shares.py"),
            "gateway/quotas/group_tree.py": (f"{_ENGINE}test_group_buckets.py", f"{_ENGINE}test_fair_share.py"),
            "gateway/quotas/meter.py": (f"{_ENGINE}test_token_bucket.py", f"{_ENGINE}test_rate.py"),
            "gateway/quotas/recent_use.py": ("tests/gateway/features/recent_use/test_rules.py",),
            "gateway/quotas/settings.py": (f"{_ENGINE}test_engine.py", f"{_ENGINE}test_engine_buckets.py"),
            "gateway/quotas/snapshot.py": (f"{_ENGINE}test_merged_rows.py", "tests/gateway/admin/test_table.py"),
        },
    ),
    Area(
        "framing",
        (
            "protocol/framing.py", "protocol/headers.py", "protocol/cursor.py", "protocol/throttle.py",
            "protocol/proxy_header.py",
            "gateway/proxy/splitter.py", "gateway/proxy/collected.py",
        ),
        (
            "tests/protocol/test_cursor.py", "tests/protocol/test_framing.py", "tests/protocol/test_headers.py",
            "tests/protocol/test_proxy_header.py", "tests/protocol/test_throttle.py",
            *_SESSIONS,
        ),
    ),
    Area(
        "states",
        (
            "gateway/proxy/states.py", "gateway/proxy/channel_throttle.py", "gateway/proxy/in_flight.py",
            "gateway/proxy/membership.py", "gateway/proxy/sessions.py", "gateway/proxy/authentication/sasl_states.py",
        ),
        (*_SESSIONS, f"{_PROXY}authentication", f"{_PROXY}handlers"),
        {
            "gateway/proxy/states.py": tuple(f"{_PROXY}test_{name}.py" for name in ("mute_states",)),
            "gateway/proxy/channel_throttle.py": (f"{_PROXY}test_channel_throttle.py",),
        },
    ),
)  # fmt: skip
