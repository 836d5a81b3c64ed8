"""The types of options of the command line. Each function raises argparse.ArgumentTypeError."""

import argparse
from typing import Final
from urllib.parse import urlsplit

from gateway.quotas.kinds import CLIENT_KINDS, is_client_kind
from gateway.whole_number import MAX_INT32, whole_number

DEFAULT_ADMIN: Final = "http://127.0.0.1:9644"


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
