"""The registry of handler factories by API key: the proxy's own handlers and those of the features."""

from collections.abc import Mapping
from typing import Final

from gateway.proxy.handler import FORWARD, Connection, HandlerFactory, Replace, Request, Verdict, check_size
from gateway.proxy.handlers.charging import ChargedRequestHandler, MemberRequestHandler
from gateway.proxy.membership import MEMBERSHIP_APIS
from gateway.quotas.kinds import request_kinds
from protocol.api_keys import APIS, ApiKey
from protocol.bodies import api_versions, find_coordinator

_API_VERSIONS: Final = int(ApiKey.API_VERSIONS)
_VERSION_AT: Final = 6
_VERSION_BYTES: Final = 2
_UNKNOWN_VERSION: Final = b"\x7f\xff"


class FindCoordinatorHandler:
    """Checks the size of a FindCoordinator and its keys, since the broker's answer is collected for its addresses."""

    def handle(self, request: Request, now: float) -> Verdict:  # noqa: ARG002
        header = request.header
        check_size(request.frame_bytes, find_coordinator.MAX_REQUEST_BYTES, "ask for the coordinators in several requests")
        find_coordinator.check_request(header.api_version, request.data, header.body_offset, request.end, request.after)
        return FORWARD


class ApiVersionsHandler:
    """Notes the client's software. Gives an ApiVersions that is newer than Weir knows a version that no broker knows.

    The broker then answers in version 0, which Weir knows: the error, and the versions that there are (KIP-511).
    """

    __slots__ = ("_connection",)

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def handle(self, request: Request, now: float) -> Verdict:
        header = request.header
        self._connection.client.use(header.client_id, now)
        if header.api_version <= APIS[_API_VERSIONS].max_version:
            self._connection.software = api_versions.software(
                header.api_version, request.data, header.body_offset, request.end, request.after
            )
            return FORWARD
        request.entry.key = _API_VERSIONS << 16
        at = request.pos + _VERSION_AT
        return Replace(request.data[request.pos : at] + _UNKNOWN_VERSION + request.data[at + _VERSION_BYTES : request.end])


_FIND_COORDINATOR_HANDLER: Final = FindCoordinatorHandler()


def registry(of_features: Mapping[int, HandlerFactory]) -> dict[int, HandlerFactory]:
    """All handler factories. Requests of other APIs are forwarded as they come."""
    return {
        **of_features,
        int(ApiKey.PRODUCE): lambda connection: connection.produce,
        int(ApiKey.FETCH): lambda connection: connection.fetch,
        int(ApiKey.SHARE_FETCH): lambda connection: connection.share_fetch,
        int(ApiKey.FIND_COORDINATOR): lambda _: _FIND_COORDINATOR_HANDLER,
        int(ApiKey.API_VERSIONS): ApiVersionsHandler,
    }


def charging_registry(handlers: Mapping[int, HandlerFactory]) -> dict[int, HandlerFactory]:
    """These factories, and a charge for every request of a kind with figures.

    Sessions use them only while such a quota exists (`QuotaEngine.charges_requests`): most APIs need no handler otherwise.
    """
    charging = dict(handlers)
    for api in APIS:
        kinds = tuple([kind.name for kind in request_kinds(ApiKey(api))])
        if kinds and api != ApiKey.PRODUCE:  # Produce has a fast path, so its own handler charges it
            charging[api] = _charged(api, kinds, handlers.get(api))
    return charging


def _charged(api: int, kinds: tuple[str, ...], inner: HandlerFactory | None) -> HandlerFactory:
    handler = MemberRequestHandler if api in MEMBERSHIP_APIS else ChargedRequestHandler
    return lambda connection: handler(connection, kinds, None if inner is None else inner(connection))
