"""The right to alter quotas: of the principals in `quota_admins`, or, with `broker_acls`, of the clients that the broker lets.

The broker judges the principal that the client has authenticated as, so Weir asks on the client's own connection.
"""

from typing import Final

from gateway.alter_queue import AlterQueue, denied
from gateway.proxy.handler import Connection
from protocol.bodies import client_quotas
from protocol.bodies.client_quotas import AlterEntry, AlterRequest, AlterResult, EntityPart, Op
from protocol.error_codes import ErrorCode
from protocol.errors import InvalidFrame
from protocol.headers import RequestHeader

PROBE: Final = AlterRequest((AlterEntry((EntityPart("user", None),), (Op("producer_byte_rate", None),)),), validate_only=True)
"""Removes a quota, and only for validation: every broker accepts it from a client with the right, and changes nothing.

Brokers check AlterConfigs on the cluster before they look at the entries. A broker forwards the request to the controller.
"""


class AlterRight:
    """The right of the client behind one request. The answer is not kept for later requests: ACLs may change at any time.

    `refusal` has the code and the message for a client without the right: with `broker_acls`, those of the broker's answer. An
    error other than a missing right, such as a controller that does not answer, refuses as well. `by_broker` is True once the
    broker is asked, and `throttle_time_ms` is its throttle time.
    """

    def __init__(self, connection: Connection, queue: AlterQueue) -> None:
        self._connection = connection
        self._queue = queue
        self._decided = False
        self.refusal: AlterResult | None = None
        self.by_broker = False
        self.throttle_time_ms = 0

    def known(self, header: RequestHeader, now: float) -> bool:
        """True if the right is granted or refused. Otherwise the handler returns WAIT, and asks again in `Connection.ready`."""
        if not (self._decided or self.by_broker):
            user = self._connection.client.user
            listed = self._queue.allows(user)
            if listed is None:
                self.by_broker = True
                request = client_quotas.ask_alter(header.correlation_id, header.client_id, PROBE)
                self._connection.send_own_request(request, self._take, now)
            else:
                self._decide(ErrorCode.NONE if listed else ErrorCode.CLUSTER_AUTHORIZATION_FAILED, denied(user))
        return self._decided

    def _take(self, answer: bytes, now: float) -> None:  # noqa: ARG002
        response = client_quotas.read_alter_response(client_quotas.ASKED, answer)
        if len(response.results) != len(PROBE.entries):
            raise InvalidFrame("broker_results", f"the broker answers {len(response.results)} of {len(PROBE.entries)} entities")
        self.throttle_time_ms = response.throttle_time_ms
        self._decide(response.results[0].error_code, response.results[0].message)
        self._connection.ready()

    def _decide(self, code: int, message: str | None) -> None:
        self._decided = True
        if code != ErrorCode.NONE:
            self.refusal = AlterResult(code, message, ())
