"""The state file: saved quotas are loaded again, and a damaged file is refused with a message."""

import errno
import json
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.config.problems import ConfigError
from gateway.features.quota_api.state_file import HistoryPosition, NotSavedError, StateFile, _text
from gateway.quotas.entity import DEFAULT, ClientQuotaEntity
from tests.gateway.features.quota_api.quota_table import ENTITIES

ALICE = {ClientQuotaEntity("alice", DEFAULT): {"producer_byte_rate": 1e6, "controller_mutation_rate": 0.25}}
KEY = "bytes.in.per.sec.threshold"
APART = {
    "weir.state.topics.json": {ClientQuotaEntity(topic="payments"): {KEY: 1e6}},
    "weir.state.groups.json": {ClientQuotaEntity(group="batch"): {"producer_byte_rate": 3e6}},
}
"""The rows with a file of their own."""

limits = st.dictionaries(st.sampled_from(["producer_byte_rate", "x"]), st.floats(1e-9, 1e18), min_size=1)


@pytest.fixture
def file(tmp_path):
    return StateFile(tmp_path / "weir.state.json")


@given(quotas=st.dictionaries(ENTITIES, limits, max_size=4))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
def test_saved_quotas_are_loaded(file, quotas):
    file._save(file._load(), quotas)
    assert file._load() == quotas


async def test_state_is_empty_before_first_save(file):
    assert await file.load() == {}
    assert not file.path.exists()


async def test_default_entity_is_null_as_in_kafka(file):
    assert await file.save({}, ALICE) == ALICE
    assert json.loads(file.path.read_text()) == {
        "version": 1,
        "client_quotas": [
            {
                "entity": {"user": "alice", "client-id": None},
                "quotas": {"producer_byte_rate": 1e6, "controller_mutation_rate": 0.25},
            }
        ],
    }
    assert [path.name for path in file.path.parent.iterdir()] == ["weir.state.json"]


@pytest.mark.parametrize(("name", "rows"), APART.items())
async def test_topics_and_groups_have_files_of_their_own(file, name, rows):
    """An older Weir reads such a row as that of a client without a name, and could not read the file that it then writes."""
    await file.save({}, ALICE)
    alone = file.path.read_text()
    await file.save(ALICE, ALICE | rows)
    assert file.path.read_text() == alone
    assert {path.name for path in file.path.parent.iterdir()} == {file.path.name, name}
    assert await file.load() == ALICE | rows
    await file.save(ALICE | rows, ALICE)
    assert await file.load() == ALICE


@pytest.mark.parametrize(("name", "rows"), APART.items())
async def test_topics_and_groups_leave_the_common_file(file, name, rows):
    """Weir before the own file of thresholds, or of groups, has saved all rows in the common one."""
    file.path.write_text("".join(_text(ALICE | rows)))
    quotas = await file.load()
    assert quotas == ALICE | rows
    await file.save(quotas, quotas)
    assert await file.load() == quotas
    assert json.loads(file.path.read_text()) == json.loads("".join(_text(ALICE)))
    assert file.path.with_name(name).exists()


async def test_change_by_an_older_weir_keeps_groups(file):
    """Weir 0.2 reads and replaces the common file only."""
    groups = APART["weir.state.groups.json"]
    await file.save({}, ALICE | groups)
    bob = {ClientQuotaEntity("bob"): {"producer_byte_rate": 5e5}}
    file.path.write_text("".join(_text(bob)))
    assert await file.load() == bob | groups


async def test_failed_save_keeps_earlier_state(file):
    assert await file.save({}, ALICE) == ALICE
    blocked = file.path.with_name("weir.state.json.new")
    blocked.mkdir()
    with pytest.raises(NotSavedError, match="Is a directory") as caught:
        await file.save(ALICE, {})
    assert (caught.value.remedy, caught.value.outcome) == (
        f"remove the folder {blocked}",
        "so nothing is changed",
    )
    assert await file.load() == ALICE


@pytest.mark.parametrize("name", ["weir.state.json", *APART])
async def test_failed_save_changes_none_of_the_files(file, name):
    """Several clients alter quotas and thresholds in one save, and all of them learn that it failed."""
    before = ALICE | APART["weir.state.topics.json"] | APART["weir.state.groups.json"]
    after = {entity: {key: value * 2 for key, value in limits.items()} for entity, limits in before.items()}
    await file.save({}, before)
    file.path.with_name(f"{name}.new").mkdir()
    with pytest.raises(NotSavedError, match="Is a directory"):
        await file.save(before, after)
    assert await file.load() == before


