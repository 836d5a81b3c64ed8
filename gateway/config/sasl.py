"""`sasl` of a listener and of `upstream`: what clients have to do first, and how Weir's own connections log in."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from gateway.config.section import Section, invalid
from protocol.bodies.sasl import MAX_FRAME_BYTES

_MAX_FRAME_BYTES = 64 * 1024 * 1024

SENT_AS_IT_IS = frozenset({"PLAIN", "OAUTHBEARER"})
"""The mechanisms whose secret crosses the network."""

_ONE_LINE = "write the secret to it as one line"


class UnusableSecretError(Exception):
    """A file does not hold a secret: what is wrong, and what to do about it. Nothing of what is in it is told."""

    def __init__(self, message: str, remedy: str) -> None:
        super().__init__(f"{message} — {remedy}")
        self.message = message
        self.remedy = remedy


Text = Annotated[str, Field(min_length=1)]


class ListenerSaslConfig(Section):
    """`listeners[].sasl`: clients bring their own credentials, which pass through to the broker.

    `required`: whether they have to authenticate before anything else; absent, they have to where the brokers want it, which
    Weir finds out. Until then a request may have `max_frame_bytes`, and it has to be done after `timeout_seconds`.
    `unnamed`: a client whose mechanism hides its name (GSSAPI, delegation tokens, bearer tokens that are no JWT) counts as
    ANONYMOUS, or its connection is closed.
    """

    required: bool | None = None
    principal_claim: Text = "sub"
    max_frame_bytes: Annotated[int, Field(ge=1_024, le=_MAX_FRAME_BYTES)] = MAX_FRAME_BYTES
    timeout_seconds: Annotated[float, Field(gt=0, le=3_600)] = 30.0
    unnamed: Literal["anonymous", "close"] = "anonymous"


class UpstreamSaslConfig(Section):
    """`upstream.sasl`: whom Weir's own connections log in as. The secret stands in a file, which is read for each of them."""

    mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"]
    username: Text | None = None
    password_file: Text | None = None
    token_file: Text | None = None

    @model_validator(mode="after")
    def _belong_together(self) -> "UpstreamSaslConfig":
        by_token = self.mechanism == "OAUTHBEARER"
        wanted = {"token_file"} if by_token else {"username", "password_file"}
        given = {key for key in ("username", "password_file", "token_file") if getattr(self, key) is not None}
        if missing := sorted(wanted - given, reverse=True):
            raise invalid(f"has mechanism {self.mechanism} without {' and '.join(missing)}", f"add {' and '.join(missing)}")
        if needless := sorted(given - wanted):
            raise invalid(f"has {' and '.join(needless)}, which {self.mechanism} makes no use of", "remove what is not needed")
        return self

    @property
    def secret_key(self) -> str:
        """The key that names the file with the secret."""
        return "token_file" if self.token_file is not None else "password_file"

    def secret_file(self, directory: Path) -> Path:
        """The file with the password or the token; a relative name starts at `directory`, the config file's."""
        return directory / (self.token_file or self.password_file or "")

    def secret(self, directory: Path) -> str:
        """The password or the token. Raises UnusableSecretError."""
        path = self.secret_file(directory)
        try:
            secret = path.read_bytes().decode().removesuffix("\n").removesuffix("\r")
        except OSError as error:
            reason = f"names {path}, which can't be read: {error.strerror}"
            raise UnusableSecretError(reason, "write the secret to it, readable for the user that runs Weir") from None
        except UnicodeDecodeError:
            raise UnusableSecretError(f"names {path}, which is not UTF-8 text", _ONE_LINE) from None
        if not secret or "\n" in secret:
            found = "is empty" if not secret else "holds more than one line"
            raise UnusableSecretError(f"names {path}, which {found}", _ONE_LINE)
        return secret
