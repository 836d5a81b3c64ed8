"""Which Weir this is."""

from importlib.metadata import PackageNotFoundError, version


def weir_version() -> str:
    """The installed distribution's version, `unknown` in a checkout that is not installed."""
    try:
        return version("weir-gateway")
    except PackageNotFoundError:
        return "unknown"
