"""The meters of an engine's buckets: new meters, and meters that continue another one after a change of the configuration."""

from gateway.quotas.bucket import Bucket
from gateway.quotas.entity import Resolution
from gateway.quotas.group_meter import GroupMeter
from gateway.quotas.kinds import KINDS
from gateway.quotas.meter import Meter, carry_over, precharge
from gateway.quotas.settings import Metering, QuotaSettings
from gateway.quotas.shared_meter import Part, SharedMeter


class NewMeters:
    """Makes meters by the algorithms of `settings`. With `shared`, they can be charged with the use of peers.

    `part` is this gateway's part of a new shared meter.
    """

    def __init__(self, settings: QuotaSettings, *, shared: bool) -> None:
        self.settings = settings
        self.part = Part()
        self._shared = shared

    def meter(self, kind: str, limit: float, now: float) -> Meter:
        """A new meter of `limit` per second. A listener's rate has a meter without a bucket."""
        return self._with_peers(self._alone(kind, limit, now), limit)

    def reconfigure(self, bucket: Bucket, resolution: Resolution, before: Metering, now: float) -> None:
        """Give the bucket another resolution. `before` is the metering until now."""
        bucket.resolution = resolution
        if resolution.limit is None:
            bucket.meter = None
            return
        used = bucket.rate_of_all(now) * bucket.policy.span
        bucket.meter = self.successor(bucket.kind.name, bucket.meter, resolution.limit, before, now, used=used)

    def successor(
        self, kind: str, old: Meter | None, limit: float, before: Metering, now: float, *, used: float = 0.0
    ) -> Meter:
        """The meter that replaces `old`, of the metering `before`, after a change of the settings.

        A new limit or window keeps use and debt. Another algorithm begins with a new meter, which `used` units are charged to:
        the recent use of all gateways. The meter of a group in a tree is a token bucket in any case. If it leaves the tree,
        debt and recent use are kept.
        """
        after = self.settings.metering_of(KINDS[kind])
        same_algorithm = before.algorithm == after.algorithm
        if isinstance(old, GroupMeter) or old is None or not same_algorithm:
            new = self._alone(kind, limit, now)
            if isinstance(old, GroupMeter) and new.tokens(now) is not None:
                carry_over(old, new, now)
                # The bucket of a group in a tree is small. Only some of the recent use was missing in it.
                used = max(new.balance(now) - max(new.capacity - used, 0.0), 0.0)
            precharge(new, used, now)
            return self._with_peers(new, limit)
        old.set_limit(limit, now)
        if before.window == after.window:
            return old
        new = self._alone(kind, limit, now)
        if isinstance(old, SharedMeter):
            old.set_window(new, now)
            return old
        carry_over(old, new, now)
        return new

    def _alone(self, kind: str, limit: float, now: float) -> Meter:
        metering = self.settings.metering_of(KINDS[kind])
        return KINDS[kind].meters[metering.algorithm](limit, metering.window, now)

    def _with_peers(self, meter: Meter, limit: float) -> Meter:
        return SharedMeter(meter, limit, *self.part) if self._shared else meter
