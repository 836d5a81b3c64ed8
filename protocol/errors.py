"""The errors that invalid or incomplete Kafka frames cause."""


class ProtocolError(Exception):
    """The peer violated Kafka's protocol, or used a part of it that the gateway does not support.

    `reason` comes from a fixed set and is safe as a metric label. The message is for the log.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class InvalidFrame(ProtocolError):
    """A length, count or string does not fit into its frame."""


class OtherCluster(ProtocolError):
    """The answer is that of a broker of another cluster."""


class OutOfTurn(ProtocolError):
    """A message came too early: authentication is not complete, or a response must come first."""


class UnsupportedVersion(ProtocolError):
    """The client used an API key or version that the gateway never advertised."""


class Incomplete(Exception):
    """The bytes that have arrived end inside the field. The caller keeps them and tries again with more.

    It is not a `ProtocolError`, as nothing is wrong yet. If the frame is known to be complete, the caller treats it as an
    `InvalidFrame`.

    `wanted` is the absolute offset that the buffer must reach before another attempt can succeed; 0 if unknown. With it,
    bytes that arrive one by one are decoded once, and not once per byte.
    """

    def __init__(self, wanted: int = 0) -> None:
        super().__init__()
        self.wanted = wanted
