"""The query of an admin URL: the values of its parameters, and the refusal of invalid ones."""

from collections.abc import Iterable, Sequence

from gateway.quotas.addresses import address_of


class QueryError(Exception):
    """The message names the parameter, its value and the remedy. The server answers 400 with it."""


class NoWorkerAnswersError(Exception):
    """No worker answers. The server answers 503."""


def check_names(names: Iterable[str], known: Sequence[str]) -> None:
    """Raise QueryError for a parameter that is not known."""
    for name in names:
        if name not in known:
            remedy = f"use some of {', '.join(known)}" if known else "this page has none"
            raise QueryError(f"{name}: there is no such parameter: {remedy}")


def read_address(text: str) -> str:
    """The address of the parameter `ip` in the spelling that tables and configs show. Raises QueryError."""
    try:
        return str(address_of(text))
    except ValueError:
        raise QueryError(f"ip: {text!r} is not an IP address: write one, such as 10.0.0.7") from None


def read_number(name: str, text: str | None, least: int, most: int, default: int) -> int:
    """The value of a parameter. Raises QueryError."""
    if text is None:
        return default
    if not text.isascii() or not text.isdecimal() or len(text) > 9 or not least <= int(text) <= most:
        raise QueryError(f"{name}: {text!r} is out of range: write a number from {least} to {most}")
    return int(text)


def read_truth(name: str, text: str) -> bool:
    """The value of a parameter. Raises QueryError."""
    if text not in ("true", "false"):
        raise QueryError(f"{name}: {text!r} is neither true nor false: write one of them")
    return text == "true"
