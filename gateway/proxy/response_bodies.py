"""Responses that are not passed on as they come, in any chunks: collected, dropped, or searched for addresses."""

from collections.abc import Callable
from typing import Final, Protocol

from gateway.proxy.collected import HeldAnswers
from gateway.proxy.in_flight import ChargedFetch, Entry
from gateway.proxy.wire import Data
from protocol.api_keys import APIS, NEVER, ApiKey
from protocol.bodies import addresses, api_versions, find_coordinator, node_endpoints
from protocol.bodies.addresses import Learn, Translate
from protocol.bodies.lag_scanner import LagScanner
from protocol.bodies.node_endpoints import endpoints_since, rewrite_tail, section_offset
from protocol.bodies.tail_scanner import TailScanner
from protocol.cursor import INT32
from protocol.errors import InvalidFrame
from protocol.framing import MAX_HEAD_BYTES
from protocol.throttle import patch_throttle, read_throttle, throttle_offset

Rewrite = Callable[[int, bytes, Translate, Learn | None], bytes]


REWRITES: dict[int, tuple[int, Rewrite]] = {
    ApiKey.METADATA: (0, addresses.rewrite_metadata),
    ApiKey.FIND_COORDINATOR: (
        0,
        lambda version, frame, translate, _: find_coordinator.rewrite_response(version, frame, translate),
    ),
    ApiKey.DESCRIBE_CLUSTER: (0, addresses.rewrite_describe_cluster),
    ApiKey.API_VERSIONS: (0, lambda version, frame, _, __: api_versions.rewrite_response(version, frame)),
    ApiKey.PRODUCE: (
        endpoints_since(ApiKey.PRODUCE),
        lambda version, frame, translate, _: node_endpoints.rewrite_frame(ApiKey.PRODUCE, version, frame, translate),
    ),
}
"""Responses that may carry addresses or versions: the first such version, and the function that changes a whole frame.

DescribeQuorum is not among them. Clients print its addresses of controllers, and connect to none.
"""

NO_REWRITE: tuple[int, Rewrite] = (NEVER, lambda _, frame, __, ___: frame)

SEARCHED_SINCE: Final[dict[int, int]] = {
    key: endpoints_since(key) for key in (ApiKey.PRODUCE, ApiKey.FETCH, ApiKey.SHARE_FETCH, ApiKey.SHARE_ACKNOWLEDGE)
}
"""Responses of any length that may carry addresses at their end: the first such version. Only the end of one is held."""

_SINCE: dict[int, int] = {key: since for key, (since, _) in REWRITES.items()} | SEARCHED_SINCE

MAX_PIECE_BYTES: Final = 256 * 1024
"""The most bytes of a collected response that are written to the client at once."""

JOINED_BYTES: Final = 4 * 1024
"""A longer piece of a response is written by itself: a copy would cost more than another write."""

PLAIN: Final = frozenset(
    spec.key << 16 | version
    for spec in APIS.values()
    for version in range(spec.max_version + 1)
    if version < _SINCE.get(spec.key, NEVER)
)
"""api key << 16 | version of every response that is passed on as it comes unless its client is muted."""


def translated(entry: Entry, frame: bytes, translate: Translate, learn: Learn | None) -> bytes:
    """A whole frame with the addresses, and the versions of APIs, that clients see."""
    since, rewrite = REWRITES.get(entry.api_key, NO_REWRITE)
    return rewrite(entry.version, frame, translate, learn) if entry.version >= since else frame


def patched(entry: Entry, frame: bytes, left: int) -> Data:
    """A whole frame, or its beginning, with the longer one of the broker's throttle time and `left` (ms)."""
    if left == 0:
        return frame
    offset = throttle_offset(entry.api_key, entry.version, frame, 0, len(frame))
    if offset < 0 or read_throttle(frame, offset) >= left:
        return frame
    changed = bytearray(frame)
    patch_throttle(changed, offset, left)
    return changed


BodyChange = Callable[[bytes, float], Data]
"""(whole frame, time of writing in monotonic seconds) -> the bytes to write instead"""


class Body(Protocol):
    """Takes the bytes of one response frame, and returns those that the client gets instead."""

    def feed(self, chunk: bytes, start: int, end: int) -> Data:
        """Take the frame's next bytes; returns those that can go out because of them."""
        ...

    def finish(self, now: float) -> Data:
        """End the frame; returns the bytes that have to go out still, at that time (monotonic seconds)."""
        ...


def in_pieces(data: Data) -> list[Data]:
    """The data in pieces of at most `MAX_PIECE_BYTES`. If there are several, each is a copy.

    The client's transport keeps the whole of a piece until the kernel has taken its last byte. In one piece, a few unsent bytes
    would keep up to 4 MiB, and they are too few for back-pressure.
    """
    size = len(data)
    if size <= MAX_PIECE_BYTES:
        return [data]
    view = memoryview(data)
    return [bytes(view[at : at + MAX_PIECE_BYTES]) for at in range(0, size, MAX_PIECE_BYTES)]


