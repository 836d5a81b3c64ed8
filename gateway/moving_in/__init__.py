"""Moves in: `weir init`, and quotas between the brokers and Weir (`weir quotas import`, `lift` and `restore`)."""


class MoveError(Exception):
    """A command can't go on. The message has three parts: the value, the reason and the remedy."""
