"""Applies the section `quotas` to the engine: entities, enforcement, algorithms and windows."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from gateway import clock
from gateway.config.model import QuotasConfig
from gateway.config.section import WindowConfig
from gateway.feature import Feature
from gateway.observer import Outlet
from gateway.quotas.engine import Metering, QuotaEngine, QuotaSettings
from gateway.quotas.entity import DynamicQuotas, EntityQuota
from gateway.quotas.kinds.controller_mutation import KIND as CONTROLLER_MUTATIONS
from gateway.quotas.meter import Window


class ClientQuotas(Feature[QuotasConfig]):
    """`reconsider` is called after a change, so that sessions compute their throttle times again."""

    def __init__(self, section: QuotasConfig, engine: QuotaEngine, outlet: Outlet, reconsider: Callable[[], None]) -> None:
        self._section = section
        self._engine = engine
        self._outlet = outlet
        self._reconsider = reconsider

    def apply(self, section: QuotasConfig) -> list[str]:
        """The quotas that were set through the API stay in effect."""
        before, self._section = self._section, section
        if section == before:
            return []
        settings = replace(quota_settings(section), dynamic=self._engine.settings.dynamic)
        self._engine.max_buckets = section.max_entities
        self._engine.apply(settings, clock.monotonic())
        self._reconsider()
        self._outlet.file_changed(before.rows, section.rows)
        return overruled(before.rows, section.rows, settings.dynamic)


def quota_settings(section: QuotasConfig) -> QuotaSettings:
    return QuotaSettings(
        quotas=section.rows,
        groups=section.groups,
        enforce=section.enforce,
        algorithm=section.algorithm,
        window=_window(section.window),
        metering={
            CONTROLLER_MUTATIONS.name: Metering(
                section.mutations.algorithm, _window(section.mutations.window or section.window)
            )
        },
    )


def overruled(old: Sequence[EntityQuota], new: Sequence[EntityQuota], dynamic: DynamicQuotas) -> list[str]:
    """Notes about changed limits of the file without effect, because the API has set the same key of the same entity."""
    before = {quota.entity: quota.limits for quota in old}
    return [
        f"{quota.entity}: {key} stays {dynamic[quota.entity][key]:.12g}, because this value was set through the API: to use the"
        f" file's {limit:.12g}, remove the API's value (kafka-configs.sh --alter --delete-config {key})"
        for quota in new
        for key, limit in quota.limits.items()
        if before.get(quota.entity, {}).get(key) != limit and key in dynamic.get(quota.entity, {})
    ]


def _window(config: WindowConfig) -> Window:
    return Window(config.samples, float(config.seconds))
