"""Consumers in the line of a bucket."""

from gateway.quotas.line import Consumer


def consumer(expected: int = 100) -> Consumer:
    """A consumer whose next Fetch is expected to bring so many bytes."""
    found = Consumer()
    found.expected = expected
    return found
