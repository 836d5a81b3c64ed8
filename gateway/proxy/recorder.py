"""What a session tells of its throttles, for whoever writes them down."""

from typing import Protocol

from gateway.quotas.bucket import Bucket, QuotaVerdict


class Origin:
    """Where a request came from and where it was going: the client's address without its port, the broker's node id."""

    __slots__ = ("address", "broker")

    def __init__(self, address: str = "", broker: int | None = None) -> None:
        self.address = address
        self.broker = broker


class Recorder(Protocol):
    """Takes note. Called on the hot path of whoever is throttled: it must return at once and never raise."""

    def throttled(self, origin: Origin, api_key: int, bucket: Bucket, amount: float, verdict: QuotaVerdict, now: float) -> None:
        """A request used `amount` of a bucket that was over its limit."""
        ...

    def held(self, origin: Origin, bucket: Bucket, amount: int, seconds: float, now: float) -> None:
        """A Produce of `amount` bytes (0: they are told of later) is delayed for so long because a volume is filling up;
        `bucket` is that of its byte quota, which has no part in it."""
        ...

    def early(self, origin: Origin, bucket: Bucket, seconds: float, now: float) -> None:
        """A client has sent so long before its throttle time was over."""
        ...