def joined(pieces: list[Data]) -> list[Data]:
    """The same bytes with neighbours joined, if those have at most `JOINED_BYTES` each. No piece is empty.

    Each piece costs a system call, a packet and perhaps a TLS record. A throttled answer would have three of them.
    """
    if len(pieces) == 1 and pieces[0]:
        return pieces
    found: list[Data] = []
    short: list[Data] = []
    for piece in pieces:
        if len(piece) > JOINED_BYTES:
            if short:
                found.append(b"".join(short))
                short = []
            found.append(piece)
        elif piece:
            short.append(piece)
    if short:
        found.append(b"".join(short))
    return found


class DroppedBody:
    """A response that another one has replaced."""

    def feed(self, chunk: bytes, start: int, end: int) -> Data:  # noqa: ARG002
        return b""

    def finish(self, now: float) -> Data:  # noqa: ARG002
        return b""


class CollectedBody:
    """A response that has to be seen whole before it can be changed. `held` counts its bytes."""

    def __init__(self, change: BodyChange, held: HeldAnswers) -> None:
        self._change = change
        self._held = held
        self._frame = bytearray()

    def feed(self, chunk: bytes, start: int, end: int) -> Data:
        self._frame += memoryview(chunk)[start:end]
        return b""

    def finish(self, now: float) -> Data:
        changed = self._change(bytes(self._frame), now)
        self._held.end(len(changed))
        return changed


class SearchedBody:
    """A response of any length, passed on as it comes up to the throttle time or the addresses at its end (KIP-951).

    Its length went out long before, so the addresses are replaced by addresses of the same total length. No answer's end is
    longer than the brokers of a Metadata answer may be. Methods raise InvalidFrame.
    """

    def __init__(self, api_key: int, version: int, translate: Translate, time_left_ms: Callable[[float], int]) -> None:
        """`time_left_ms` of the channel's throttle, for a throttle time at the end."""
        self._scanner = TailScanner(api_key, version)
        self._api_key = api_key
        self._version = version
        self._translate = translate
        self._time_left_ms = time_left_ms
        self._tail = bytearray()

    def begin(self, chunk: bytes, start: int, now: float) -> tuple[Data, ...]:
        """As `feed` for the first bytes, with our throttle time if it is at the beginning and longer. Raises Incomplete."""
        first = self.feed(chunk, start, len(chunk))
        left = self._time_left_ms(now)
        if left == 0 or section_offset(self._api_key):
            return (first,)
        offset = throttle_offset(self._api_key, self._version, chunk, start, len(chunk))
        if read_throttle(chunk, offset) >= left:
            return (first,)
        return first[: offset - start], INT32.pack(left), first[offset - start + INT32.size :]

    def feed(self, chunk: bytes, start: int, end: int) -> Data:
        view = memoryview(chunk)
        tail = start + self._scanner.feed(chunk, start, end)
        if tail < end:
            self._tail += view[tail:end]
            if len(self._tail) > MAX_HEAD_BYTES:
                raise InvalidFrame("bad_tags", f"the addresses at the end of an answer take more than {MAX_HEAD_BYTES} bytes")
        return view[start:tail]

    def finish(self, now: float) -> Data:
        tail = self._tail
        if not tail:
            return b""
        section = section_offset(self._api_key)
        left = self._time_left_ms(now)
        if section and left > 0 and left > read_throttle(tail, 0):
            patch_throttle(tail, 0, left)
        if self._version < endpoints_since(self._api_key) or tail[section:] == b"\0":
            return tail
        return tail[:section] + rewrite_tail(self._api_key, self._version, tail[section:], self._translate)


NoteLag = Callable[[ChargedFetch, int, float], None]
"""Gets the Fetch of a response, the response's lag in records, from `LagScanner`, and the time (monotonic seconds)."""


class LagBody:
    """A response of which the lag is noted once it is whole. `body` changes it; without one, it is passed on as it comes."""

    def __init__(self, scanner: LagScanner, note_lag: NoteLag, special: ChargedFetch, body: Body | None) -> None:
        self._scanner = scanner
        self._note_lag = note_lag
        self._special = special
        self._body = body

    def feed(self, chunk: bytes, start: int, end: int) -> Data:
        self._scanner.feed(chunk, start, end)
        return memoryview(chunk)[start:end] if self._body is None else self._body.feed(chunk, start, end)

    def finish(self, now: float) -> Data:
        self._note_lag(self._special, self._scanner.lag(), now)
        return b"" if self._body is None else self._body.finish(now)


def lag_noted(
    body: Body | None,
    version: int,
    note_lag: NoteLag,
    special: ChargedFetch,
    chunk: bytes,
    pos: int,
    after: int,
    now: float,
) -> Body | None:
    """The body of a Fetch response from `pos` to `after` whose lag is noted. None: the rest is passed on as it comes.

    `body` changes the response. A response that is whole in `chunk` is noted at once.
    """
    scanner = LagScanner(version)
    scanner.feed(chunk, pos, min(after, len(chunk)))
    if after > len(chunk):
        return LagBody(scanner, note_lag, special, body)
    note_lag(special, scanner.lag(), now)
    return body
