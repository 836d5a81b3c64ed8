"""The settings of the engine that can be changed while the gateway runs."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from gateway.quotas.entity import DynamicQuotas, EntityQuota
from gateway.quotas.groups import Group
from gateway.quotas.kinds import QuotaKind
from gateway.quotas.meter import Window


@dataclass(frozen=True, slots=True)
class Metering:
    """The algorithm of a kind, by its name in the kind's `meters`, and the quota window."""

    algorithm: str = "token_bucket"
    window: Window = field(default_factory=Window)


@dataclass(frozen=True, slots=True)
class QuotaSettings:
    """The settings that can be changed while the gateway runs.

    `quotas` are the config file's, those of `groups` included. `dynamic` are the quota API's. `algorithm` (`token_bucket` or
    `window`) and `window` hold for each kind that is not in `metering`. With `by_broker`, limits hold at each broker as in
    Kafka, except those of groups and of kinds that Kafka counts for the whole cluster.
    """

    quotas: tuple[EntityQuota, ...] = ()
    dynamic: DynamicQuotas = field(default_factory=dict)
    enforce: bool = True
    algorithm: str = "token_bucket"
    window: Window = field(default_factory=Window)
    metering: Mapping[str, Metering] = field(default_factory=dict)
    groups: tuple[Group, ...] = ()
    by_broker: bool = False

    @property
    def longest_window(self) -> float:
        """In seconds, of all kinds."""
        return max([self.window.length, *[each.window.length for each in self.metering.values()]])

    def window_of(self, kind: QuotaKind) -> Window:
        own = self.metering.get(kind.name)
        return self.window if own is None else own.window

    def metering_of(self, kind: QuotaKind) -> Metering:
        """The metering of a kind. A kind without the common algorithm has its own default algorithm."""
        own = self.metering.get(kind.name)
        if own is not None:
            return own
        return Metering(self.algorithm if self.algorithm in kind.meters else next(iter(kind.meters)), self.window)
