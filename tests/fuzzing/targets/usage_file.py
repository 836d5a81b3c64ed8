"""A file of recent use raises `BadUsageFileError` only; damaged lines are counted."""

from gateway.features.recent_use.usage_file import BadUsageFileError, read_usage
from tests.fuzzing.scratch import scratch_file

_FILE = scratch_file("usage")
WORDS = (
    b'"version": 1', b'"boot": "5d0e"', b'"monotonic": 5021.4', b'"wall": 1.5', b'"rows": 2', b'"kind": "produce"',
    b'"user": "a"',
    b'"limit": 1e6', b'"metering": ["token_bucket", 11, 1.0]', b'"spent": [[0.0, 0.0, 81920.0]]', b'"listener": null',
    b'"member": "00f1"', b'"sequence": 512', b'"told": []', b'"topic": null', b'"elsewhere": []', b'"broker": 1',
)  # fmt: skip


def check(data: bytes) -> None:
    _FILE.write_bytes(data)
    try:
        usage = read_usage(_FILE)
    except BadUsageFileError as error:
        str(error).encode()
        return
    rows = len(usage.entities) + len(usage.listeners) + len(usage.peers) + len(usage.topics)
    assert usage.damaged >= 0
    assert rows <= len(data.splitlines())


def seeds():
    head = b'{"version": 1, "boot": "5d0e", "monotonic": 5021.4, "wall": 1795244400.2, "rows": 4}\n'
    use = b'"limit": 1e6, "metering": ["token_bucket", 11, 1.0], "spent": [[0.0, 0.0, 81920.0]]}\n'
    yield (
        head
        + b'{"kind": "produce", "user": "alice", '
        + use
        + b'{"listener": null, '
        + use
        + (
            b'{"member": "00f1", "sequence": 512, "told": [{"kind": "produce", "user": "alice", "total": 1048576}]}\n'
            b'{"topic": "t", "metering": ["window", 11, 1.0], "spent": [], "elsewhere": [[1.0, 2.0, 3.0]]}\n'
        )
    )
    yield head
