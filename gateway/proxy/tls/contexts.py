"""OpenSSL contexts for the TLS settings in the config, and their reload when the files change."""

import asyncio
import logging
import ssl
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

from gateway.config.problems import ConfigError, Problem

LOOK_SECONDS = 1.0

Version = Literal["1.2", "1.3"]
ClientAuth = Literal["none", "requested", "required"]

_VERSIONS = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}
_CLIENT_AUTH = {"none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}
_log = logging.getLogger("weir.tls")


@dataclass(frozen=True, slots=True)
class ServerTls:
    """The gateway's TLS settings towards clients. `client_ca` is None if `client_auth` is none. Files are PEM."""

    cert: Path
    key: Path
    client_ca: Path | None
    client_auth: ClientAuth
    min_version: Version

    @property
    def files(self) -> dict[str, Path]:
        """The files by their config keys."""
        files = {"cert": self.cert, "key": self.key, "client_ca": self.client_ca}
        return {key: file for key, file in files.items() if file is not None}


@dataclass(frozen=True, slots=True)
class ClientTls:
    """The gateway's TLS settings towards brokers. `ca` None means the system's authorities; `cert` and `key` are None
    together.
    """

    ca: Path | None
    cert: Path | None
    key: Path | None
    verify_hostname: bool
    min_version: Version

    @property
    def files(self) -> dict[str, Path]:
        """The files by their config keys."""
        files = {"ca": self.ca, "cert": self.cert, "key": self.key}
        return {key: file for key, file in files.items() if file is not None}


class ServerObject(ssl.SSLObject):
    """A client's connection. With `sni` on the listener, it keeps the server name that the client asked for."""

    server_name: str | None = None


def server_context(tls: ServerTls, known_name: Callable[[str | None], bool] | None = None) -> ssl.SSLContext:
    """A listener's context. `known_name` accepts or refuses a server name (SNI); a client without one counts as None.
    Without `known_name`, the listener ignores server names.

    Raises `OSError`, including `ssl.SSLError`, if the files can't be used.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.sslobject_class = ServerObject
    context.minimum_version = _VERSIONS[tls.min_version]
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.load_cert_chain(tls.cert, tls.key, password=_no_password)
    if tls.client_ca is not None:
        context.load_verify_locations(tls.client_ca)
    context.verify_mode = _CLIENT_AUTH[tls.client_auth]
    if known_name is None:
        return context  # the callback below would have Python print a traceback for each name that is not ASCII

    def on_server_name(connection: ssl.SSLObject, name: str | None, _: ssl.SSLContext) -> int | None:
        asked = None if name is None else name.rstrip(".").lower()
        if isinstance(connection, ServerObject):
            connection.server_name = asked
        if not known_name(asked):
            return int(ssl.AlertDescription.ALERT_DESCRIPTION_UNRECOGNIZED_NAME)
        return None

    context.sni_callback = on_server_name
    return context


def client_context(tls: ClientTls) -> ssl.SSLContext:
    """The context for connections to brokers. Raises `OSError`, including `ssl.SSLError`, if the files can't be used."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = _VERSIONS[tls.min_version]
    context.check_hostname = tls.verify_hostname
    if tls.ca is not None:
        context.load_verify_locations(tls.ca)
    else:
        context.load_default_certs()
    if tls.cert is not None:
        context.load_cert_chain(tls.cert, tls.key, password=_no_password)
    return context


def _no_password() -> str:
    """Without this callback, OpenSSL asks for the password of an encrypted key on the terminal."""
    raise ssl.SSLError("the key is encrypted")


Context = TypeVar("Context", bound=ssl.SSLContext)

Explain = Callable[[Mapping[str, Path]], object]
"""Finds the fault of files that can't be used, for a log message, or None. The argument has their paths by config key."""


class LiveContext(Generic[Context]):
    """A context that is created again after its files change. Open connections keep their old context.

    `name` is a config key such as `listeners[clients].tls`; `results` counts loads of changed files by `success` and `failure`.
    """

    def __init__(self, name: str, tls: ServerTls | ClientTls, make: Callable[[], Context], results: dict[str, int]) -> None:
        """Creates the first context. Raises `ConfigError` if files have become unusable since the check of the config."""
        self.name = name
        self.files = tls.files
        self._make = make
        self._results = results
        self._loaded = self._changing = self._look()
        self._failure = ""  # the cause, while the changed files can't be used
        try:
            self.context = make()
        except OSError as error:
            message = f"its files have changed during the start, and can't be used: {error}"
            raise ConfigError(name, [Problem(name, message, "try again once a certificate and its key are there")]) from None

    @property
    def certificates(self) -> dict[str, Path]:
        """The files of certificates by their config keys."""
        return {key: file for key, file in self.files.items() if key != "key"}

    def refresh(self, explain: Explain = lambda _: None) -> bool:
        """Check the files, and load them once two checks in a row have found the same change. True if they were loaded.

        A certificate and its key are rarely replaced in one step. Files that can't be used are tried again at each check.
        """
        seen = self._look()
        if seen == self._loaded or seen != self._changing:
            self._changing, self._failure = seen, ""
            return False
        try:
            self.context = self._make()
        except OSError as error:
            self._results["failure"] = self._results.get("failure", 0) + 1
            if str(error) != self._failure:
                self._failure = str(error)
                _log.error(
                    "%s: the files have changed and can't be used, so the previous certificate stays in effect: %s",
                    self.name, explain(self.files) or f"{error} — replace them by a certificate and its key",
                )  # fmt: skip
            return False
        self._loaded, self._failure = seen, ""
        self._results["success"] = self._results.get("success", 0) + 1
        _log.info("%s: the files have changed; new connections use the new files", self.name)
        return True

    def _look(self) -> tuple[object, ...]:
        """A value that changes whenever a file or its mode does, even behind a symbolic link as in a Kubernetes Secret."""
        seen: list[object] = []
        for file in self.files.values():
            try:
                state = file.stat()
            except OSError as error:
                seen.append(error.errno)
            else:
                seen.append((state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns))
        return tuple(seen)


async def follow_files(
    contexts: Sequence[LiveContext[Any]], on_load: Callable[[LiveContext[Any]], None], explain: Explain
) -> None:
    """Refresh the contexts once a second until cancelled. A thread calls `on_load` after each load of changed files."""

    def refresh(context: LiveContext[Any]) -> None:
        if context.refresh(explain):
            on_load(context)

    while contexts:
        await asyncio.sleep(LOOK_SECONDS)
        for context in contexts:
            await asyncio.to_thread(refresh, context)
