"""A state file of the quota API raises `ConfigError` only, and its quotas survive a round trip."""

from gateway.config.problems import ConfigError
from gateway.features.quota_api.state_file import StateFile, _text
from gateway.quotas.entity import DEFAULT, ClientQuotaEntity
from tests.fuzzing.scratch import scratch_file

_FILE = StateFile(scratch_file("weir.state.json"))
WORDS = (
    b'"version": 1', b'"client_quotas": []', b'{"entity": {"user": "alice"}, "quotas": {"producer_byte_rate": 1e6}}',
    b'"client-id": null', b'"ip": "10.0.0.1"', b'"topic": "t"', b'"group": "g"', b"1e999",
)  # fmt: skip


def check(data: bytes) -> None:
    _FILE.path.write_bytes(data)
    try:
        quotas = _FILE._load()
    except ConfigError as error:
        (problem,) = error.problems
        assert problem.key == "state.path"
        assert problem.remedy
        str(error).encode()
        return
    _FILE.path.write_text("".join(_text(quotas)))
    assert _FILE._load() == quotas


def seeds():
    rows = {ClientQuotaEntity("alice", "etl"): {"producer_byte_rate": 1e6}, ClientQuotaEntity(DEFAULT): {"request_rate": 0.5}}
    for quotas in (rows, {ClientQuotaEntity(ip="10.0.0.1"): {"connection_creation_rate": 5.0}}):
        yield "".join(_text(quotas)).encode()
