"""How a run tells what it is doing."""

from collections.abc import Callable

Progress = Callable[[str], None]
"""Takes one line for whoever watches."""
