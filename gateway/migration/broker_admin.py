"""Reads and alters the brokers' quotas (DescribeClientQuotas, AlterClientQuotas), on the brokers' own listeners."""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from kafka.protocol.admin import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
)
from kafka.protocol.metadata import MetadataRequest, MetadataResponse

from gateway import clock
from gateway.alterations import NO_QUOTA_ADMIN
from gateway.cluster.brokers import Address
from gateway.cluster.client import ClusterError, KafkaResponse, answer_of, check_error
from gateway.cluster.requests import BrokerRequest, Message
from gateway.migration import MigrationError
from gateway.migration.access import Access
from gateway.migration.broker_quotas import BrokerQuotas, Entity, entity_of, entity_text
from gateway.quotas.entity import GROUP
from gateway.terminal_text import printable
from protocol.bodies.client_quotas import MATCH_EXACT
from protocol.error_codes import ErrorCode

APPLIED_SECONDS = 30.0
"""The time that each broker has to apply an alteration of the controller."""

MAX_CHANGES = 2_000
"""Quotas in one request. The controller refuses a request that makes more than 10 000 records."""

_LOOK_SECONDS = 0.1
_NEWEST = 1
_BROKERS_CODES = frozenset({ErrorCode.INVALID_REQUEST, ErrorCode.UNSUPPORTED_VERSION})
"""A broker's answers to a key and to a type of entities that only Weir knows."""

QuotaChanges = Mapping[Entity, Mapping[str, float | None]]
"""Quotas to set by entity and key, or to remove if the value is None."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """The cluster's id, and its live brokers by node id."""

    cluster_id: str
    brokers: Mapping[int, Address]

    def __str__(self) -> str:
        ids = ", ".join(map(str, sorted(self.brokers)))
        count = len(self.brokers)
        return f"cluster {printable(self.cluster_id)} with {count} live {'broker' if count == 1 else 'brokers'} (id {ids})"


class NotAllowedError(MigrationError):
    """The user lacks a right on the cluster."""


class GatewayAddressError(MigrationError):
    """The address is Weir's."""

    def __init__(self) -> None:
        super().__init__(
            "the address is that of a Weir gateway, which answers with its own quotas — name a broker's own address with"
            " --bootstrap-server"
        )


