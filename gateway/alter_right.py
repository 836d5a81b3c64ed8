"""The right to alter quotas: of the principals in `quota_admins`, or, with `broker_acls`, of the clients that the broker lets.

The broker judges the principal that the client has authenticated as, so Weir asks on the client's own connection.
"""

from collections.abc import Mapping
from enum import Enum, auto
from typing import Final

from gateway.alter_queue import AlterQueue, denied
from gateway.proxy.handler import Connection
from gateway.proxy.states import next_state
from protocol.bodies import client_quotas
from protocol.bodies.client_quotas import AlterEntry, AlterRequest, AlterResult, EntityPart, Op
from protocol.error_codes import ErrorCode
from protocol.errors import InvalidFrame
from protocol.headers import RequestHeader

PROBE: Final = AlterRequest((AlterEntry((EntityPart("user", None),), (Op("producer_byte_rate", None),)),), validate_only=True)
"""Removes a quota, and only for validation: every broker accepts it from a client with the right, and changes nothing.

Brokers check AlterConfigs on the cluster before they look at the entries. A broker forwards the request to the controller.
"""


class RightState(Enum):
    """The knowledge about the right of one request's client."""

    UNKNOWN = auto()
    ASKED = auto()  # the broker has not answered yet
    GRANTED = auto()
    REFUSED = auto()


class RightEvent(Enum):
    """A step on the way to the decision."""

    ASK = auto()
    GRANT = auto()
    REFUSE = auto()


_S, _E = RightState, RightEvent

RIGHT_TRANSITIONS: Final[Mapping[tuple[RightState, RightEvent], RightState]] = {
    (_S.UNKNOWN, _E.GRANT): _S.GRANTED,  # by the list
    (_S.UNKNOWN, _E.REFUSE): _S.REFUSED,
    (_S.UNKNOWN, _E.ASK): _S.ASKED,
    (_S.ASKED, _E.GRANT): _S.GRANTED,
    (_S.ASKED, _E.REFUSE): _S.REFUSED,
}
"""Every legal transition; any other one raises. A decision is final, and holds for one request."""


class AlterRight:
    """The right of the client behind one request. The answer is not kept for later requests: ACLs may change at any time.

    `refusal` has the code and the message for a client without the right: with `broker_acls`, those of the broker's answer. An
    error other than a missing right, such as a controller that does not answer, refuses as well. `by_broker` is True if the
    broker was asked, and `throttle_time_ms` is its throttle time.
    """

    def __init__(self, connection: Connection, queue: AlterQueue) -> None:
        self._connection = connection
        self._queue = queue
        self._state = RightState.UNKNOWN
        self.refusal: AlterResult | None = None
        self.by_broker = False
        self.throttle_time_ms = 0

    def known(self, header: RequestHeader, now: float) -> bool:
        """True if the right is granted or refused. Otherwise the handler returns WAIT, and asks again in `Connection.ready`."""
        if self._state is RightState.UNKNOWN:
            user = self._connection.client.user
            listed = self._queue.allows(user)
            if listed is None:
                self._fire(RightEvent.ASK)
                self.by_broker = True
                request = client_quotas.ask_alter(header.correlation_id, header.client_id, PROBE)
                self._connection.send_own_request(request, self._take, now)
            else:
                self._decide(ErrorCode.NONE if listed else ErrorCode.CLUSTER_AUTHORIZATION_FAILED, denied(user))
        return self._state is not RightState.ASKED

    def _take(self, answer: bytes, now: float) -> None:  # noqa: ARG002
        response = client_quotas.read_alter_response(client_quotas.ASKED, answer)
        if len(response.results) != len(PROBE.entries):
            raise InvalidFrame("broker_results", f"the broker answers {len(response.results)} of {len(PROBE.entries)} entities")
        self.throttle_time_ms = response.throttle_time_ms
        self._decide(response.results[0].error_code, response.results[0].message)
        self._connection.ready()

    def _decide(self, code: int, message: str | None) -> None:
        self._fire(RightEvent.GRANT if code == ErrorCode.NONE else RightEvent.REFUSE)
        if code != ErrorCode.NONE:
            self.refusal = AlterResult(code, message, ())

    def _fire(self, event: RightEvent) -> None:
        self._state = next_state(RIGHT_TRANSITIONS, self._state, event)
