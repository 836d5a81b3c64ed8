"""Every API key of Kafka 4.3 with its versions, its first flexible version and the position of throttle_time_ms.

Sources: the message specifications in kafka-clients 4.3.0 (``common/message/*.json``) for versions and fields;
``AbstractResponse.shouldClientThrottle`` for the client's side; KIP-219 for their meaning. A new version or API is one row
in `_ROWS`. First check that it carries no broker address that `protocol.bodies` does not rewrite.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Final

NEVER: Final = 2**15
"""A version above every real one; it means "in no version"."""

WALK: Final = -1
"""The `ApiSpec.throttle_place` of a response in which fields of variable length precede throttle_time_ms."""


class ApiKey(IntEnum):
    """Kafka's API keys (``org.apache.kafka.common.protocol.ApiKeys``)."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    LEADER_AND_ISR = 4
    STOP_REPLICA = 5
    UPDATE_METADATA = 6
    CONTROLLED_SHUTDOWN = 7
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    WRITE_TXN_MARKERS = 27
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_ACLS = 29
    CREATE_ACLS = 30
    DELETE_ACLS = 31
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    ALTER_REPLICA_LOG_DIRS = 34
    DESCRIBE_LOG_DIRS = 35
    SASL_AUTHENTICATE = 36
    CREATE_PARTITIONS = 37
    CREATE_DELEGATION_TOKEN = 38
    RENEW_DELEGATION_TOKEN = 39
    EXPIRE_DELEGATION_TOKEN = 40
    DESCRIBE_DELEGATION_TOKEN = 41
    DELETE_GROUPS = 42
    ELECT_LEADERS = 43
    INCREMENTAL_ALTER_CONFIGS = 44
    ALTER_PARTITION_REASSIGNMENTS = 45
    LIST_PARTITION_REASSIGNMENTS = 46
    OFFSET_DELETE = 47
    DESCRIBE_CLIENT_QUOTAS = 48
    ALTER_CLIENT_QUOTAS = 49
    DESCRIBE_USER_SCRAM_CREDENTIALS = 50
    ALTER_USER_SCRAM_CREDENTIALS = 51
    VOTE = 52
    BEGIN_QUORUM_EPOCH = 53
    END_QUORUM_EPOCH = 54
    DESCRIBE_QUORUM = 55
    ALTER_PARTITION = 56
    UPDATE_FEATURES = 57
    ENVELOPE = 58
    FETCH_SNAPSHOT = 59
    DESCRIBE_CLUSTER = 60
    DESCRIBE_PRODUCERS = 61
    BROKER_REGISTRATION = 62
    BROKER_HEARTBEAT = 63
    UNREGISTER_BROKER = 64
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66
    ALLOCATE_PRODUCER_IDS = 67
    CONSUMER_GROUP_HEARTBEAT = 68
    CONSUMER_GROUP_DESCRIBE = 69
    CONTROLLER_REGISTRATION = 70
    GET_TELEMETRY_SUBSCRIPTIONS = 71
    PUSH_TELEMETRY = 72
    ASSIGN_REPLICAS_TO_DIRS = 73
    LIST_CONFIG_RESOURCES = 74
    DESCRIBE_TOPIC_PARTITIONS = 75
    SHARE_GROUP_HEARTBEAT = 76
    SHARE_GROUP_DESCRIBE = 77
    SHARE_FETCH = 78
    SHARE_ACKNOWLEDGE = 79
    ADD_RAFT_VOTER = 80
    REMOVE_RAFT_VOTER = 81
    UPDATE_RAFT_VOTER = 82
    INITIALIZE_SHARE_GROUP_STATE = 83
    READ_SHARE_GROUP_STATE = 84
    WRITE_SHARE_GROUP_STATE = 85
    DELETE_SHARE_GROUP_STATE = 86
    READ_SHARE_GROUP_STATE_SUMMARY = 87
    STREAMS_GROUP_HEARTBEAT = 88
    STREAMS_GROUP_DESCRIBE = 89
    DESCRIBE_SHARE_GROUP_OFFSETS = 90
    ALTER_SHARE_GROUP_OFFSETS = 91
    DELETE_SHARE_GROUP_OFFSETS = 92


