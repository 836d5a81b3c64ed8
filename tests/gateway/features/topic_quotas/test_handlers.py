"""A topic's threshold as its config: the requests that the broker gets, Weir's changes, and the answers."""

import pytest

from gateway.alter_queue import AlterTask
from gateway.alterations import QuotaApiError
from gateway.features.quota_api.rules import altered
from gateway.features.topic_quotas.handlers import OP_BYTES, handler_factories
from gateway.features.topic_quotas.thresholds import (
    KEY,
    Threshold,
    TopicLimits,
    TopicThresholds,
    alter_request,
    check_sum,
    parse,
    thresholds,
)
from gateway.proxy.collected import UNCOUNTED_BYTES, CollectBudget
from protocol.api_keys import ApiKey
from protocol.errors import InvalidFrame
from tests.gateway.features.controller_mutations import mutation_session as mutations
from tests.gateway.proxy import messages as m
from tests.gateway.proxy.transcript import Transcript
from tests.protocol import codec

INCREMENTAL, LEGACY, DESCRIBE = ApiKey.INCREMENTAL_ALTER_CONFIGS, ApiKey.ALTER_CONFIGS, ApiKey.DESCRIBE_CONFIGS
SET, DELETE, APPEND = 0, 1, 2
TOPIC, BROKER = 2, 4
OTHER_KEY = "retention.ms"
LIMITS = TopicLimits(1_000.0, {"orders": 300.0})
DENIED = (
    "Cluster authorization failed: User:ANONYMOUS is not one of Weir's quota_admins."
    " It stands for all clients without a name. If clients log in by Kerberos, use quota_admins: broker_acls."
)


class Api:
    """`TopicThresholds` and their queue, which ends an alteration when the test calls `finish`."""

    def __init__(self, allowed=True, topics_limited=True):
        self.allowed = allowed
        self.topics_limited = topics_limited
        self.queue = self
        self.quotas = {}
        self.tasks = []
        self.undone = []

    def allows(self, user):
        assert user == "ANONYMOUS"
        return self.allowed

    @property
    def dynamic(self):
        return thresholds(self.quotas)

    def threshold(self, topic):
        return Threshold(thresholds(self.quotas).get(topic), LIMITS.explicit.get(topic))

    def alter_thresholds(self, changes, user, done, *, validate_only):
        self.tasks.append(AlterTask(alter_request(changes, validate_only=validate_only), user, done))
        return self.tasks[-1]

    def undo(self, task, entity):
        self.undone.append(task.alteration.changes_of(entity))

    def finish(self):
        task = self.tasks[-1]
        wanted = TopicThresholds.alteration(task.request)
        after = altered(self.quotas, wanted.changes)
        try:
            check_sum(LIMITS, self.quotas, after)
            self.quotas = after
        except QuotaApiError as error:
            wanted.fail_changes(error.code, error.message)
        task.alteration = wanted
        task.done()


def opened(**options):
    api = Api(**options)
    return Transcript(handlers=handler_factories(api)), api


def alter(correlation_id, *resources, key=INCREMENTAL, version=1, validate_only=False):
    """`resources`: (type, name, [(key, value)] or, with another operation than SET, (key, value, operation))."""
    fields = []
    for kind, name, ops in resources:
        rows = [{"name": each[0], "value": each[1]} for each in ops]
        if key == INCREMENTAL:
            rows = [row | {"config_operation": (*each, SET)[2]} for row, each in zip(rows, ops, strict=True)]
        fields.append({"resource_type": kind, "resource_name": name, "configs": rows})
    return codec.encode_request(key, version, {"resources": fields, "validate_only": validate_only}, correlation_id, "etl")


def changed(correlation_id, *results, key=INCREMENTAL, version=1, throttle=0):
    """`results`: (type, name, error, message)."""
    names = ("resource_type", "resource_name", "error_code", "error_message")
    rows = [dict(zip(names, each, strict=True)) for each in results]
    return codec.encode_response(key, version, {"throttle_time_ms": throttle, "responses": rows}, correlation_id)


