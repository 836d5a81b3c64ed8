"""Reads the topics that a client's Metadata request may create, and takes the permission away.

Layout: ``MetadataRequest.json`` v0-13 of Kafka 4.3. All other bytes stay unchanged, so unknown tagged fields survive.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from protocol.api_keys import ApiKey, request_header_version
from protocol.bodies.topic_lists import NO_ID
from protocol.cursor import MAX_ELEMENTS, Buffer, Reader

CREATION_SINCE: Final = 4
"""The first version with `allow_auto_topic_creation`. Older requests always allow it."""

MAX_TOPICS: Final = 50_000
"""Limit on the topics of one request. Weir skips their names in some 10 ms."""

_TOPIC_ID_SINCE: Final = 10


class MetadataRequest(NamedTuple):
    """A request for metadata. `creates`: the broker may create the topics that it does not find.

    `names` has each named topic once. Weir decodes no names of more than `MAX_ELEMENTS` topics: `names` is then None.
    `permission` is the offset of `allow_auto_topic_creation`, and -1 before v4.
    """

    creates: bool
    names: Sequence[str] | None
    permission: int


def read_request(version: int, frame: Buffer, body_offset: int) -> MetadataRequest:
    """Decode a whole request frame. Raises `InvalidFrame`."""
    reader = Reader.of_whole_request(frame, body_offset, compact=request_header_version(ApiKey.METADATA, version) >= 2)
    reader.elements_left = MAX_TOPICS
    count = reader.count()
    names: dict[str, None] | None = {} if count <= MAX_ELEMENTS else None
    for _ in range(count):
        if version >= _TOPIC_ID_SINCE:
            reader.skip(len(NO_ID))
        if names is None:
            reader.skip_string()
        elif (name := reader.string()) is not None:
            names[name] = None
        reader.skip_tags()
    permission = reader.pos if version >= CREATION_SINCE else -1
    creates = count > 0 and (permission < 0 or reader.byte() != 0)
    return MetadataRequest(creates, None if names is None else list(names), permission)


def without_creation(frame: bytes, request: MetadataRequest) -> bytes:
    """The frame of a request of v4 or later, in which the broker may create no topic."""
    changed = bytearray(frame)
    changed[request.permission] = 0
    return bytes(changed)