@dataclass(frozen=True, slots=True)
class ApiSpec:
    """The facts about one API that the gateway needs to forward it.

    `min_version` and `max_version` are inclusive. Kafka 4 dropped many old versions, but the gateway supports brokers from
    2.8 on. So `min_version` is 0 for every API with a known old layout. The gateway advertises the versions that the broker
    supports as well.

    - `flexible_since`: first version with compact strings and tagged fields (KIP-482), or `NEVER`.
    - `throttle_since`: first version with throttle_time_ms in the response, or `NEVER`.
    - `throttle_place`: offset of throttle_time_ms in the response body, in bytes, or `WALK`; see `protocol.throttle`.
    - `client_throttles_since`: first version from which the client itself obeys throttle_time_ms, or `NEVER`.
    - `on_broker_listener`: True if brokers serve the API to clients; the gateway never advertises the others.
    """

    key: ApiKey
    max_version: int
    flexible_since: int
    throttle_since: int
    client_throttles_since: int
    throttle_place: int = 0
    on_broker_listener: bool = True
    min_version: int = 0

    @property
    def name(self) -> str:
        return self.key.name.title().replace("_", "")


_INTERNAL: Final = False  # makes the table's last column readable

# fmt: off
_ROWS: Final = (
    # key                                           max flexible throttle client-throttles [place, listener]
    ApiSpec(ApiKey.PRODUCE,                         13,     9,       1,     6, WALK),
    ApiSpec(ApiKey.FETCH,                           18,    12,       1,     8),
    ApiSpec(ApiKey.LIST_OFFSETS,                    11,     6,       2,     3),
    ApiSpec(ApiKey.METADATA,                        13,     9,       3,     6),
    ApiSpec(ApiKey.LEADER_AND_ISR,                   7,     4,   NEVER, NEVER, 0, _INTERNAL),
    ApiSpec(ApiKey.STOP_REPLICA,                     4,     2,   NEVER, NEVER, 0, _INTERNAL),
    ApiSpec(ApiKey.UPDATE_METADATA,                  8,     6,   NEVER, NEVER, 0, _INTERNAL),
    ApiSpec(ApiKey.CONTROLLED_SHUTDOWN,              3,     3,   NEVER, NEVER, 0, _INTERNAL),
    ApiSpec(ApiKey.OFFSET_COMMIT,                   10,     8,       3,     4),
    ApiSpec(ApiKey.OFFSET_FETCH,                    10,     6,       3,     4),
    ApiSpec(ApiKey.FIND_COORDINATOR,                 6,     3,       1,     2),
    ApiSpec(ApiKey.JOIN_GROUP,                       9,     6,       2,     3),
    ApiSpec(ApiKey.HEARTBEAT,                        4,     4,       1,     2),
    ApiSpec(ApiKey.LEAVE_GROUP,                      5,     4,       1,     2),
    ApiSpec(ApiKey.SYNC_GROUP,                       5,     4,       1,     2),
    ApiSpec(ApiKey.DESCRIBE_GROUPS,                  6,     5,       1,     2),
    ApiSpec(ApiKey.LIST_GROUPS,                      5,     3,       1,     2),
    ApiSpec(ApiKey.SASL_HANDSHAKE,                   1, NEVER,   NEVER, NEVER),
    ApiSpec(ApiKey.API_VERSIONS,                     4,     3,       1,     2, WALK),
    ApiSpec(ApiKey.CREATE_TOPICS,                    7,     5,       2,     3),
    ApiSpec(ApiKey.DELETE_TOPICS,                    6,     4,       1,     2),
    ApiSpec(ApiKey.DELETE_RECORDS,                   2,     2,       0,     1),
    ApiSpec(ApiKey.INIT_PRODUCER_ID,                 6,     2,       0,     1),
    ApiSpec(ApiKey.OFFSET_FOR_LEADER_EPOCH,          4,     4,       2, NEVER),
    ApiSpec(ApiKey.ADD_PARTITIONS_TO_TXN,            5,     3,       0,     1),
    ApiSpec(ApiKey.ADD_OFFSETS_TO_TXN,               4,     3,       0,     1),
    ApiSpec(ApiKey.END_TXN,                          5,     3,       0,     1),
    ApiSpec(ApiKey.WRITE_TXN_MARKERS,                2,     1,   NEVER, NEVER),
    ApiSpec(ApiKey.TXN_OFFSET_COMMIT,                5,     3,       0,     1),
    ApiSpec(ApiKey.DESCRIBE_ACLS,                    3,     2,       0,     1),
    ApiSpec(ApiKey.CREATE_ACLS,                      3,     2,       0,     1),
    ApiSpec(ApiKey.DELETE_ACLS,                      3,     2,       0,     1),
    ApiSpec(ApiKey.DESCRIBE_CONFIGS,                 4,     4,       0,     2),
    ApiSpec(ApiKey.ALTER_CONFIGS,                    2,     2,       0,     1),
    ApiSpec(ApiKey.ALTER_REPLICA_LOG_DIRS,           2,     2,       0,     1),
    ApiSpec(ApiKey.DESCRIBE_LOG_DIRS,                5,     2,       0,     1),
    ApiSpec(ApiKey.SASL_AUTHENTICATE,                2,     2,   NEVER, NEVER),
    ApiSpec(ApiKey.CREATE_PARTITIONS,                3,     2,       0,     1),
    ApiSpec(ApiKey.CREATE_DELEGATION_TOKEN,          3,     2,       0,     1, WALK),
    ApiSpec(ApiKey.RENEW_DELEGATION_TOKEN,           2,     2,       0,     1, 10),
    ApiSpec(ApiKey.EXPIRE_DELEGATION_TOKEN,          2,     2,       0,     1, 10),
    ApiSpec(ApiKey.DESCRIBE_DELEGATION_TOKEN,        3,     2,       0,     1, WALK),
    ApiSpec(ApiKey.DELETE_GROUPS,                    2,     2,       0,     1),
    ApiSpec(ApiKey.ELECT_LEADERS,                    2,     2,       0,     0),
    ApiSpec(ApiKey.INCREMENTAL_ALTER_CONFIGS,        1,     1,       0,     0),
    ApiSpec(ApiKey.ALTER_PARTITION_REASSIGNMENTS,    1,     0,       0,     0),
    ApiSpec(ApiKey.LIST_PARTITION_REASSIGNMENTS,     0,     0,       0,     0),
    ApiSpec(ApiKey.OFFSET_DELETE,                    0, NEVER,       0,     0, 2),
    ApiSpec(ApiKey.DESCRIBE_CLIENT_QUOTAS,           1,     1,       0, NEVER),
    ApiSpec(ApiKey.ALTER_CLIENT_QUOTAS,              1,     1,       0, NEVER),
    ApiSpec(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS,  0,     0,       0,     0),
    ApiSpec(ApiKey.ALTER_USER_SCRAM_CREDENTIALS,     0,     0,       0,     0),
    ApiSpec(ApiKey.VOTE,                             2,     0,   NEVER, NEVER, 0, _INTERNAL),
    ApiSpec(ApiKey.BEGIN_QUORUM_EPOCH,               1,     1,   NEVER, NEVER, 0, _INTERNAL),
    ApiSpec(ApiKey.END_QUORUM_EPOCH,                 1,     1,   NEVER, NEVER, 0, _INTERNAL),
    ApiSpec(ApiKey.DESCRIBE_QUORUM,                  2,     0,   NEVER, NEVER),
    ApiSpec(ApiKey.ALTER_PARTITION,                  3,     0,       0, NEVER, 0, _INTERNAL),
    ApiSpec(ApiKey.UPDATE_FEATURES,                  2,     0,       0, NEVER),
    ApiSpec(ApiKey.ENVELOPE,                         0,     0,   NEVER, NEVER, 0, _INTERNAL),
    ApiSpec(ApiKey.FETCH_SNAPSHOT,                   1,     0,       0, NEVER, 0, _INTERNAL),
    ApiSpec(ApiKey.DESCRIBE_CLUSTER,                 2,     0,       0, NEVER),
    ApiSpec(ApiKey.DESCRIBE_PRODUCERS,               0,     0,       0, NEVER),
    ApiSpec(ApiKey.BROKER_REGISTRATION,              4,     0,       0,     0, 0, _INTERNAL),
    ApiSpec(ApiKey.BROKER_HEARTBEAT,                 2,     0,       0,     0, 0, _INTERNAL),
    ApiSpec(ApiKey.UNREGISTER_BROKER,                0,     0,       0,     0),
    ApiSpec(ApiKey.DESCRIBE_TRANSACTIONS,            0,     0,       0, NEVER),
    ApiSpec(ApiKey.LIST_TRANSACTIONS,                2,     0,       0, NEVER),
    ApiSpec(ApiKey.ALLOCATE_PRODUCER_IDS,            0,     0,       0, NEVER, 0, _INTERNAL),
    ApiSpec(ApiKey.CONSUMER_GROUP_HEARTBEAT,         1,     0,       0, NEVER),
    ApiSpec(ApiKey.CONSUMER_GROUP_DESCRIBE,          1,     0,       0, NEVER),
    ApiSpec(ApiKey.CONTROLLER_REGISTRATION,          0,     0,       0, NEVER, 0, _INTERNAL),
    ApiSpec(ApiKey.GET_TELEMETRY_SUBSCRIPTIONS,      0,     0,       0, NEVER),
    ApiSpec(ApiKey.PUSH_TELEMETRY,                   0,     0,       0, NEVER),
    ApiSpec(ApiKey.ASSIGN_REPLICAS_TO_DIRS,          0,     0,       0, NEVER, 0, _INTERNAL),
    ApiSpec(ApiKey.LIST_CONFIG_RESOURCES,            1,     0,       0, NEVER),
    ApiSpec(ApiKey.DESCRIBE_TOPIC_PARTITIONS,        0,     0,       0,     0),
    ApiSpec(ApiKey.SHARE_GROUP_HEARTBEAT,            1,     0,       0, NEVER),
    ApiSpec(ApiKey.SHARE_GROUP_DESCRIBE,             1,     0,       0, NEVER),
    ApiSpec(ApiKey.SHARE_FETCH,                      2,     0,       0, NEVER),
    ApiSpec(ApiKey.SHARE_ACKNOWLEDGE,                2,     0,       0, NEVER),
    ApiSpec(ApiKey.ADD_RAFT_VOTER,                   1,     0,       0, NEVER),
    ApiSpec(ApiKey.REMOVE_RAFT_VOTER,                0,     0,       0, NEVER),
    ApiSpec(ApiKey.UPDATE_RAFT_VOTER,                0,     0,       0, NEVER, 0, _INTERNAL),
    ApiSpec(ApiKey.INITIALIZE_SHARE_GROUP_STATE,     0,     0,   NEVER, NEVER),
    ApiSpec(ApiKey.READ_SHARE_GROUP_STATE,           0,     0,   NEVER, NEVER),
    ApiSpec(ApiKey.WRITE_SHARE_GROUP_STATE,          1,     0,   NEVER, NEVER),
    ApiSpec(ApiKey.DELETE_SHARE_GROUP_STATE,         0,     0,   NEVER, NEVER),
    ApiSpec(ApiKey.READ_SHARE_GROUP_STATE_SUMMARY,   1,     0,   NEVER, NEVER),
    ApiSpec(ApiKey.STREAMS_GROUP_HEARTBEAT,          0,     0,       0, NEVER),
    ApiSpec(ApiKey.STREAMS_GROUP_DESCRIBE,           0,     0,       0, NEVER),
    ApiSpec(ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS,     1,     0,       0, NEVER),
    ApiSpec(ApiKey.ALTER_SHARE_GROUP_OFFSETS,        0,     0,       0, NEVER),
    ApiSpec(ApiKey.DELETE_SHARE_GROUP_OFFSETS,       0,     0,       0, NEVER),
)
# fmt: on

APIS: Final[dict[int, ApiSpec]] = {int(spec.key): spec for spec in _ROWS}


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
