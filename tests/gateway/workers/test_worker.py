"""What a gateway knows of being one of several."""

from pathlib import Path

from gateway.config import LedgerConfig
from gateway.workers.worker import Worker, ledger_of

LEDGER = LedgerConfig.model_validate({"path": "ledger", "gateway": "weir-a"})


def test_each_has_a_ledger_of_its_own_name(tmp_path: Path) -> None:
    names = [ledger_of(LEDGER, Worker(number, tmp_path)).gateway for number in range(2)]
    assert names == ["weir-a-0", "weir-a-1"]
    assert ledger_of(LEDGER, None) is LEDGER


def test_without_a_name_it_is_the_hosts(tmp_path: Path) -> None:
    name = ledger_of(LEDGER.model_copy(update={"gateway": None}), Worker(3, tmp_path)).gateway
    assert name is not None
    assert name.endswith("-3")
    assert len(name) > 2
