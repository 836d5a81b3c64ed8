"""Credentials of Weir's own connections to the cluster (`upstream.sasl`). Clients' connections bring their own."""

from pathlib import Path
from typing import Any

from aiokafka.abc import AbstractTokenProvider
from aiokafka.errors import KafkaError

from gateway.cluster.client import CredentialsError
from gateway.config.sasl import UpstreamSaslConfig, no_own_mechanism
from gateway.files.secret_file import UnusableSecretError


class _TokenError(CredentialsError, KafkaError):  # type: ignore[misc]
    """The token can't be read while aiokafka connects. It is a KafkaError as well, because aiokafka swallows other errors."""


class Login:
    """Makes aiokafka's connection options. Relative file names start at `directory`."""

    def __init__(self, sasl: UpstreamSaslConfig | None, directory: Path) -> None:
        self._sasl = sasl
        self._directory = directory

    @property
    def has_credentials(self) -> bool:
        return self._sasl is not None

    def options(self) -> dict[str, Any]:
        """aiokafka's options. Reads the files, so that a new connection uses a changed password. Raises CredentialsError."""
        sasl = self._sasl
        if sasl is None:
            return {}
        options: dict[str, Any] = {"sasl_mechanism": sasl.mechanism}
        if sasl.token_file is not None:
            self._secret()
            return options | {"sasl_oauth_token_provider": _TokenFile(self)}
        return options | {"sasl_plain_username": sasl.username, "sasl_plain_password": self._secret()}

    def stamp(self) -> object:
        """A value that changes with the file of the secret."""
        if self._sasl is None:
            return None
        try:
            found = self._sasl.secret_file(self._directory).stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino

    def advice(self, mechanisms: tuple[str, ...]) -> str:
        """The remedy if brokers that offer these mechanisms refuse the credentials."""
        sasl = self._sasl
        if sasl is None or not mechanisms:
            return "the brokers require no SASL — remove upstream.sasl, or name another of their listeners in bootstrap_servers"
        if problem := no_own_mechanism(mechanisms):
            return problem
        if sasl.mechanism not in mechanisms:
            return f"the brokers offer {', '.join(mechanisms)} — set upstream.sasl.mechanism to one of these"
        if sasl.token_file is not None:
            return f"the brokers refuse the token — renew {sasl.token_file} (upstream.sasl.token_file)"
        return (
            f"the brokers refuse {sasl.username} by {sasl.mechanism} — check upstream.sasl.username and the password in"
            f" {sasl.password_file} (upstream.sasl.password_file)"
        )

    def _secret(self) -> str:
        if self._sasl is None:
            raise CredentialsError("upstream.sasl is not set")
        try:
            return self._sasl.secret(self._directory)
        except UnusableSecretError as error:
            raise CredentialsError(f"upstream.sasl.{self._sasl.secret_key}: {error}") from None


class _TokenFile(AbstractTokenProvider):  # type: ignore[misc]
    """Reads the token from its file for each connection."""

    def __init__(self, login: Login) -> None:
        self._login = login

    async def token(self) -> str:
        """Raises `_TokenError`."""
        try:
            return self._login._secret()
        except CredentialsError as error:
            raise _TokenError(str(error)) from None