def answer_metadata(t, *topics, missing=()):
    """Answer Weir's own Metadata request: the broker lists the topics that exist."""
    t.broker_got(mutations.metadata_request(1, sorted(topics)))
    t.broker_answers(mutations.metadata_answer(1, {name: 0 if name in missing else 3 for name in topics}))


@pytest.mark.parametrize("version", [0, 1])
def test_threshold_alone_never_reaches_broker(version):
    t, api = opened()
    t.client_sends(alter(1, (TOPIC, "payments", [(KEY, "500")]), version=version))
    answer_metadata(t, "payments")
    assert t.paused
    api.finish()
    t.run_ready()
    t.broker_got()
    t.client_got(changed(1, (TOPIC, "payments", 0, None), version=version))
    assert thresholds(api.quotas) == {"payments": 500.0}


@pytest.mark.parametrize("version", [0, 1])
@pytest.mark.parametrize("validate_only", [False, True])
def test_other_configs_reach_broker_and_results_keep_order(version, validate_only):
    t, api = opened()
    resources = [
        (BROKER, "1", [("x", "1")]),
        (TOPIC, "payments", [(OTHER_KEY, "1"), (KEY, "500"), ("max.message.bytes", None, DELETE)]),
        (TOPIC, "orders", [(KEY, "200")]),
        (TOPIC, "logs", [(OTHER_KEY, "2")]),
    ]
    t.client_sends(alter(1, *resources, version=version, validate_only=validate_only), m.heartbeat(2))
    answer_metadata(t, "payments", "orders")
    api.finish()
    t.run_ready()
    theirs = [resources[0], (TOPIC, "payments", [resources[1][2][0], resources[1][2][2]]), resources[3]]
    t.broker_got(alter(1, *theirs, version=version, validate_only=validate_only))
    results = [(TOPIC, "logs", 0, None), (TOPIC, "payments", 0, None), (BROKER, "1", 35, "no")]
    t.broker_answers(changed(1, *results, version=version, throttle=5))
    merged = [results[2], results[1], (TOPIC, "orders", 0, None), results[0]]
    t.client_got(changed(1, *merged, version=version, throttle=5))
    t.broker_got(m.heartbeat(2))
    assert api.tasks[0].request.validate_only is validate_only
    assert api.undone == []


@pytest.mark.parametrize("key", [INCREMENTAL, LEGACY])
def test_alterations_are_opened_one_at_a_time(key):
    """Of 20 KB, Weir may keep 1 MB until the answer. An invalid threshold needs no rights and no question to the broker."""
    t, _ = opened(allowed=False)
    refused, others = (TOPIC, "orders", [(KEY, "1"), (KEY, "2")]), (TOPIC, "logs", [("", None)] * 5)
    many = [alter(number, refused, others, key=key) for number in (1, 2, 3)]
    t.client_sends(m.fetch(0), *many)
    t.goes_on()
    t.broker_got(m.fetch(0))
    t.broker_answers(m.fetched(0))
    t.goes_on()
    t.broker_got(alter(1, others, key=key))
    t.broker_answers(changed(1, (TOPIC, "logs", 40, None), key=key))
    t.goes_on()
    t.broker_got(alter(2, others, key=key))


@pytest.mark.parametrize("kind", [TOPIC, BROKER])
def test_alterations_without_thresholds_are_not_kept(kind):
    t, _ = opened()
    key = OTHER_KEY if kind == TOPIC else KEY
    many = [alter(number, (kind, "1", [(key, "1")])) for number in (1, 2)]
    t.client_sends(*many)
    t.broker_got(*many)
    assert [entry.special for entry in t.core.in_flight] == [None, None]


def test_alterations_with_thresholds_count_until_the_answer():
    budget = CollectBudget()
    t = Transcript(handlers=handler_factories(Api(allowed=False)), collect_budget=budget)
    others = [(BROKER, str(number), [(OTHER_KEY, "7")]) for number in range(100)]
    t.client_sends(alter(1, *others, (TOPIC, "payments", [(KEY, "500")])))
    assert budget.answers.held == OP_BYTES * 202 - UNCOUNTED_BYTES
    t.broker_answers(changed(1, *[(*other[:2], 0, None) for other in others]))
    assert budget.answers.held == 0


