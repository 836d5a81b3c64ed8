"""`notify`: webhooks that report entities near or over their quotas."""

import os
from collections.abc import Container, Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Annotated, Final, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, PlainSerializer, SerializationInfo, model_validator

from gateway.config.endpoints import address_or_default, is_loopback
from gateway.config.section import Section, Text, described, invalid
from gateway.files.secret_file import UnusableSecretError, one_line_remedy, read_secret
from gateway.quotas.entity import DEFAULT

WITH_SECRETS: Final = "with_secrets"
"""The key of a serialization context that keeps secrets, for the supervisor's private file."""

NEAR_RATIO: Final = 0.8
QUIET_SECONDS: Final = 300.0

_REMEDY: Final = 'write one such as "https://hooks.example.com/weir"'
_KEY: Final = os.urandom(16)
MAX_TARGETS: Final = 100


def _url_fault(text: str) -> str | None:
    """The reason why a text is not the address of a webhook. It shows nothing of the text: that may be a secret."""
    if not text.isprintable() or " " in text:
        return "it holds a space, a line break or a control character"
    try:
        parts = urlsplit(text)
        if parts.port == 0:
            return "its port is 0"
    except ValueError:
        return "its host or its port is not valid"
    if parts.scheme not in {"http", "https"}:
        return "it does not begin with http:// or https://"
    return None if parts.hostname else "it names no host"


def _url(text: str) -> str:
    if (fault := _url_fault(text)) is not None:
        raise invalid(f"is not an HTTP address: {fault}", _REMEDY)
    return text


def _page_url(text: str) -> str:
    parts = urlsplit(_url(text))
    if "@" in parts.netloc:
        raise invalid("has a user or a password, and each notification would show it", "remove the part before the @")
    return text


def shown_url(url: str) -> str:
    """The host of a webhook, and a mark that changes with the URL. The path of a webhook is its secret."""
    parts = urlsplit(url)
    port = f":{parts.port}" if parts.port else ""
    return f"{parts.scheme}://{parts.hostname}{port}/... ({blake2b(url.encode(), key=_KEY, digest_size=3).hexdigest()})"


def _serialized(url: str, info: SerializationInfo) -> str:
    return url if info.context and info.context.get(WITH_SECRETS) else shown_url(url)


Url = Annotated[str, AfterValidator(_url), PlainSerializer(_serialized)]


class WatchedEntityConfig(Section):
    """One of `notify.targets[].entities`: an entity, or the default entity for all entities with its quota."""

    user: Text | None = described('A user, or "<default>" for all users with the default quota.', None)
    client_id: Text | None = described(
        'A client-id, or "<default>" for all client-ids with the default quota.', None, alias="client-id"
    )
    ip: Annotated[str, AfterValidator(address_or_default)] | None = described(
        'An IP address, or "<default>" for all addresses with the default quota.', None
    )
    group: Text | None = described("A group of `quotas.groups`.", None)

    @model_validator(mode="after")
    def _names_something(self) -> "WatchedEntityConfig":
        if self.user is None and self.client_id is None and self.ip is None and self.group is None:
            raise invalid(
                "names no entity",
                f'give it user, client-id, both of them, ip or group; "{DEFAULT.value}" is the default entity',
            )
        alone = [key for key, name in (("ip", self.ip), ("group", self.group)) if name is not None]
        if alone and len(alone) + (self.user is not None) + (self.client_id is not None) > 1:
            message = f"has {alone[0]} and other parts, and no quota belongs to such an entity"
            raise invalid(message, "give each part a row of its own")
        return self


class NotifyTargetConfig(Section):
    """One of `notify.targets`: a webhook, and the entities and events that Weir reports to it."""

    name: Annotated[str, Field(min_length=1, max_length=100)] = described("The target's name in logs and metrics.")
    url: Annotated[Url | None, Field(repr=False)] = described(
        "The webhook's HTTP or HTTPS address. Logs and the admin API hide its path.", None, absent="`url_file` has the address"
    )
    url_file: Text | None = described(
        "A file with the address, instead of `url`. A relative name starts at the config file's directory. Weir reads the file"
        " for each notification.",
        None,
        absent="`url` is the address",
    )
    format: Literal["json", "slack"] = described(
        "The request's body: `json` has fields, `slack` has one text for Slack and compatible chats.", "json"
    )
    entities: Annotated[tuple[WatchedEntityConfig, ...], Field(strict=False)] = described(
        "The entities of this target's notifications.", (), absent="all entities"
    )
    events: Annotated[tuple[Literal["near_quota", "throttled", "ended"], ...], Field(strict=False, min_length=1)] = described(
        "The events: `near_quota` at `near_ratio`, `throttled` at the first throttle of an episode, `ended` at its end.",
        ("near_quota", "throttled", "ended"),
    )

    @model_validator(mode="after")
    def _one_url(self) -> "NotifyTargetConfig":
        if (self.url is None) == (self.url_file is None):
            found = "has both url and url_file" if self.url is not None else "has no url"
            raise invalid(found, "give it url, or url_file with the name of a file that holds the address")
        return self

    def address(self, directory: Path) -> str:
        """The webhook's URL; a relative file name starts at `directory`. Raises UnusableSecretError."""
        if self.url is not None:
            return self.url
        path = directory / (self.url_file or "")
        text = read_secret(path, "address").strip()
        if (fault := _url_fault(text)) is not None:
            raise UnusableSecretError(f"names {path}, and this file has no HTTP address: {fault}", one_line_remedy("address"))
        return text


class NotifyConfig(Section):
    """`notify`: webhooks at 80 % of a quota, at the first throttle, and at the end of an episode."""

    targets: Annotated[tuple[NotifyTargetConfig, ...], Field(strict=False, min_length=1, max_length=MAX_TARGETS)] = described(
        "The webhooks, each with a name of its own."
    )
    near_ratio: Annotated[float, Field(gt=0, lt=1)] = described(
        "The used fraction of a quota at which an episode begins. Throttling begins at 1.0.", NEAR_RATIO, unit="of the quota"
    )
    quiet_seconds: Annotated[float, Field(ge=1, le=86_400)] = described(
        "An episode ends after this time below `near_ratio` and without a throttle. Later events belong to a new episode.",
        QUIET_SECONDS,
        unit="seconds",
    )
    timeout_seconds: Annotated[float, Field(gt=0, le=60)] = described(
        "The time that a webhook has for its answer. Weir retries failed attempts for some minutes.", 5.0, unit="seconds"
    )
    page_url: Annotated[str, AfterValidator(_page_url)] | None = described(
        "The address of Weir's admin port for readers of notifications, such as `http://weir.example.com:9644`. Notifications"
        " then link to the entity's page.",
        None,
        absent="notifications have no link",
    )

    def warnings(self, groups: Container[str]) -> Iterator[str]:
        """One line for each webhook without TLS, and for each entity that no notification can be about.

        `groups` are the names in `quotas.groups`.
        """
        for number, target in enumerate(self.targets):
            parts = urlsplit(target.url or "")
            if parts.scheme == "http" and not is_loopback(parts.hostname or ""):
                yield (
                    f"notify.targets[{number}].url: has no TLS, and the network can read the path, the webhook's secret"
                    " — write https:// if the webhook has it"
                )
            for index, entity in enumerate(target.entities):
                if entity.group is not None and entity.group not in groups:
                    yield (
                        f"notify.targets[{number}].entities[{index}].group: {entity.group} is not in quotas.groups, so nobody"
                        " is notified of it — write the name of a group, or remove the row"
                    )
