"""The interface through which a session reports its throttles."""

from typing import Protocol

from gateway.quotas.bucket import Bucket, QuotaVerdict


class Origin:
    """The source and the target of a request: the client's address without its port, and the broker's node id."""

    __slots__ = ("address", "broker")

    def __init__(self, address: str = "", broker: int | None = None) -> None:
        self.address = address
        self.broker = broker


class Recorder(Protocol):
    """Records throttles. The hot path of the throttled client calls it: it must return at once and never raise."""

    def throttled(self, origin: Origin, api_key: int, bucket: Bucket, amount: float, verdict: QuotaVerdict, now: float) -> None:
        """A request used `amount` of a bucket that was over its limit."""
        ...

    def held(self, origin: Origin, bucket: Bucket, amount: int, seconds: float, now: float) -> None:
        """A Produce of `amount` bytes (0: they are recorded later) is delayed for `seconds` because a volume is filling up.

        `bucket` is the client's own, and has no part in the decision.
        """
        ...

    def early(self, origin: Origin, bucket: Bucket, seconds: float, now: float) -> None:
        """A client has sent `seconds` before its throttle time was over."""
        ...
