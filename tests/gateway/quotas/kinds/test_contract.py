"""The rules of every quota kind, and a toy kind in a folder of its own that reaches every consumer of the registry.

Many consumers read the registry while they are imported. So the checks, `toy_kind_checks.py`, run in a process of their own.
"""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gateway.quotas.kinds import KINDS, by_name
from gateway.quotas.kinds.kind import QuotaKind

ROOT = Path(__file__).parents[4]
CHECKS = Path(__file__).with_name("toy_kind_checks.py")

CHARGED_BY_HANDLERS = {"fetch", "controller_mutation"}
"""The kinds whose amounts only a handler knows: from the response, or from the request's body."""

CHARGING = [kind for kind in KINDS.values() if kind.charge is not None]
each_kind = pytest.mark.parametrize("kind", CHARGING, ids=lambda kind: kind.name)


@each_kind
def test_some_code_charges_each_message_of_a_kind(kind: QuotaKind) -> None:
    assert kind.charge is not None
    assert kind.name in CHARGED_BY_HANDLERS or all(map(kind.charge.has_figure_for, kind.charge.apis)), (
        f'{kind.name}: nobody charges its messages — give its `charge` by="request" and per_message or per_byte above 0,'
        " or write a handler that charges, and add the kind to CHARGED_BY_HANDLERS"
    )


@each_kind
def test_mutes_of_a_kind_spare_members_or_have_warnings(kind: QuotaKind) -> None:
    assert kind.spares_members or kind.full_request is not None, (
        f"{kind.name}: a small quota may mute a client for longer than its session, and `weir check` would not warn of it"
        " — give the kind a `full_request`"
    )


@each_kind
def test_description_names_the_entity(kind: QuotaKind) -> None:
    """The description of a group's key has `all members together` instead."""
    assert "the entity" in kind.description


@pytest.mark.parametrize(
    ("field", "other"),
    [
        ("name", {"config_key": "spoon_rate", "order": 99}),
        ("config_key", {"name": "spoon", "order": 99}),
        ("order", {"name": "spoon", "config_key": "spoon_rate"}),
    ],
)
def test_kinds_with_one_name_key_or_order_are_refused(field: str, other: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"two kinds have the {field} .* — give one of them another"):
        by_name([*KINDS.values(), replace(KINDS["produce"], **other)])


TOY_KIND = '''
"""Teaspoons: two for each Heartbeat and each Produce."""

from gateway.quotas.kinds.kind import Charge, QuotaKind, Unit
from protocol.api_keys import ApiKey

KIND = QuotaKind(
    name="spoon",
    config_key="spoon_rate",
    unit=Unit("teaspoons", grafana="none"),
    description="teaspoons per second that the entity may stir",
    order=99,
    in_kafka=False,
    charge=Charge(frozenset({ApiKey.HEARTBEAT, ApiKey.PRODUCE}), by="request", per_message=2),
    largest=1_000,
    in_overview=True,
)
'''


@pytest.mark.process
def test_toy_kind_reaches_every_consumer(tmp_path: Path) -> None:
    (tmp_path / "spoon.py").write_text(TOY_KIND)
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", f"{__package__}.extra_kinds", str(CHECKS)],
        cwd=ROOT,
        env={**os.environ, "WEIR_TEST_KINDS": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
