"""`weir check --brokers`: compares a valid config with the running cluster."""

import asyncio
from pathlib import Path

from gateway.config.model import WeirConfig
from gateway.migration import MigrationError
from gateway.migration.access import Access, access_of, check_not_gateway
from gateway.migration.broker_admin import BrokerAdmin
from gateway.migration.copied_rates import copied_rate_warnings
from gateway.quotas.scope import BROKER


def broker_warnings(config: WeirConfig, path: Path, command_config: Path | None = None) -> list[str]:
    """One line for each difference that is probably a mistake, or for the reason why the brokers could not be asked.

    Raises MigrationError if `command_config` can't be used.
    """
    access = access_of(None, command_config, config, path)
    try:
        return asyncio.run(_ask(config, access))
    except MigrationError as error:
        return [f"--brokers: {error}"]


async def _ask(config: WeirConfig, access: Access) -> list[str]:
    check_not_gateway(config, access.bootstrap)
    async with BrokerAdmin(access) as admin:
        cluster = await admin.cluster()
        quotas = await admin.describe()
    at_each_broker = config.quotas.scope == BROKER
    return list(copied_rate_warnings(config.quotas.entities, quotas, len(cluster.brokers), at_each_broker=at_each_broker))
