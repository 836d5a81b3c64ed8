"""The state of sharing, for metrics and the admin API."""

from collections.abc import Mapping
from dataclasses import dataclass

from gateway.admin.metrics.row import Row, Value, one_of, reasons_of


@dataclass(frozen=True, slots=True)
class SharingReport:
    """`members` includes this gateway; `reachable` is True while this gateway reads its own messages back.

    `entities` counts entities with remembered use, here and at peers. `skipped` counts unusable messages by reason. A
    problem is empty if there is none.
    """

    identity: str
    topic: str
    interval_seconds: float
    when_unreachable: str
    members: int
    reachable: bool
    entities: int
    messages_total: int
    published_total: int
    publication_errors_total: int
    left_out_total: int
    skipped: Mapping[str, int]
    reader_problem: str
    publisher_problem: str


_sharing = one_of(SharingReport)

METRICS: tuple[Row, ...] = (
    Value("gauge", "weir_sharing_members", "Known gateways that share their quotas, this one included.", (),
          _sharing(lambda sharing: sharing.members), merge="min"),
    Value("gauge", "weir_sharing_reachable", "1 while this gateway reads the usage topic.", (),
          _sharing(lambda sharing: sharing.reachable), merge="min"),
    Value("gauge", "weir_sharing_entities", "Entities with remembered use, here and at other gateways.", (),
          _sharing(lambda sharing: sharing.entities), merge="max"),
    Value("counter", "weir_sharing_messages_total", "Records read from the usage topic, this gateway's own included.", (),
          _sharing(lambda sharing: sharing.messages_total)),
    Value("counter", "weir_sharing_published_total", "Messages published to the usage topic.", (),
          _sharing(lambda sharing: sharing.published_total)),
    Value("counter", "weir_sharing_publication_errors_total", "Failed attempts to publish to the usage topic.", (),
          _sharing(lambda sharing: sharing.publication_errors_total)),
    Value("counter", "weir_sharing_left_out_total", "Entities left out of a full message. A later message has their use.", (),
          _sharing(lambda sharing: sharing.left_out_total)),
    Value("counter", "weir_sharing_messages_skipped_total", "Unusable messages of the usage topic, and unusable entities in"
          " messages.", ("reason",), reasons_of(SharingReport, lambda sharing: sharing.skipped)),
)  # fmt: skip
