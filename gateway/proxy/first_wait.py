"""The wait of a connection's first request for the debts of its buckets, as the counters and the ledger see it."""

from gateway.quotas.bucket import Bucket


class FirstWait:
    """The request waits for `bucket` since `since` (monotonic seconds), and None if it does not wait now.

    `waited` are the buckets that have counted the request. Mutes that follow from its own charge are no further throttles.
    """

    __slots__ = ("api_key", "bucket", "correlation_id", "since", "waited")

    def __init__(self, api_key: int, correlation_id: int) -> None:
        self.api_key = api_key
        self.correlation_id = correlation_id
        self.bucket: Bucket | None = None
        self.since = 0.0
        self.waited: tuple[Bucket, ...] = ()

    def has_counted(self, bucket: Bucket, correlation_id: int | None) -> bool:
        """True, once for each bucket, if this request is charged. A request without an answer has no id."""
        if bucket not in self.waited or correlation_id not in (None, self.correlation_id):
            return False
        self.waited = tuple([each for each in self.waited if each is not bucket])
        return True
