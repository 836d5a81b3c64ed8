"""Where what has been set through the quota API is kept."""

from typing import Protocol

from gateway.quotas.entity import DynamicQuotas


class QuotaStore(Protocol):
    """Keeps the quotas of the API over restarts, and later for several gateways."""

    async def load(self) -> DynamicQuotas:
        """What was saved last, empty where nothing was. Raises ConfigError where it is not to be made out."""
        ...

    async def save(self, quotas: DynamicQuotas) -> None:
        """Returns once the quotas would outlive a loss of power. Raises OSError, after which what was saved before stands."""
        ...
