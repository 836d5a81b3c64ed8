"""The way in and back: `weir init`, and quotas between the brokers and Weir (`weir quotas import`, `lift` and `restore`)."""


class MigrationError(Exception):
    """A command can't go on. The message has three parts: the value, the reason and the remedy."""


class UsageError(MigrationError):
    """The value of an option can't be right, whatever the brokers and the files are."""
