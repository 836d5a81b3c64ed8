"""All features, in the one order that the gateway uses for everything: restore, start, apply a reload, report, and stop."""

from typing import Any, Final

from gateway.feature import Feature
from gateway.features.client_quotas.feature import ClientQuotas
from gateway.features.connection_quotas.feature import ConnectionQuotasFeature
from gateway.features.controller_mutations.feature import ControllerMutations
from gateway.features.groups.feature import Groups
from gateway.features.ledger.feature import Ledger
from gateway.features.notify.feature import Notify
from gateway.features.quota_api.feature import QuotaApi
from gateway.features.recent_use.feature import RecentUsage
from gateway.features.sharing.feature import Sharing
from gateway.features.topic_quotas.feature import TopicQuotasFeature
from gateway.features.volume_quotas.feature import VolumeQuotas

FEATURES: Final[tuple[type[Feature[Any]], ...]] = (
    Sharing,  # stops first, so that the other gateways get the last use without delay
    TopicQuotasFeature,  # applies before ClientQuotas, because the reload of ClientQuotas makes sessions read both again
    ClientQuotas,
    Groups,
    VolumeQuotas,
    ConnectionQuotasFeature,  # applies after ClientQuotas, because it follows the algorithm and window of ClientQuotas
    ControllerMutations,
    QuotaApi,  # restores before RecentUsage, which needs the limits of all quotas
    Notify,
    Ledger,  # stops after the features above, because it writes their last events
    RecentUsage,  # starts after TopicQuotasFeature, because it restores the use of topics; saves last
)
