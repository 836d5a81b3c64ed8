"""The parser of the command line, and the types of its options. Each type raises argparse.ArgumentTypeError."""

import argparse
import re
import sys
from collections.abc import Iterable, Sequence
from typing import Final, NoReturn
from urllib.parse import urlsplit

from gateway.config.problems import nearest
from gateway.quotas.kinds import CLIENT_KINDS, is_client_kind
from gateway.whole_number import MAX_INT32, whole_number

DEFAULT_ADMIN: Final = "http://127.0.0.1:9644"


class CommandParser(argparse.ArgumentParser):
    """The parser of a command. Its errors name mistyped words, and the words that are probably meant."""

    _words: Sequence[str] = ()

    # In typeshed, the type of the result depends on the namespace's. argparse gives its own alone.
    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        self._words = sys.argv[1:] if args is None else args
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        if found := re.search(r"invalid choice: '(.*)' \(choose from (.*)\)", message):
            message += _hint([found[1]], re.findall(r"[\w-]+", found[2]))
        elif "arguments are required" in message and (unknown := self._unknown_options()):
            message += f"; {self.unrecognized(unknown)}"
        super().error(message)

    def unrecognized(self, words: Sequence[str]) -> str:
        """The error for words that are no arguments of this command. argparse itself would show the usage of `weir` alone."""
        known = re.findall(r"--[a-z][a-z-]*", self.format_usage())
        return f"unrecognized arguments: {' '.join(words)}{_hint([word for word in words if word.startswith('-')], known)}"

    def _unknown_options(self) -> list[str]:
        """argparse reports missing arguments first. It would not say that one of them is there, but mistyped."""
        options = [word.partition("=")[0] for word in self._words if word.startswith("--")]
        return [option for option in options if not any(known.startswith(option) for known in self._option_string_actions)]


def _hint(words: Iterable[str], known: Sequence[str]) -> str:
    meant = [near for word in words if (near := nearest(word, known)) is not None]
    return f" — did you mean {' '.join(meant)}?" if meant else ""


def url(text: str) -> str:
    try:
        parts = urlsplit(text)
        valid = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:  # an invalid port, or a bracket without its end
        valid = False
    if not valid:
        raise argparse.ArgumentTypeError(f"{text!r} is not an address such as {DEFAULT_ADMIN}")
    return text


def kind(name: str) -> str:
    if not is_client_kind(name):
        raise argparse.ArgumentTypeError(
            f"there is no {name!r}: use one of {', '.join(CLIENT_KINDS)}, or request_rate.Metadata"
        )
    return name


def node_id(text: str) -> int:
    number = whole_number(text)
    if number is None or number > MAX_INT32:
        raise argparse.ArgumentTypeError(f"{text!r} is not the node id of a broker: write a number, such as 3")
    return number
