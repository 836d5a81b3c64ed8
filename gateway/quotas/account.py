"""What sharing sees of something with a quota: how much it used here, and a place for what it used elsewhere."""

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
