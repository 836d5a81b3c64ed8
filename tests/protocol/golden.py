"""The responses that record_golden.py took from a real broker."""

import base64
import json
from typing import NamedTuple

from protocol.api_keys import APIS
from tests.protocol import codec


class Golden(NamedTuple):
    api_key: int
    version: int
    client: str
    frame: bytes

    def __str__(self) -> str:
        return f"{APIS[self.api_key].name}-v{self.version}-{self.client}"


def _load() -> list[Golden]:
    rows = json.loads((codec.DATA / "golden_frames.json").read_text())
    return [Golden(r["api_key"], r["version"], r["client"], base64.b64decode(r["frame"])) for r in rows]


GOLDEN = _load()


def golden(api_key: int) -> list[Golden]:
    """Return the responses of one API."""
    return [each for each in GOLDEN if each.api_key == api_key]
