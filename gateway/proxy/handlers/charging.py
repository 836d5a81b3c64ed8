"""Requests under a quota that charges figures, such as a rate of requests. Members of consumer groups send some of them."""

from typing import Final

from gateway.proxy.channel_throttle import ChannelThrottle
from gateway.proxy.handler import (
    DEFER,
    FORWARD,
    MAX_UNTRUSTED_BYTES,
    WAIT,
    Collect,
    Connection,
    Request,
    RequestHandler,
    Verdict,
)
from gateway.proxy.in_flight import Entry
from gateway.proxy.membership import HEARTBEATS
from protocol.api_keys import ApiKey
from protocol.bodies.group_membership import commits_as_member, read_answer, session_timeout_ms

_HEARTBEAT: Final = int(ApiKey.HEARTBEAT)
_JOIN_GROUP: Final = int(ApiKey.JOIN_GROUP)
_OFFSET_COMMIT: Final = int(ApiKey.OFFSET_COMMIT)
_SYNC_GROUP: Final = int(ApiKey.SYNC_GROUP)


class ChargedRequestHandler:
    """Charges a request to quota kinds with figures, once the API's own handler, if any, has decided.

    The request passes in any case. If it exceeds a quota, the client is muted (KIP-219). The first request of a connection
    waits while a bucket is in debt. A client without a quota of a kind is not charged.
    """

    __slots__ = ("_connection", "_inner", "_kinds")

    def __init__(self, connection: Connection, kinds: tuple[str, ...], inner: RequestHandler | None) -> None:
        self._connection = connection
        self._kinds = kinds
        self._inner = inner

    def handle(self, request: Request, now: float) -> Verdict:
        connection = self._connection
        connection.client.use(request.header.client_id, now)
        kinds = connection.client.limited_kinds(self._kinds, now)
        if not kinds:
            connection.client.place.leave_queue_of(self._kinds)  # the API's own handler may wait for its kind
        elif connection.enter_queues(kinds, request, now):
            return DEFER
        return self._pass_on(request, now, kinds)

    def _pass_on(self, request: Request, now: float, kinds: tuple[str, ...]) -> Verdict:
        verdict: Verdict = FORWARD if self._inner is None else self._inner.handle(request, now)
        if not kinds or verdict is DEFER or verdict is WAIT or isinstance(verdict, Collect):
            return verdict  # free, or the request comes again
        connection = self._connection
        for kind in kinds:
            connection.throttle.charge(connection.client.limited_buckets(kind, now), request.size, now, request.entry)
        return verdict


class MemberRequestHandler(ChargedRequestHandler):
    """As above, for the requests of a consumer group's members: `MEMBERSHIP_APIS`.

    A member's heartbeats are free, up to one a second. The coordinator's answer proves the membership. All but OffsetCommit
    begin the session timeout anew; OffsetCommit does so in classic groups only.
    """

    __slots__ = ()

    def handle(self, request: Request, now: float) -> Verdict:
        connection, header = self._connection, request.header
        connection.client.use(header.client_id, now)
        if not connection.client.has_request_rate(now):
            return super().handle(request, now)
        api_key = header.api_key
        at, end, after = header.body_offset, request.end, request.after
        if api_key == _OFFSET_COMMIT and (
            # The answer has a result for each partition, and Weir would hold all of it to parse it.
            request.frame_bytes > MAX_UNTRUSTED_BYTES or not commits_as_member(header.api_version, request.data, at, end, after)
        ):
            return super().handle(request, now)
        session: float | None = None
        if api_key == _JOIN_GROUP:
            session = session_timeout_ms(header.api_version, request.data, at, end, after) / 1000.0
        member = connection.throttle.membership()
        free = api_key in HEARTBEATS and member.take_free_heartbeat(now)
        if not free and connection.enter_queues(self._kinds, request, now):
            return DEFER
        if api_key != _OFFSET_COMMIT:
            member.beat(now)
        verdict = self._pass_on(request, now, () if free else self._kinds)
        if request.entry.special is None:
            request.intercept(MemberAnswerHandler(connection.throttle, request.entry, session))
        return verdict


class MemberAnswerHandler:
    """Reads from the coordinator's answer if the client is a member of its group. The client gets the answer unchanged."""

    __slots__ = ("_entry", "_session", "_throttle")

    def __init__(self, throttle: ChannelThrottle, entry: Entry, session: float | None) -> None:
        self._throttle = throttle
        self._entry = entry
        self._session = session

    def response(self, frame: bytes, now: float) -> bytes:
        api_key = self._entry.api_key
        answer = read_answer(api_key, self._entry.version, frame)
        if not answer.kept:
            return frame
        if api_key in HEARTBEATS and api_key != _HEARTBEAT:
            if answer.interval_ms > 0:  # otherwise the member has left
                self._throttle.accept_member(None, now, in_group_protocol=True)
            return frame
        if api_key in (_JOIN_GROUP, _SYNC_GROUP):
            self._throttle.membership().beat(now)  # the session timeout begins with the answer
        self._throttle.accept_member(self._session, now)
        return frame
