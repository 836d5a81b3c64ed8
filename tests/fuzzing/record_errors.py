"""The promise of each record of a shared topic that can't be used."""

from gateway.cluster.client import BadRecordError


def check_record_error(error: BadRecordError) -> None:
    """The reason is a label of a metric, and the log can print the text."""
    assert error.reason.isidentifier()
    str(error).encode()