def test_alterations_that_pass_whole_do_not_count():
    budget = CollectBudget()
    api = Api()
    t = Transcript(handlers=handler_factories(api), collect_budget=budget)
    api.alter_thresholds({"payments": 500.0}, "admin", lambda: None, validate_only=False)
    api.finish()
    api.allowed = False
    request = alter(1, *[(TOPIC, "payments", [(OTHER_KEY, "7")] * 100)], key=LEGACY, version=2)
    t.client_sends(request)
    t.broker_got(request)
    assert budget.answers.held == 0


def test_name_too_long_to_answer_ends_client_at_once():
    """Otherwise the broker alters the other resource, and its client never gets the result."""
    t, _ = opened()
    resources = (TOPIC, "x" * 11_000, [(KEY, "1")]), (TOPIC, "logs", [(OTHER_KEY, "2")])
    with pytest.raises(InvalidFrame, match="not UTF-8"):
        t.client_sends(alter(1, *resources, version=0).replace(b"x" * 11_000, b"\xff" * 11_000))
    t.broker_got()


def test_threshold_is_undone_if_broker_refuses_the_rest():
    t, api = opened()
    t.client_sends(alter(1, (TOPIC, "payments", [(OTHER_KEY, "x"), (KEY, "500")]), (TOPIC, "orders", [(KEY, "200")])))
    answer_metadata(t, "payments", "orders")
    api.finish()
    t.run_ready()
    t.broker_got(alter(1, (TOPIC, "payments", [(OTHER_KEY, "x")])))
    t.broker_answers(changed(1, (TOPIC, "payments", 40, "Invalid value x")))
    t.client_got(changed(1, (TOPIC, "payments", 40, "Invalid value x"), (TOPIC, "orders", 0, None)))
    assert [[change.entity.topic for change in changes] for changes in api.undone] == [["payments"]]


def test_removal_needs_no_existing_topic():
    t, api = opened()
    t.client_sends(alter(1, (TOPIC, "gone", [(KEY, None, DELETE)])))
    t.broker_got()
    api.finish()
    t.run_ready()
    t.client_got(changed(1, (TOPIC, "gone", 0, None)))


def test_missing_topic_gets_broker_error():
    t, api = opened()
    t.client_sends(alter(1, (TOPIC, "nowhere", [(KEY, "1"), (OTHER_KEY, "1")])))
    answer_metadata(t, "nowhere", missing=("nowhere",))
    t.run_ready()
    t.broker_got()
    t.client_got(changed(1, (TOPIC, "nowhere", 3, None)))
    assert api.tasks == []


@pytest.mark.parametrize("value", ["0", "-1", "1.5", "fast", "", None, str(2**63), "1" * 5_000, "\u0661"])
def test_invalid_threshold_is_refused(value):
    t, api = opened()
    t.client_sends(alter(1, (TOPIC, "payments", [(KEY, value)])))
    t.client_got(changed(1, (TOPIC, "payments", 40, invalid(value))))
    assert api.tasks == []


def invalid(value):
    with pytest.raises(QuotaApiError, match=f"for configuration {KEY}: write bytes per second, from 1 to 9223372036854775807"):
        parse(value)
    return f"Invalid value {str(value)[:100]} for configuration {KEY}: write bytes per second, from 1 to 9223372036854775807."


def test_thresholds_over_total_are_refused():
    t, api = opened()
    t.client_sends(alter(1, (TOPIC, "payments", [(KEY, "701"), (OTHER_KEY, "1")])))
    answer_metadata(t, "payments")
    api.finish()
    t.run_ready()
    t.broker_got()
    text = (
        "Explicit thresholds of topics would add up to 1001, 1 more than total.bytes.in.per.sec.threshold 1000. "
        "Lower some of bytes.in.per.sec.threshold, or raise the total in Weir's config file."
    )
    t.client_got(changed(1, (TOPIC, "payments", 40, text)))
    assert api.quotas == {}


