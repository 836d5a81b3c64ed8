"""`weir quotas import`: prints the brokers' quotas as rows of `quotas.entities`, and their differences from a config file."""

from collections.abc import Sequence
from pathlib import Path

from gateway.config.model import WeirConfig
from gateway.migration.access import Access, check_not_gateway
from gateway.migration.broker_admin import BrokerAdmin, Cluster
from gateway.migration.broker_quotas import Translation, translated
from gateway.migration.differences import differences, rows_text, summary
from gateway.quotas.entity import EntityQuota
from gateway.quotas.scope import BROKER
from gateway.terminal_text import printable_lines


async def import_quotas(config: WeirConfig, path: Path, access: Access, brokers: int | None) -> str:
    """The text to print: YAML with comments. `brokers` None: the number of live brokers. Raises MigrationError."""
    check_not_gateway(config, access.bootstrap)
    async with BrokerAdmin(access) as admin:
        cluster = await admin.cluster()
        check_not_gateway(config, list(cluster.brokers.values()))
        quotas = await admin.describe()
        await admin.refuse_gateway()
    count = len(cluster.brokers) if brokers is None else brokers
    translation = translated(quotas, None if config.quotas.scope == BROKER else count)
    return import_text(cluster, translation, config.quotas.entities, str(path))


def import_text(cluster: Cluster, translation: Translation, rows: Sequence[EntityQuota], config: str) -> str:
    """YAML with the rows of the brokers and of the config; the differences stand above it as comments."""
    found = differences(translation, rows)
    lines = [f"Quotas of {cluster}."]
    if translation.brokers is None:
        lines.append(
            "Kafka grants rates at each broker, and so does Weir with quotas.scope: broker. The figures stay the same."
        )
    elif translation.brokers > 1:
        lines.append(
            "Kafka grants byte rates and connection rates at each broker, Weir in the whole cluster: its limits are"
            f" {translation.brokers} times as high."
        )
        lines.append(
            "A client may use its whole limit at one broker. With --brokers 1, the limits stay at the rate of one broker."
        )
        lines.append("With quotas.scope: broker in the config, Weir grants the brokers' own figures at each broker.")
    if translation.brokers not in (None, len(cluster.brokers)):
        lines.append(f"The number of brokers is that of --brokers: {translation.brokers}.")
    elif translation.brokers is not None:
        lines.append("Brokers that are down are not counted: give the number of all brokers with --brokers.")
    if any(quota.key == "connection_creation_rate" for quota in translation.moved):
        lines.append("Brokers see all connections as Weir's: give Weir's own address a higher rate there, and import again.")
    lines += ["", f"Compared with {config}: {summary(found)}", *(f"  {each}" for each in found), ""]
    lines += [
        f"Next: 1. Replace quotas.entities in {config} by this list. Set quotas.enforce to false to watch first.",
        "2. Run `weir check`.  3. Set quotas.enforce to true.  4. Run `weir quotas lift`.",
    ]
    comments = printable_lines(f"# {line}".rstrip() for line in lines)
    return f"{comments}\n\n{rows_text(rows, translation)}"
