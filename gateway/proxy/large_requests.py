"""Reads clients that send large requests, and forwards the bodies of these without a copy."""

from typing import Final, Protocol

from gateway.proxy.request_stream import RequestStream
from gateway.proxy.session_front import ClientProtocol, SessionFront

LARGE_BYTES: Final = 64 * 1024
"""A connection gets a `LargeRequestReader` when so many bytes of a request have still to come."""

BODY_BYTES: Final = 128 * 1024
"""The most bytes of one read. The kernel copies them out again at once, so they should fit into a processor's own cache."""

HEAD_BYTES: Final = 16 * 1024
"""The most bytes of a read that begins with a request. They are copied."""


class LargeRequestSession(ClientProtocol, Protocol):
    """The session of such a client."""

    def forward_body(self, piece: memoryview) -> bool:
        """Forward a part of the arriving request. True if the broker's transport still refers to it."""
        ...


class _Buffer:
    """The buffer of the next read, of any connection.

    `buffer_updated` follows the read at once, so one buffer is enough. A transport that still refers to its bytes then keeps
    it.
    """

    __slots__ = ("view",)

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        self.view = memoryview(bytearray(BODY_BYTES))


_shared: Final = _Buffer()


class LargeRequestReader(SessionFront):
    """An asyncio buffered protocol in front of a session.

    With a plain protocol, uvloop copies each chunk. Small requests are faster with a plain protocol, as it is called once for
    each chunk, and not twice.
    """

    def __init__(self, session: LargeRequestSession, requests: RequestStream) -> None:
        super().__init__(session)
        self._bodies = session
        self._requests = requests
        self._passing = False

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002
        """Return the place for the rest of the arriving request, and for no byte of the next one."""
        passing = self._requests.passing_bytes
        self._passing = passing > 0
        if passing >= BODY_BYTES:
            return _shared.view
        return _shared.view[: passing or HEAD_BYTES]

    def buffer_updated(self, count: int) -> None:
        piece = _shared.view[:count]
        if not self._passing:
            self._session.data_received(bytes(piece))
        elif self._bodies.forward_body(piece):
            _shared.renew()

    def data_received(self, data: bytes) -> None:
        """Called in place of `buffer_updated` by event loops that know asyncio's own class of buffered protocols only."""
        self._session.data_received(data)
