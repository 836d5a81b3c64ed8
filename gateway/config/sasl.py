"""`sasl` of a listener and of `upstream`: the authentication of clients, and of Weir's own connections."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final, Literal, get_args

from pydantic import BeforeValidator, Field, model_validator

from gateway.config.section import Section, Text, described, invalid
from gateway.files.secret_file import read_secret
from protocol.bodies.sasl import MAX_FRAME_BYTES

_MOST_FRAME_BYTES: Final = 64 * 1024 * 1024

SENT_AS_IT_IS = frozenset({"PLAIN", "OAUTHBEARER"})
"""Mechanisms that send the secret itself over the network."""


OwnMechanism = Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"]
OWN_MECHANISMS: Final = get_args(OwnMechanism)
"""The mechanisms of Weir's own connections."""

_OWN_USER: Final = "enable SCRAM-SHA-512 beside it on the brokers' listener, and create a user for Weir there"


def no_own_mechanism(offered: Sequence[str]) -> str:
    """The problem and its remedy if the brokers offer only mechanisms that Weir itself can't use; else ""."""
    if not offered or any(each in OWN_MECHANISMS for each in offered):
        return ""
    return f"the brokers offer {', '.join(offered)} alone, which Weir itself can't use — {_OWN_USER}"


def _no_kerberos(mechanism: object) -> object:
    if mechanism == "GSSAPI":
        raise invalid("is for clients only, as Weir itself has no login by Kerberos", _OWN_USER)
    return mechanism


class ListenerSaslConfig(Section):
    """`listeners[].sasl`: the authentication of clients. Their credentials pass through to the broker."""

    required: bool | None = described(
        "`true`: clients must authenticate before any other request.", None, absent="Weir finds out if the brokers require it"
    )
    principal_claim: Text = described("Claim of a bearer token that has the user's name.", "sub")
    max_frame_bytes: Annotated[int, Field(ge=1_024, le=_MOST_FRAME_BYTES)] = described(
        "Largest request of a client that has not authenticated yet.", MAX_FRAME_BYTES, unit="bytes"
    )
    timeout_seconds: Annotated[float, Field(gt=0, le=3_600)] = described(
        "Time that a client has to authenticate.", 30.0, unit="seconds"
    )
    unnamed: Literal["anonymous", "close"] = described(
        "Treatment of a client whose mechanism hides its name (GSSAPI, delegation tokens, bearer tokens that are not JWT): it"
        " counts as ANONYMOUS, or is disconnected.",
        "anonymous",
    )

    @property
    def names_everyone(self) -> bool:
        """True if no client of the listener is ANONYMOUS after its login."""
        return self.required is True and self.unnamed == "close"


class UpstreamSaslConfig(Section):
    """`upstream.sasl`: the login of Weir's own connections. The file with the secret is read for each connection."""

    mechanism: Annotated[OwnMechanism, BeforeValidator(_no_kerberos)] = described("SASL mechanism.")
    username: Text | None = described("Weir's own user; not for OAUTHBEARER.", None)
    password_file: Text | None = described("File with the password on one line; not for OAUTHBEARER.", None)
    token_file: Text | None = described("File with the bearer token on one line; only for OAUTHBEARER.", None)

    @model_validator(mode="after")
    def _belong_together(self) -> "UpstreamSaslConfig":
        by_token = self.mechanism == "OAUTHBEARER"
        wanted = {"token_file"} if by_token else {"username", "password_file"}
        given = {key for key in ("username", "password_file", "token_file") if getattr(self, key) is not None}
        if missing := sorted(wanted - given, reverse=True):
            raise invalid(f"has mechanism {self.mechanism} without {' and '.join(missing)}", f"add {' and '.join(missing)}")
        if needless := sorted(given - wanted):
            raise invalid(f"has {' and '.join(needless)}, which {self.mechanism} does not use", "remove the unused keys")
        return self

    @property
    def secret_key(self) -> str:
        return "token_file" if self.token_file is not None else "password_file"

    def secret_file(self, directory: Path) -> Path:
        """The file with the password or the token; a relative name starts at `directory`, the config file's."""
        return directory / (self.token_file or self.password_file or "")

    def secret(self, directory: Path) -> str:
        """Raises UnusableSecretError."""
        return read_secret(self.secret_file(directory), "secret")
