"""Each port is handed out once, also to several processes."""

import subprocess
import sys

import pytest

from loadtest.testkit.kafka import ports

CHOICE = 20
ASK = """
from loadtest.testkit.kafka import ports
ports._LOWEST, ports._LEAST_CHOICE, ports._ephemeral_start = {0}, {1}, lambda: {0}
print(ports.free_port())
"""


@pytest.mark.process
def test_port_of_another_process_is_not_free() -> None:
    taken = ports.free_port_range(CHOICE)  # all ports that the other process may choose
    found = subprocess.run([sys.executable, "-c", ASK.format(taken, CHOICE)], capture_output=True, text=True, check=False)
    assert found.returncode == 1
    assert "no 1 consecutive free ports" in found.stderr
