"""A quota kind is one module: a toy kind in a folder of its own reaches every consumer of the registry.

Many consumers read the registry while they are imported. So the checks, `toy_kind_checks.py`, run in a process of their own.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[4]
CHECKS = Path(__file__).with_name("toy_kind_checks.py")

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
