"""Splits the client's bytes into requests, in any chunking, and forwards them to the broker.

A chunk is forwarded in one piece if possible. Only bytes that are held, collected or changed are copied.
"""

from gateway.proxy.collected import CollectBudget, Collected
from gateway.proxy.wire import ChunkWriter
from protocol.framing import MIN_REQUEST_BYTES, Framing


class Splitter:
    """The position in the client's stream. Offsets are into `data`, the bytes that are split now.

    The next request begins at `pos`; the bytes before `_done` are forwarded, dropped or kept. `held` are the bytes behind the
    last request, while the connection takes no other request. `irregular` is True while bytes are held, collected or dropped,
    or a request's head is incomplete. Then the next chunk can't be forwarded as it comes.
    """

    __slots__ = ("_done", "_dropping", "collected", "data", "framing", "held", "irregular", "pos", "writer")

    def __init__(self, writer: ChunkWriter, max_bytes: int, budget: CollectBudget) -> None:
        self.irregular = False
        self.writer = writer
        self.framing = Framing(min_bytes=MIN_REQUEST_BYTES, max_bytes=max_bytes)
        self.data = b""
        self.pos = 0
        self._done = 0
        self._dropping = False  # the rest of the current request is not forwarded
        self.collected = Collected(budget)
        self.held = b""

    def add(self, chunk: bytes) -> bool:
        """Add the client's next bytes. False if they only lengthen what is held or collected. Raises EndConnection."""
        if self.held:  # the event loop had read these bytes before the pause
            self.held += chunk
            return False
        framing = self.framing
        if self.collected:
            missing, piece = framing.skip, memoryview(chunk)
            self.collected.add(piece[:missing])
            if len(chunk) < missing:
                framing.skip -= len(chunk)
                return False
            chunk = self.collected.take(piece[missing:])
            framing.skip = 0
        chunk = framing.join(chunk)
        pos = framing.skip
        done = min(pos, len(chunk)) if self._dropping else 0
        if pos <= len(chunk):
            self._dropping = False
        self.begin(chunk, pos, done)
        return True

    def begin(self, data: bytes, pos: int, done: int = 0) -> None:
        self.data, self.pos, self._done = data, pos, done

    def forward(self, after: int) -> None:
        """Forward the request that ends at `after` as it comes."""
        self.pos = after

    def replace(self, after: int, frame: bytes) -> None:
        """Forward `frame` in place of the bytes of the request that have arrived."""
        self.flush()
        self.writer.write(frame)
        self._done = min(after, len(self.data))
        self.pos = after

    def drop(self, after: int) -> None:
        """Forward nothing of the request that ends at `after`."""
        self.flush()
        self._dropping = after > len(self.data)
        self._done = min(after, len(self.data))
        self.pos = after

    def collect(self, after: int, *, records: bool) -> None:
        """Keep the beginning of the request until the rest has come. Raises EndConnection."""
        self.flush()
        self._done = len(self.data)
        self.collected.begin(memoryview(self.data)[self.pos :], records=records)
        self.pos = after

    def hold(self) -> None:
        """Keep the next request and everything behind it."""
        self.held = self.data[self.pos :]

    def release(self) -> bytes:
        """Return the held bytes, and hold them no longer."""
        held, self.held = self.held, b""
        return held

    def hold_head(self, wanted: int = 0) -> None:
        """Keep the beginning of a request's head. Raises InvalidFrame if it is too long for any request."""
        self.framing.hold(self.data, self.pos, wanted)

    def flush(self) -> None:
        """Forward what stands before the next request."""
        end = min(self.pos, len(self.data))
        if end > self._done:
            self.writer.write(self.data if self._done == 0 and end == len(self.data) else self.data[self._done : end])
        self._done = end

    def finish(self) -> None:
        """Forward the rest of the data, and let go of it."""
        self.flush()
        self.framing.skip = max(self.pos - len(self.data), 0)
        if self.collected.counted and not self.held and not self.collected:
            self.collected.drop()  # the whole request is decided
        self.irregular = bool(self.held or self.framing.head or self._dropping or self.collected)
        self.begin(b"", 0)

    @property
    def inside_request(self) -> bool:
        """True between the first and the last byte of a request whose head is complete."""
        return self.framing.skip > 0

    @property
    def begun(self) -> bool:
        """True while the broker, or a handler, has a part of a request and the rest has not arrived."""
        return self.framing.skip > 0 and not self.collected

    @property
    def unfinished(self) -> bool:
        """True if the client has sent a part of a request and not the rest."""
        return self.framing.skip > 0 or bool(self.framing.head)

    def abandon(self) -> None:
        self.collected.drop()
        self.collected.close()
        self.held = b""