async def test_save_that_fails_after_a_rename_is_put_back(file):
    """The thresholds of topics were replaced already. The old ones may be lost with the power, so the client is warned."""
    before = APART["weir.state.topics.json"]
    await file.save({}, before)
    file.path.unlink()
    file.path.mkdir()
    with pytest.raises(NotSavedError) as caught:
        await file.save(before, {entity: {KEY: 2e6} for entity in before})
    assert caught.value.outcome == "but it may take effect at the next start"
    file.path.rmdir()
    assert await file.load() == before


async def test_next_save_mends_a_file_that_was_not_put_back(file, monkeypatch):
    before = APART["weir.state.topics.json"]
    await file.save({}, before)
    fsync, disk_fails = os.fsync, False

    def fail_after_the_rename(descriptor):
        nonlocal disk_fails
        disk_fails |= Path(f"/proc/self/fd/{descriptor}").is_dir()
        if disk_fails:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", fail_after_the_rename)
    with pytest.raises(NotSavedError):
        await file.save(before, {entity: {KEY: 2e6} for entity in before})
    monkeypatch.setattr(os, "fsync", fsync)
    assert await file.load() != before
    await file.save(before, before | ALICE)
    assert await file.load() == before | ALICE


async def test_save_syncs_file_and_folder(file, monkeypatch):
    done = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: done.append(Path(f"/proc/self/fd/{descriptor}").readlink()))
    assert await file.save({}, ALICE) == ALICE
    assert done == [file.path.with_name("weir.state.json.new"), file.path.parent]


ROW = '{"entity": {"user": "a"}, "quotas": {"k": 1}}'
DAMAGED = {
    "empty": ("", "is damaged"),
    "cut": ('{"version": 1, "client_quotas": [{"entity"', "is damaged"),
    "not UTF-8": (b"\xff\xfe", "is damaged"),
    "a list": ("[]", "is damaged"),
    "deep nesting": ("[" * 100_000, "is damaged"),
    "no version": ('{"client_quotas": []}', "is damaged"),
    "a later version": ('{"version": 2, "client_quotas": []}', "has version 2, this Weir reads version 1"),
    "an unknown key": ('{"version": 1, "client_quotas": [], "more": 1}', "is damaged"),
    "an unknown type of entity": (
        '{"version": 1, "client_quotas": [{"entity": {"user": "a", "role": "b"}, "quotas": {"k": 1}}]}',
        "is damaged",
    ),
    "a quota of nothing": (
        f'{{"version": 1, "client_quotas": [{ROW}, {ROW.replace("1", "0")}]}}',
        "is damaged at client_quotas.1.quotas.k: Input should be greater than 0 (value 0)",
    ),
    "a quota that is text": (f'{{"version": 1, "client_quotas": [{ROW.replace("1", chr(34) * 2)}]}}', "is damaged"),
    "a quota that is no number": (f'{{"version": 1, "client_quotas": [{ROW.replace("1", "NaN")}]}}', "is damaged"),
}


@pytest.mark.parametrize("what", DAMAGED)
async def test_damaged_file_is_refused(file, what):
    content, message = DAMAGED[what]
    file.path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ConfigError) as caught:
        await file.load()
    (problem,) = caught.value.problems
    assert problem.key == "state.path"
    assert str(file.path) in problem.message
    assert message in problem.message
    assert "move it away" in problem.remedy


async def test_row_without_entity_is_skipped_with_a_warning(file, caplog):
    """Weir 0.2 saves a group's row so, if it stands in the common file."""
    nameless = '{"entity": {}, "quotas": {"producer_byte_rate": 3e6}}'
    named = ROW.replace("k", "consumer_byte_rate")
    file.path.write_text(f'{{"version": 1, "client_quotas": [{named}, {nameless}]}}')
    assert await file.load() == {ClientQuotaEntity("a"): {"consumer_byte_rate": 1.0}}
    (line,) = caplog.messages
    assert line == (
        f"row 2 of {file.path} names no entity, as Weir 0.2 saves a group's:"
        ' its quotas {"producer_byte_rate": 3000000.0} are skipped — set them again'
    )


IMPOSSIBLE = {
    "mixed": ('{"user": "a", "ip": "10.0.0.1"}', "IP entity shouldnot be combined with User or ClientId"),
    "a group and a user": ('{"user": "a", "group": "batch"}', "a group can not be combined with other entities"),
    "a topic and a user": ('{"user": "a", "topic": "orders"}', "Unhandled client quota entity type: topic"),
    "an empty name": ('{"client-id": ""}', "Empty client-id not supported"),
    "a default group": ('{"group": null}', "There is no default group"),
}


