"""What can be wrong with bytes that claim to be Kafka's protocol."""


class ProtocolError(Exception):
    """The peer sent something that is not Kafka's protocol, or not a part of it that can be served.

    `reason` is short, from a fixed set, and safe as a metric label; the message is for the log.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class InvalidFrame(ProtocolError):
    """A length, count or string that does not fit into the frame that holds it."""


class OutOfTurn(ProtocolError):
    """A message that may not come now: the connection is not authenticated, or the other side has to answer first."""


class UnsupportedVersion(ProtocolError):
    """An API key, or a version of one, that was never advertised to the client."""


class Incomplete(Exception):
    """The bytes seen so far end before what was asked for; hold them and ask again with more.

    Not a `ProtocolError`: nothing is wrong yet. Where the frame is known to be complete, the caller treats it as an
    `InvalidFrame`: the fields do not fit into the frame's length.

    `wanted` is the absolute offset up to which the buffer has to reach before it is worth asking again, 0 where unknown.
    Bytes that arrive one by one are thus read once, and not once for each of them.
    """

    def __init__(self, wanted: int = 0) -> None:
        super().__init__()
        self.wanted = wanted
