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


class UnsupportedVersion(ProtocolError):
    """An API key, or a version of one, that was never advertised to the client."""