@pytest.mark.parametrize("what", IMPOSSIBLE)
async def test_row_of_an_impossible_entity_is_refused(file, what):
    entity, message = IMPOSSIBLE[what]
    file.path.write_text(f'{{"version": 1, "client_quotas": [{ROW}, {{"entity": {entity}, "quotas": {{"k": 1}}}}]}}')
    with pytest.raises(ConfigError) as caught:
        await file.load()
    (problem,) = caught.value.problems
    assert problem.message.startswith(f"row 2 of {file.path} names {entity}: ")
    assert message in problem.message
    assert problem.remedy == "correct the row, or remove it"


async def test_second_row_of_an_entity_is_refused(file):
    """The quotas of one of them would not hold, and the next save would drop them."""
    file.path.write_text(f'{{"version": 1, "client_quotas": [{ROW}, {ROW.replace("k", "m")}]}}')
    with pytest.raises(ConfigError, match=r'row 2 of .* names \{"user": "a"\}, as row 1 does — put the quotas of both rows'):
        await file.load()


@pytest.mark.parametrize(
    ("key", "value", "fault"),
    [
        ("producer_byte_rates", 5.0, "Invalid configuration key producer_byte_rates."),
        ("connection_creation_rate", 5.0, "Invalid configuration key connection_creation_rate."),
        ("producer_byte_rate", 0.5, "producer_byte_rate cannot be a fractional value."),
        ("producer_byte_rate", 1e300, "Proposed value for producer_byte_rate is too large for a LONG."),
    ],
)
async def test_quota_that_no_request_sets_is_kept_and_named(file, caplog, key, value, fault):
    """A newer Weir may have set it, and the older one goes on with its file."""
    quotas = {ClientQuotaEntity("a"): {"producer_byte_rate": 1e6} | {key: value}}
    file.path.write_text("".join(_text(quotas)))
    assert await file.load() == quotas
    (line,) = caplog.messages
    assert line == (
        f"row 1 of {file.path} has {key} {value:.16g} of user=a: {fault} It is kept for a newer Weir"
        " — otherwise, delete it with alterClientQuotas"
    )
    await file.save(quotas, quotas)
    assert await file.load() == quotas


async def test_few_of_many_unusual_quotas_are_named(file, caplog):
    quotas = {ClientQuotaEntity("a"): {f"k{number}": 1.0 for number in range(7)}}
    file.path.write_text("".join(_text(quotas)))
    assert await file.load() == quotas
    assert len(caplog.messages) == 6
    assert caplog.messages[-1] == f"{file.path} has 2 more such quotas"


async def test_unreadable_file_is_refused(file):
    file.path.mkdir()
    with pytest.raises(ConfigError, match="can't be read"):
        await file.load()


async def test_position_is_saved_beside_the_state(file):
    assert await file.load_position({}) is None
    await file.save_position(HistoryPosition("0a", "0b", 41), {})
    assert await StateFile(file.path).load_position({}) == HistoryPosition("0a", "0b", 41)
    assert [path.name for path in file.path.parent.iterdir()] == ["weir.state.position.json"]
    assert await file.load() == {}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"version": 2, "history": "0a", "topic_id": "0a", "offset": 1, "quotas": ""}',
        '{"version": 1, "history": "0a", "topic_id": "0a", "offset": -1, "quotas": ""}',
    ],
)
async def test_unusable_position_is_unknown(file, text):
    file.path.with_name("weir.state.position.json").write_text(text)
    assert await file.load_position({}) is None


async def test_quotas_that_were_saved_without_their_position_are_later(file):
    """Weir may be killed after it has saved the quotas, and before it saves their position."""
    await file.save_position(HistoryPosition("0a", "0b", 41), {})
    await file.save({}, ALICE)
    assert await StateFile(file.path).load_position(ALICE) == HistoryPosition("0a", "0b", 41, late=True)


async def test_unwritable_position_is_reported(file):
    file.path.with_name("weir.state.position.json.new").mkdir()
    with pytest.raises(NotSavedError) as caught:
        await file.save_position(HistoryPosition("0a", "0b", 1), {})
    assert "weir.state.position.json" in caught.value.remedy


async def test_shortage_of_threads_is_a_failed_save(file, monkeypatch):
    async def no_thread(*_):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("asyncio.to_thread", no_thread)
    for save in (file.save({}, ALICE), file.save_position(HistoryPosition("0a", "0b", 1), {})):
        with pytest.raises(NotSavedError, match="can't start new thread") as caught:
            await save
        assert (caught.value.outcome, "limit of processes" in caught.value.remedy) == ("so nothing is changed", True)
