"""Every API key of Kafka 4.3 with its versions, its first flexible version and the position of throttle_time_ms.

Source: the message specifications in kafka-clients 4.3.0 (``common/message/*.json``). A new version or API is one row in
`ApiKey`. First check that it carries no broker address that `protocol.bodies` does not rewrite.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Final

NEVER: Final = 2**15
"""A version above every real one; it means "in no version"."""

WALK: Final = -1
"""The `ApiSpec.throttle_place` of a response in which fields of variable length precede throttle_time_ms."""


@dataclass(frozen=True, slots=True)
class ApiSpec:
    """The facts about one API that the gateway needs to forward it.

    The gateway knows all versions up to `max_version`. Kafka 4 dropped many old ones, but the gateway supports brokers from
    2.8 on. It advertises the versions that the broker supports as well.

    - `flexible_since`: first version with compact strings and tagged fields (KIP-482), or `NEVER`.
    - `throttle_since`: first version with throttle_time_ms in the response, or `NEVER`.
    - `throttle_place`: offset of throttle_time_ms in the response body, in bytes, or `WALK`; see `protocol.throttle`.
    - `on_broker_listener`: True if brokers serve the API to clients; the gateway never advertises the others.
    """

    key: int
    max_version: int
    flexible_since: int
    throttle_since: int
    throttle_place: int = 0
    on_broker_listener: bool = True

    @property
    def name(self) -> str:
        return ApiKey(self.key).name.title().replace("_", "")


APIS: Final[dict[int, ApiSpec]] = {}
"""The facts about each API, by its key. `ApiKey` has the table."""

_INTERNAL: Final = False  # makes the table's last column readable


def _api(key: int, max_version: int, flexible: int, throttle: int, place: int = 0, listener: bool = True) -> int:
    APIS[key] = ApiSpec(key, max_version, flexible, throttle, place, listener)
    return key


class ApiKey(IntEnum):
    """Kafka's API keys (``org.apache.kafka.common.protocol.ApiKeys``), each with the facts about its API."""

    # fmt: off
    #                                      key, max, flexible, throttle[, place, listener]
    PRODUCE                         = _api( 0, 13,     9,     1, WALK)
    FETCH                           = _api( 1, 18,    12,     1)
    LIST_OFFSETS                    = _api( 2, 11,     6,     2)
    METADATA                        = _api( 3, 13,     9,     3)
    LEADER_AND_ISR                  = _api( 4,  7,     4, NEVER, 0, _INTERNAL)
    STOP_REPLICA                    = _api( 5,  4,     2, NEVER, 0, _INTERNAL)
    UPDATE_METADATA                 = _api( 6,  8,     6, NEVER, 0, _INTERNAL)
    CONTROLLED_SHUTDOWN             = _api( 7,  3,     3, NEVER, 0, _INTERNAL)
    OFFSET_COMMIT                   = _api( 8, 10,     8,     3)
    OFFSET_FETCH                    = _api( 9, 10,     6,     3)
    FIND_COORDINATOR                = _api(10,  6,     3,     1)
    JOIN_GROUP                      = _api(11,  9,     6,     2)
    HEARTBEAT                       = _api(12,  4,     4,     1)
    LEAVE_GROUP                     = _api(13,  5,     4,     1)
    SYNC_GROUP                      = _api(14,  5,     4,     1)
    DESCRIBE_GROUPS                 = _api(15,  6,     5,     1)
    LIST_GROUPS                     = _api(16,  5,     3,     1)
    SASL_HANDSHAKE                  = _api(17,  1, NEVER, NEVER)
    API_VERSIONS                    = _api(18,  4,     3,     1, WALK)
    CREATE_TOPICS                   = _api(19,  7,     5,     2)
    DELETE_TOPICS                   = _api(20,  6,     4,     1)
    DELETE_RECORDS                  = _api(21,  2,     2,     0)
    INIT_PRODUCER_ID                = _api(22,  6,     2,     0)
    OFFSET_FOR_LEADER_EPOCH         = _api(23,  4,     4,     2)
    ADD_PARTITIONS_TO_TXN           = _api(24,  5,     3,     0)
    ADD_OFFSETS_TO_TXN              = _api(25,  4,     3,     0)
    END_TXN                         = _api(26,  5,     3,     0)
    WRITE_TXN_MARKERS               = _api(27,  2,     1, NEVER)
    TXN_OFFSET_COMMIT               = _api(28,  5,     3,     0)
    DESCRIBE_ACLS                   = _api(29,  3,     2,     0)
    CREATE_ACLS                     = _api(30,  3,     2,     0)
    DELETE_ACLS                     = _api(31,  3,     2,     0)
    DESCRIBE_CONFIGS                = _api(32,  4,     4,     0)
    ALTER_CONFIGS                   = _api(33,  2,     2,     0)
    ALTER_REPLICA_LOG_DIRS          = _api(34,  2,     2,     0)
    DESCRIBE_LOG_DIRS               = _api(35,  5,     2,     0)
    SASL_AUTHENTICATE               = _api(36,  2,     2, NEVER)
    CREATE_PARTITIONS               = _api(37,  3,     2,     0)
    CREATE_DELEGATION_TOKEN         = _api(38,  3,     2,     0, WALK)
    RENEW_DELEGATION_TOKEN          = _api(39,  2,     2,     0, 10)
    EXPIRE_DELEGATION_TOKEN         = _api(40,  2,     2,     0, 10)
    DESCRIBE_DELEGATION_TOKEN       = _api(41,  3,     2,     0, WALK)
    DELETE_GROUPS                   = _api(42,  2,     2,     0)
    ELECT_LEADERS                   = _api(43,  2,     2,     0)
    INCREMENTAL_ALTER_CONFIGS       = _api(44,  1,     1,     0)
    ALTER_PARTITION_REASSIGNMENTS   = _api(45,  1,     0,     0)
    LIST_PARTITION_REASSIGNMENTS    = _api(46,  0,     0,     0)
    OFFSET_DELETE                   = _api(47,  0, NEVER,     0, 2)
    DESCRIBE_CLIENT_QUOTAS          = _api(48,  1,     1,     0)
    ALTER_CLIENT_QUOTAS             = _api(49,  1,     1,     0)
    DESCRIBE_USER_SCRAM_CREDENTIALS = _api(50,  0,     0,     0)
    ALTER_USER_SCRAM_CREDENTIALS    = _api(51,  0,     0,     0)
    VOTE                            = _api(52,  2,     0, NEVER, 0, _INTERNAL)
    BEGIN_QUORUM_EPOCH              = _api(53,  1,     1, NEVER, 0, _INTERNAL)
    END_QUORUM_EPOCH                = _api(54,  1,     1, NEVER, 0, _INTERNAL)
    DESCRIBE_QUORUM                 = _api(55,  2,     0, NEVER)
    ALTER_PARTITION                 = _api(56,  3,     0,     0, 0, _INTERNAL)
    UPDATE_FEATURES                 = _api(57,  2,     0,     0)
    ENVELOPE                        = _api(58,  0,     0, NEVER, 0, _INTERNAL)
    FETCH_SNAPSHOT                  = _api(59,  1,     0,     0, 0, _INTERNAL)
    DESCRIBE_CLUSTER                = _api(60,  2,     0,     0)
    DESCRIBE_PRODUCERS              = _api(61,  0,     0,     0)
    BROKER_REGISTRATION             = _api(62,  4,     0,     0, 0, _INTERNAL)
    BROKER_HEARTBEAT                = _api(63,  2,     0,     0, 0, _INTERNAL)
    UNREGISTER_BROKER               = _api(64,  0,     0,     0)
    DESCRIBE_TRANSACTIONS           = _api(65,  0,     0,     0)
    LIST_TRANSACTIONS               = _api(66,  2,     0,     0)
    ALLOCATE_PRODUCER_IDS           = _api(67,  0,     0,     0, 0, _INTERNAL)
    CONSUMER_GROUP_HEARTBEAT        = _api(68,  1,     0,     0)
    CONSUMER_GROUP_DESCRIBE         = _api(69,  1,     0,     0)
    CONTROLLER_REGISTRATION         = _api(70,  0,     0,     0, 0, _INTERNAL)
    GET_TELEMETRY_SUBSCRIPTIONS     = _api(71,  0,     0,     0)
    PUSH_TELEMETRY                  = _api(72,  0,     0,     0)
    ASSIGN_REPLICAS_TO_DIRS         = _api(73,  0,     0,     0, 0, _INTERNAL)
    LIST_CONFIG_RESOURCES           = _api(74,  1,     0,     0)
    DESCRIBE_TOPIC_PARTITIONS       = _api(75,  0,     0,     0)
    SHARE_GROUP_HEARTBEAT           = _api(76,  1,     0,     0)
    SHARE_GROUP_DESCRIBE            = _api(77,  1,     0,     0)
    SHARE_FETCH                     = _api(78,  2,     0,     0)
    SHARE_ACKNOWLEDGE               = _api(79,  2,     0,     0)
    ADD_RAFT_VOTER                  = _api(80,  1,     0,     0)
    REMOVE_RAFT_VOTER               = _api(81,  0,     0,     0)
    UPDATE_RAFT_VOTER               = _api(82,  0,     0,     0, 0, _INTERNAL)
    INITIALIZE_SHARE_GROUP_STATE    = _api(83,  0,     0, NEVER)
    READ_SHARE_GROUP_STATE          = _api(84,  0,     0, NEVER)
    WRITE_SHARE_GROUP_STATE         = _api(85,  1,     0, NEVER)
    DELETE_SHARE_GROUP_STATE        = _api(86,  0,     0, NEVER)
    READ_SHARE_GROUP_STATE_SUMMARY  = _api(87,  1,     0, NEVER)
    STREAMS_GROUP_HEARTBEAT         = _api(88,  0,     0,     0)
    STREAMS_GROUP_DESCRIBE          = _api(89,  0,     0,     0)
    DESCRIBE_SHARE_GROUP_OFFSETS    = _api(90,  1,     0,     0)
    ALTER_SHARE_GROUP_OFFSETS       = _api(91,  0,     0,     0)
    DELETE_SHARE_GROUP_OFFSETS      = _api(92,  0,     0,     0)
    # fmt: on


BEFORE_AUTHENTICATION: Final = frozenset({ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE})
"""The requests that a broker takes from a client that still has to authenticate (`SaslServerAuthenticator`)."""


def request_header_version(key: int, version: int) -> int:
    """0 (no client id), 1, or 2 (tagged fields). Raises `KeyError` for an unknown key."""
    if version >= APIS[key].flexible_since:
        return 2
    return 0 if key == ApiKey.CONTROLLED_SHUTDOWN and version == 0 else 1


def response_header_version(key: int, version: int) -> int:
    """0, or 1 (tagged fields). Raises `KeyError` for an unknown key.

    ApiVersions always uses 0, so that a client can decode the response before it knows the broker (KIP-511).
    """
    return 1 if version >= APIS[key].flexible_since and key != ApiKey.API_VERSIONS else 0