class BrokerAdmin:
    """A context manager: the connections of one command. Every method raises MigrationError with the cause and the remedy."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._connections = access.connections()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._connections.close()

    async def cluster(self) -> Cluster:
        fields = {"topics": [], "allow_auto_topic_creation": False}
        request = BrokerRequest(MetadataRequest, fields, _reader(MetadataResponse), oldest=4, newest=9)
        answer = await self._ask(request)
        with _readable("Metadata"):
            brokers = {each.node_id: (each.host, each.port) for each in answer.brokers}
        if not brokers or not answer.cluster_id:
            raise MigrationError("the brokers' Metadata names no brokers or no cluster id — try again later")
        return Cluster(answer.cluster_id, brokers)

    async def describe(self, address: Address | None = None) -> BrokerQuotas:
        """All quotas of users, client-ids and addresses, from any broker or the one with this address."""
        answer = await self._description([], address)
        self._check(answer.error_code, answer.error_message, "DescribeConfigs")
        with _readable("DescribeClientQuotas"):
            return {
                entity_of({part.entity_type: part.entity_name for part in entry.entity}): {
                    each.key: each.value for each in entry.values
                }
                for entry in answer.entries or ()
            }

    async def alter(self, changes: QuotaChanges, *, validate_only: bool = False) -> None:
        """Make all changes, `MAX_CHANGES` in a request. The controller makes those of a request at once."""
        for part in _parts(changes):
            await self._alter(part, validate_only=validate_only)

    async def alter_in_waves(self, cluster: Cluster, waves: Iterable[Iterable[Entity]], changes: QuotaChanges) -> None:
        """Make the changes of one wave after the other. Every live broker has applied a wave before the next begins."""
        for wave in waves:
            part = {entity: changes[entity] for entity in wave}
            await self.alter(part)
            await self.wait_until_applied(cluster, part)

    async def refuse_gateway(self) -> None:
        """Raises GatewayAddressError if the address is Weir's: only Weir accepts the key `request_rate`.

        A user may lack the right to alter, and a gateway with `quota_admins: broker_acls` passes the brokers' refusal on. Then
        a description decides, because only Weir describes groups. It needs no right that `describe` does not need.
        """
        results = await self._alter_results({(("user", None),): {"request_rate": 1.0}}, validate_only=True)
        with _readable("AlterClientQuotas"):
            ((code, _, message),) = results
        if code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED and NO_QUOTA_ADMIN not in (message or ""):
            component = DescribeClientQuotasRequest.ComponentData
            groups = component(version=_NEWEST, entity_type=GROUP, match_type=MATCH_EXACT, match="any")
            answer = await self._description([groups])
            code, message = answer.error_code, answer.error_message
        if code == ErrorCode.NONE:
            raise GatewayAddressError
        if code not in _BROKERS_CODES:
            self._check(code, message, "DescribeConfigs")

    async def ask_every_broker(self, cluster: Cluster) -> None:
        """Raises MigrationError if a live broker does not answer. An alteration could not be checked there."""
        for node_id, address in sorted(cluster.brokers.items()):
            try:
                await self.describe(address)
            except MigrationError as error:
                raise MigrationError(f"broker {node_id}: {error}, or run the command where all brokers answer") from None

    async def _description(self, components: list[Message], address: Address | None = None) -> KafkaResponse:
        """The answer to DescribeClientQuotas, perhaps with an error code."""
        request = BrokerRequest(
            DescribeClientQuotasRequest,
            {"components": components, "strict": False},
            _reader(DescribeClientQuotasResponse),
            oldest=0,
            newest=_NEWEST,
        )
        return await self._ask(request, address)

    async def _alter(self, changes: QuotaChanges, *, validate_only: bool) -> None:
        for code, entity, message in await self._alter_results(changes, validate_only=validate_only):
            self._check(code, f"{entity_text(entity)}: {message}", "AlterConfigs")

    async def _alter_results(self, changes: QuotaChanges, *, validate_only: bool) -> list[tuple[int, Entity, str | None]]:
        """The error code and the message of each entity."""
        entry_of = AlterClientQuotasRequest.EntryData
        entries = [
            entry_of(
                version=_NEWEST,
                entity=[entry_of.EntityData(version=_NEWEST, entity_type=kind, entity_name=name) for kind, name in entity],
                ops=[
                    entry_of.OpData(version=_NEWEST, key=key, value=value or 0.0, remove=value is None)
                    for key, value in values.items()
                ],
            )
            for entity, values in changes.items()
        ]
        request = BrokerRequest(
            AlterClientQuotasRequest,
            {"entries": entries, "validate_only": validate_only},
            _reader(AlterClientQuotasResponse),
            oldest=0,
            newest=_NEWEST,
        )
        answer = await self._ask(request)
        with _readable("AlterClientQuotas"):
            return [
                (
                    entry.error_code,
                    entity_of({part.entity_type: part.entity_name for part in entry.entity}),
                    entry.error_message,
                )
                for entry in answer.entries
            ]

    async def wait_until_applied(self, cluster: Cluster, changes: QuotaChanges) -> None:
        """Wait until each live broker describes the changes, because a broker learns of them from the controller's log."""
        for node_id, address in sorted(cluster.brokers.items()):
            until = clock.monotonic() + APPLIED_SECONDS
            while not _has(await self.describe(address), changes):
                if clock.monotonic() > until:
                    raise MigrationError(
                        f"broker {node_id} has not applied the change within {APPLIED_SECONDS:g} s — check that broker with"
                        " kafka-configs --describe"
                    )
                await asyncio.sleep(_LOOK_SECONDS)

    def _check(self, code: int, message: str | None, right: str) -> None:
        if code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
            if message is not None and NO_QUOTA_ADMIN in message:
                raise GatewayAddressError
            user = self._access.options().get("sasl_plain_username")
            raise NotAllowedError(
                f"the brokers refuse {f'the user {user}' if user else 'this user'}: it lacks the right {right} on the cluster"
                f"{f' ({message})' if message else ''} — log in as an administrator with --command-config FILE, or run"
                f" `kafka-acls.sh --add --allow-principal User:{user or 'NAME'} --operation {right} --cluster`"
            )
        if code:
            try:
                check_error(code, "the brokers refuse the request")
            except ClusterError as error:
                raise MigrationError(f"{error}: {message} — correct it with kafka-configs, and try again") from None

    async def _ask(self, request: Message, address: Address | None = None) -> KafkaResponse:
        try:
            if address is None:
                return await self._connections.ask_any(self._access.bootstrap, request)
            return await self._connections.ask(address, request)
        except ClusterError as error:
            if address is None:
                raise await self._access.explained(error) from None
            raise MigrationError(f"{error} — check that broker") from None


@contextmanager
def _readable(api: str) -> Iterator[None]:
    try:
        with answer_of(api):
            yield
    except ClusterError as error:
        raise MigrationError(f"{error} — name a broker of Apache Kafka 2.6 or later with --bootstrap-server") from None


def _reader(response: Message) -> Callable[[int, bytes], Any]:
    return lambda version, body: response.decode(body, version=version)


def _parts(changes: QuotaChanges) -> Iterator[QuotaChanges]:
    """The changes in parts of at most `MAX_CHANGES`, or one entity."""
    part: dict[Entity, Mapping[str, float | None]] = {}
    count = 0
    for entity, values in changes.items():
        if part and count + len(values) > MAX_CHANGES:
            yield part
            part, count = {}, 0
        part[entity] = values
        count += len(values)
    if part:
        yield part


def _has(quotas: BrokerQuotas, changes: QuotaChanges) -> bool:
    return all(quotas.get(entity, {}).get(key) == value for entity, values in changes.items() for key, value in values.items())
