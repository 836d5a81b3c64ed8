"""Files with a secret on one line: a password, a token, or the address of a webhook."""

import os
from pathlib import Path

from gateway.files.path_faults import file_bytes, read_remedy


class UnusableSecretError(Exception):
    """A file does not hold a secret. The message shows nothing of its content."""

    def __init__(self, message: str, remedy: str) -> None:
        super().__init__(f"{message} — {remedy}")
        self.message = message
        self.remedy = remedy


def one_line_remedy(noun: str) -> str:
    return f"write the {noun} to it as one line"


def read_secret(path: Path, noun: str) -> str:
    """The only line of the file. `noun` is its name in messages, such as `secret`. Raises UnusableSecretError."""
    try:
        secret = file_bytes(path).decode().rstrip("\r\n")
    except UnicodeDecodeError:
        raise UnusableSecretError(f"names {path}, which is not UTF-8 text", one_line_remedy(noun)) from None
    except (OSError, ValueError) as error:
        if isinstance(error, ValueError) or not os.path.lexists(path):
            cause = error.strerror if isinstance(error, OSError) else "its name holds a NUL character"
            reason = f"names a file that can't be read: {cause}"
            remedy = f"write the {noun} to a file, and its name here. It is not shown, as it may be the {noun} itself"
            raise UnusableSecretError(reason, remedy) from None
        reason = f"names {path}, which can't be read: {error.strerror}"
        remedy = read_remedy(error, f"write the {noun} to it, readable for the user that runs Weir")
        raise UnusableSecretError(reason, remedy) from None
    if not secret or "\n" in secret:
        found = "is empty" if not secret else "has more than one line"
        raise UnusableSecretError(f"names {path}, which {found}", one_line_remedy(noun))
    return secret
