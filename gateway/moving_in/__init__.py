"""Moves quotas between the brokers and Weir: `weir quotas import`, `weir quotas lift` and `weir quotas restore`."""


class MoveError(Exception):
    """A command can't go on. The message has three parts: the value, the reason and the remedy."""
