"""The registry of handler factories by API key: the proxy's own handlers and those of the features."""

from collections.abc import Mapping
from typing import Final

from gateway.proxy.handler import FORWARD, Connection, HandlerFactory, Replace, Request, RequestHandler, Verdict
from protocol.api_keys import APIS, ApiKey
from protocol.bodies import find_coordinator

_API_VERSIONS: Final = int(ApiKey.API_VERSIONS)
_VERSION_AT: Final = 6
_VERSION_BYTES: Final = 2
_UNKNOWN_VERSION: Final = b"\x7f\xff"


class FindCoordinatorHandler:
    """Checks the keys of a FindCoordinator, since the broker's answer is opened for its addresses."""

    def handle(self, request: Request, now: float) -> Verdict:  # noqa: ARG002
        header = request.header
        find_coordinator.check_request(header.api_version, request.data, header.body_offset, request.end, request.after)
        return FORWARD


class ApiVersionsHandler:
    """Gives an ApiVersions that is newer than Weir knows a version that no broker knows.

    The broker then answers in version 0, which Weir knows: the error, and the versions that there are (KIP-511).
    """

    def handle(self, request: Request, now: float) -> Verdict:  # noqa: ARG002
        if request.header.api_version <= APIS[_API_VERSIONS].max_version:
            return FORWARD
        request.entry.key = _API_VERSIONS << 16
        at = request.pos + _VERSION_AT
        return Replace(request.data[request.pos : at] + _UNKNOWN_VERSION + request.data[at + _VERSION_BYTES : request.end])


_FIND_COORDINATOR_HANDLER: Final = FindCoordinatorHandler()
_API_VERSIONS_HANDLER: Final = ApiVersionsHandler()


def _produce(connection: Connection) -> RequestHandler | None:
    return connection.produce


def _fetch(connection: Connection) -> RequestHandler | None:
    return connection.fetch


def _share_fetch(connection: Connection) -> RequestHandler | None:
    return connection.share_fetch


def _find_coordinator(connection: Connection) -> RequestHandler:  # noqa: ARG001
    return _FIND_COORDINATOR_HANDLER


def _api_versions(connection: Connection) -> RequestHandler:  # noqa: ARG001
    return _API_VERSIONS_HANDLER


def registry(of_features: Mapping[int, HandlerFactory]) -> dict[int, HandlerFactory]:
    """All handler factories. Requests of other APIs are forwarded as they come."""
    return {
        **of_features,
        int(ApiKey.PRODUCE): _produce,
        int(ApiKey.FETCH): _fetch,
        int(ApiKey.SHARE_FETCH): _share_fetch,
        int(ApiKey.FIND_COORDINATOR): _find_coordinator,
        int(ApiKey.API_VERSIONS): _api_versions,
    }