@pytest.mark.parametrize(
    ("ops", "error", "text"),
    [
        ([(KEY, "1", APPEND)], 40, f"Can't append to or subtract from key {KEY}: its type is not LIST. Use SET."),
        ([(KEY, "1"), (KEY, "2")], 42, "Error due to duplicate config keys"),
    ],
    ids=["append", "twice"],
)
def test_senseless_operation_is_refused(ops, error, text):
    t, _ = opened()
    t.client_sends(alter(1, (TOPIC, "payments", ops)))
    t.client_got(changed(1, (TOPIC, "payments", error, text)))


def test_client_that_is_no_admin_is_refused():
    t, api = opened(allowed=False)
    t.client_sends(alter(1, (TOPIC, "payments", [(KEY, "5"), (OTHER_KEY, "1")]), (TOPIC, "logs", [(OTHER_KEY, "1")])))
    t.broker_got(alter(1, (TOPIC, "logs", [(OTHER_KEY, "1")])))
    t.broker_answers(changed(1, (TOPIC, "logs", 0, None)))
    t.client_got(changed(1, (TOPIC, "payments", 31, DENIED), (TOPIC, "logs", 0, None)))
    assert api.tasks == []


def test_client_that_is_no_admin_may_return_description():
    t, api = opened(allowed=False)
    resources = [(TOPIC, "orders", [(OTHER_KEY, "1"), (KEY, "300")])]
    t.client_sends(alter(1, *resources, key=LEGACY, version=2))
    t.broker_got(alter(1, (TOPIC, "orders", [(OTHER_KEY, "1")]), key=LEGACY, version=2))
    assert api.tasks == []


@pytest.mark.parametrize("version", [0, 1, 2])
def test_legacy_request_replaces_threshold_and_other_configs(version):
    t, api = opened()
    t.client_sends(alter(1, (TOPIC, "payments", [(KEY, "5")]), key=LEGACY, version=version))
    answer_metadata(t, "payments")
    api.finish()
    t.run_ready()
    # The broker removes configs that the request does not name.
    t.broker_got(alter(1, (TOPIC, "payments", []), key=LEGACY, version=version))
    t.broker_answers(changed(1, (TOPIC, "payments", 0, None), key=LEGACY, version=version))
    t.client_got(changed(1, (TOPIC, "payments", 0, None), key=LEGACY, version=version))
    assert thresholds(api.quotas) == {"payments": 5.0}
    t.client_sends(alter(2, (TOPIC, "payments", [(OTHER_KEY, "1")]), key=LEGACY, version=version))
    api.finish()
    t.run_ready()
    t.broker_got(alter(2, (TOPIC, "payments", [(OTHER_KEY, "1")]), key=LEGACY, version=version))
    assert api.quotas == {}


def test_request_without_key_passes():
    t, _ = opened()
    frame = alter(1, (TOPIC, "payments", [(OTHER_KEY, "5")]))
    t.client_sends(frame)
    t.broker_got(frame)
    t.broker_answers(changed(1, (TOPIC, "payments", 0, None)))
    t.client_got(changed(1, (TOPIC, "payments", 0, None)))


def test_without_topic_quotas_broker_gets_key():
    t, _ = opened(topics_limited=False)
    frame = alter(1, (TOPIC, "payments", [(KEY, "5")]))
    t.client_sends(frame)
    t.broker_got(frame)


