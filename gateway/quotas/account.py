"""What sharing sees of something with a quota: how much it used here, and a place for what it used elsewhere."""

from gateway.quotas.meter import Meter
from gateway.quotas.shared_meter import SharedMeter


class Account:
    """Bytes, partitions or connections of one quota. `shared_total` is how much of `total()` sharing has taken note of."""

    __slots__ = ("shared_total",)

    def __init__(self) -> None:
        self.shared_total = 0

    def total(self) -> int:
        """What was used here since it is there; falls only where something is given back."""
        raise NotImplementedError

    def recent(self, now: float) -> int:
        """What of it still counts."""
        raise NotImplementedError

    def capacity(self) -> float:
        """What is much: how much may be used at once. 0.0 where nothing is shared, as there is no quota."""
        raise NotImplementedError

    def shared_meter(self) -> SharedMeter | None:
        """The meter that presumes what others use; None where nothing is presumed."""
        return None

    def charge_others(self, amount: int, now: float, *, no_debt: bool) -> None:
        """Another gateway has let so much through. `no_debt`: some time ago, so nobody here is to wait for it."""
        raise NotImplementedError


class Metered(Account):
    """An account of what goes through a meter, which is None where there is no quota."""

    __slots__ = ("meter",)

    def __init__(self, meter: Meter | None) -> None:
        super().__init__()
        self.meter = meter

    def capacity(self) -> float:
        """The meter's; 0.0 without a quota."""
        return 0.0 if self.meter is None else self.meter.capacity

    def shared_meter(self) -> SharedMeter | None:
        """The meter, where it is a shared one."""
        return self.meter if isinstance(self.meter, SharedMeter) else None

    def charge_others(self, amount: int, now: float, *, no_debt: bool) -> None:
        """Charge the meter. `total()` stays what was used here."""
        meter = self.shared_meter()
        if meter is not None:
            meter.charge_others(amount, now, no_debt=no_debt)
