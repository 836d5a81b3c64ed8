"""The version of Weir, and the kind of its build."""

from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.metadata import PackageNotFoundError, version
from typing import Literal

from protocol import framing


@cache
def weir_version() -> str:
    """The installed version, or `unknown` in a checkout without an installation. The first call parses a file."""
    try:
        return version("weir-gateway")
    except PackageNotFoundError:
        return "unknown"


def weir_build() -> Literal["compiled", "interpreted"]:
    """`compiled` if mypyc's extension modules are loaded, which wheels made with WEIR_COMPILE=1 contain."""
    return "compiled" if framing.__file__.endswith(tuple(EXTENSION_SUFFIXES)) else "interpreted"
