"""Where what has been set through the quota API is kept."""

from typing import Protocol

from gateway.quotas.entity import DynamicQuotas


class NotSavedError(Exception):
    """A change is not saved. `reason` is for who asked for it, `remedy` for who runs Weir; `outcome` says what became of it."""

    def __init__(self, reason: str, remedy: str, outcome: str = "so nothing is changed") -> None:
        super().__init__(reason)
        self.reason = reason
        self.remedy = remedy
        self.outcome = outcome


class QuotaStore(Protocol):
    """Keeps the quotas of the API over restarts, for one gateway or for several."""

    async def load(self) -> DynamicQuotas:
        """What was saved last, empty where nothing was. Raises ConfigError where it is not to be made out."""
        ...

    async def save(self, before: DynamicQuotas, after: DynamicQuotas) -> DynamicQuotas:
        """Keep what is different `after` a change; returns what is kept then, which has others' changes in it as well.

        It would outlive a loss of power by then. Raises NotSavedError.
        """
        ...
