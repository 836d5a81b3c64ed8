"""Hypothesis without deadlines: the first example of a message and version compiles kafka-python's codec for it."""

from hypothesis import settings

settings.register_profile("protocol", deadline=None, max_examples=60)
settings.load_profile("protocol")
