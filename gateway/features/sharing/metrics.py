"""Use that is shared with other gateways."""

from gateway.admin.metrics.row import Row, Value, one_of, reasons_of
from gateway.features.sharing.report import SharingReport

_sharing = one_of(SharingReport)

METRICS: tuple[Row, ...] = (
    Value("gauge", "weir_sharing_members", "Gateways that share their quotas, this one included, as far as it has heard.", (),
          _sharing(lambda sharing: sharing.members), merge="min"),
    Value("gauge", "weir_sharing_reachable", "1 while this gateway hears what is published to the usage topic.", (),
          _sharing(lambda sharing: sharing.reachable), merge="min"),
    Value("gauge", "weir_sharing_entities", "Entities, here and at other gateways, whose use is remembered.", (),
          _sharing(lambda sharing: sharing.entities), merge="max"),
    Value("counter", "weir_sharing_messages_total", "Records read from the usage topic, this gateway's own included.", (),
          _sharing(lambda sharing: sharing.messages_total)),
    Value("counter", "weir_sharing_published_total", "Messages published to the usage topic.", (),
          _sharing(lambda sharing: sharing.published_total)),
    Value("counter", "weir_sharing_publication_errors_total", "Attempts to publish a message that failed.", (),
          _sharing(lambda sharing: sharing.publication_errors_total)),
    Value("counter", "weir_sharing_left_out_total", "Entities that a message had no room for; a later one tells their use.", (),
          _sharing(lambda sharing: sharing.left_out_total)),
    Value("counter", "weir_sharing_messages_skipped_total", "Messages, or entities in them, that could not be used.",
          ("reason",), reasons_of(SharingReport, lambda sharing: sharing.skipped)),
)  # fmt: skip