@pytest.mark.parametrize(("allowed", "limit"), [(True, 1 << 20), (False, 32 << 10)])
def test_request_over_size_limit_passes_unopened(allowed, limit):
    t, _ = opened(allowed=allowed)
    frame = alter(1, *[(TOPIC, f"t{number:04}", [(KEY, "5" * 300)]) for number in range(limit // 340 + 1)])
    assert limit < len(frame) < 1.1 * limit
    t.client_sends(frame)
    t.broker_got(frame)


def test_request_with_too_many_elements_ends_connection():
    t, _ = opened(allowed=False)
    with pytest.raises(InvalidFrame, match="more: send several requests"):
        t.client_sends(alter(1, (TOPIC, "t", [("", "")] * 6_000 + [(KEY, "1")])))


# The right by the brokers' ACLs.

ASKED = codec.encode_request(
    ApiKey.ALTER_CLIENT_QUOTAS,
    0,
    {
        "entries": [
            {
                "entity": [{"entity_type": "user", "entity_name": None}],
                "ops": [{"key": "producer_byte_rate", "value": 0.0, "remove": True}],
            }
        ],
        "validate_only": True,
    },
    1,
    "etl",
)


def broker_decides(t, error=0, message=None):
    entity = [{"entity_type": "user", "entity_name": None}]
    entries = [{"error_code": error, "error_message": message, "entity": entity}]
    t.broker_answers(codec.encode_response(ApiKey.ALTER_CLIENT_QUOTAS, 0, {"throttle_time_ms": 0, "entries": entries}, 1))


def test_broker_grants_threshold():
    t, api = opened(allowed=None)
    t.client_sends(alter(1, (TOPIC, "payments", [(KEY, "500"), (OTHER_KEY, "1")])))
    t.broker_got(ASKED)
    broker_decides(t)
    t.run_ready()
    answer_metadata(t, "payments")
    api.finish()
    t.run_ready()
    t.broker_got(alter(1, (TOPIC, "payments", [(OTHER_KEY, "1")])))
    assert thresholds(api.quotas) == {"payments": 500.0}


def test_broker_refuses_threshold_and_other_topics_go_on():
    t, api = opened(allowed=None)
    t.client_sends(alter(1, (TOPIC, "payments", [(KEY, "5")]), (TOPIC, "logs", [(OTHER_KEY, "1")])))
    t.broker_got(ASKED)
    broker_decides(t, 31, "Cluster authorization failed.")
    t.run_ready()
    t.broker_got(alter(1, (TOPIC, "logs", [(OTHER_KEY, "1")])))
    t.broker_answers(changed(1, (TOPIC, "logs", 0, None)))
    t.client_got(changed(1, (TOPIC, "payments", 31, "Cluster authorization failed."), (TOPIC, "logs", 0, None)))
    assert api.tasks == []


def test_request_without_threshold_asks_no_right():
    t, _ = opened(allowed=None)
    for key, version in ((INCREMENTAL, 1), (LEGACY, 2)):
        frame = alter(1, (TOPIC, "payments", [(OTHER_KEY, "5")]), key=key, version=version)
        t.client_sends(frame)
        t.broker_got(frame)


def test_legacy_request_without_right_keeps_threshold():
    t, api = opened(allowed=None)
    api.alter_thresholds({"payments": 5.0}, "admin", lambda: None, validate_only=False)
    api.finish()
    resources = [(TOPIC, "payments", [(OTHER_KEY, "1")]), (TOPIC, "orders", [(KEY, "300")])]
    t.client_sends(alter(1, *resources, key=LEGACY, version=2))
    t.broker_got(ASKED)
    broker_decides(t, 31, "Cluster authorization failed.")
    t.run_ready()
    t.broker_got(alter(1, resources[0], (TOPIC, "orders", []), key=LEGACY, version=2))
    assert len(api.tasks) == 1
    assert thresholds(api.quotas) == {"payments": 5.0}


@pytest.mark.parametrize(("error", "passes"), [(0, False), (31, True)])
def test_long_request_is_opened_after_grant(error, passes):
    t, api = opened(allowed=None)
    frame = alter(1, *[(TOPIC, f"t{number:04}", [(KEY, "x" * 300)]) for number in range(200)])
    assert len(frame) > 32 << 10
    t.client_sends(frame[:10_000])
    t.broker_got(ASKED)
    broker_decides(t, error, None)
    t.run_ready()
    t.client_sends(frame[10_000:])
    if passes:
        t.broker_got(frame)
    else:  # the collected request is a new one to its handler
        t.broker_got(ASKED)
        broker_decides(t)
        t.run_ready()
        assert codec.decode_response(INCREMENTAL, 1, bytes(t.client_inbox))["responses"][-1]["error_code"] == 40
    assert api.tasks == []


# Descriptions.


def describe(correlation_id, *resources, version=4, synonyms=True):
    """`resources`: (type, name, keys or None)."""
    rows = [dict(zip(("resource_type", "resource_name", "configuration_keys"), each, strict=True)) for each in resources]
    values = {"resources": rows, "include_synonyms": synonyms}
    return codec.encode_request(DESCRIBE, version, values, correlation_id, "etl")


def described(correlation_id, *results, version=4, throttle=0):
    """`results`: (type, name, error, configs)."""
    rows = [dict(zip(("resource_type", "resource_name", "error_code", "configs"), each, strict=True)) for each in results]
    return codec.encode_response(DESCRIBE, version, {"throttle_time_ms": throttle, "results": rows}, correlation_id)


def config(name, *values, version=4, source=None, synonyms=True, kind=0):
    """`values`: (value, source), the effective one first."""
    row = {"name": name, "value": values[0][0], "read_only": False, "is_sensitive": False, "config_source": values[0][1]}
    row["synonyms"] = [{"name": name, "value": value, "source": of} for value, of in values] if synonyms else []
    return row | ({"config_type": kind, "documentation": None} if version >= 3 else {})


@pytest.mark.parametrize("version", [1, 2, 3, 4])
@pytest.mark.parametrize("synonyms", [True, False])
def test_threshold_is_described_as_dynamic_topic_config(version, synonyms):
    t, api = opened()
    for topic, value in (("payments", 500.0), ("orders", 200.0)):
        api.alter_thresholds({topic: value}, "admin", lambda: None, validate_only=False)
        api.finish()
    theirs = config(OTHER_KEY, ("7", 5), version=version, kind=5)
    resources = [(TOPIC, "payments", None), (BROKER, "1", None), (TOPIC, "orders", [KEY]), (TOPIC, "logs", None)]
    t.client_sends(describe(1, *resources, version=version, synonyms=synonyms))
    t.broker_got(describe(1, *resources, version=version, synonyms=synonyms))
    rows = [
        (TOPIC, "payments", 0, [theirs]),
        (BROKER, "1", 0, [theirs]),
        (TOPIC, "orders", 0, []),
        (TOPIC, "logs", 0, [theirs]),
    ]
    t.broker_answers(described(1, *rows, version=version, throttle=3))
    ours = config(KEY, ("500", 1), version=version, synonyms=synonyms, kind=5)
    both = config(KEY, ("200", 1), ("300", 4), version=version, synonyms=synonyms, kind=5)
    wanted = [(TOPIC, "payments", 0, [theirs, ours]), rows[1], (TOPIC, "orders", 0, [both]), rows[3]]
    t.client_got(described(1, *wanted, version=version, throttle=3))


def test_threshold_of_file_is_described_as_static():
    t, _ = opened()
    t.client_sends(describe(1, (TOPIC, "orders", None)))
    t.broker_answers(described(1, (TOPIC, "orders", 0, [])))
    t.client_got(described(1, (TOPIC, "orders", 0, [config(KEY, ("300", 4), kind=5)])))


@pytest.mark.parametrize("error", [3, 29])
def test_topic_not_described_by_broker_stays_unchanged(error):
    t, _ = opened()
    t.client_sends(describe(1, (TOPIC, "orders", None)))
    t.broker_answers(described(1, (TOPIC, "orders", error, [])))
    t.client_got(described(1, (TOPIC, "orders", error, [])))


def test_config_not_asked_for_is_left_out():
    t, _ = opened()
    t.client_sends(describe(1, (TOPIC, "orders", [OTHER_KEY])))
    t.broker_answers(described(1, (TOPIC, "orders", 0, [])))
    t.client_got(described(1, (TOPIC, "orders", 0, [])))


@pytest.mark.parametrize(("topic", "values"), [("orders", 40), ("logs", 1)], ids=["long", "without threshold"])
def test_answer_without_a_change_passes_as_it_comes(topic, values):
    """A client that describes all topics of a cluster gets tens of megabytes."""
    budget = CollectBudget()
    t = Transcript(handlers=handler_factories(Api()), collect_budget=budget)
    answer = described(1, (TOPIC, topic, 0, [config(OTHER_KEY, ("x" * 30_000, 5))] * values))
    t.client_sends(describe(1, (TOPIC, topic, None)))
    t.broker_answers(answer[:20_000])
    t.client_got(answer[:20_000])
    t.broker_answers(answer[20_000:])
    t.client_got(answer[20_000:])
    assert budget.answers.holders == 0
