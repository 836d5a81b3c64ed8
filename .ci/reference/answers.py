"""The JSON answers of the admin API that no dataclass describes, as JSON schemas. A test compares them with live answers."""

from collections.abc import Mapping
from typing import Any

Schema = dict[str, Any]


def about(schema: Mapping[str, Any], description: str) -> Schema:
    return {**schema, "description": description}


def nullable(schema: Mapping[str, Any], description: str = "") -> Schema:
    found = {**schema, "type": [schema["type"], "null"]}
    return about(found, description) if description else found


def fields(properties: Mapping[str, Any], description: str = "") -> Schema:
    """An object with these fields and no others."""
    found = {"type": "object", "required": list(properties), "properties": dict(properties)}
    return about(found, description) if description else found


def rows(row: Mapping[str, Any]) -> Schema:
    return {"type": "array", "items": dict(row)}


def counts(description: str) -> Schema:
    return {"type": "object", "description": description, "additionalProperties": INTEGER}


def reference(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def answer(**properties: object) -> Schema:
    return fields({"generated_at": about(TIME, "Time of the answer."), **properties})


def optional(schema: Schema, **properties: object) -> Schema:
    """The schema with further fields, which an answer may lack."""
    return {**schema, "properties": schema["properties"] | properties}


BOOLEAN, INTEGER, STRING, NUMBER = ({"type": name} for name in ("boolean", "integer", "string", "number"))
STRINGS = rows(STRING)
TIME: Schema = {"type": "string", "format": "date-time"}

ENFORCE = about(BOOLEAN, "`quotas.enforce` of the config in effect.")
ENTITY = fields(dict.fromkeys(("user", "client_id", "ip", "group"), nullable(STRING)), "The entity that was asked for.")
EARLY = about(STRING, "The meaning of the rows' early requests, as a sentence.")
USAGE_ROWS = rows(reference("UsageRow"))
SET_IN = about(STRING, "The line of the config file, or the quota API.")
OFF = "False: the feature is off, and further fields are missing."

RELOAD = nullable(
    fields(
        {
            "result": {"enum": ["success", "failure"]},
            "at": TIME,
            "changes": STRINGS,
            "problems": rows(reference("Problem")),
        }
    ),
    "The last changed file, and the problems that it was refused for.",
)

WORKERS_OF_CONFIG = about(
    rows(
        fields(
            {
                "worker": INTEGER,
                "version": INTEGER,
                "current": about(BOOLEAN, "False while the worker runs another config than this one."),
                "last_reload": RELOAD,
            }
        )
    ),
    "With several workers, those that answer. The other fields are the supervisor's own reading of the file.",
)

CONNECTION = fields(
    {
        "user": STRING,
        "client_id": STRING,
        "group": about(STRING, "The client's group; empty without one."),
        "software_name": STRING,
        "software_version": STRING,
        "address": about(STRING, "The client's address and port."),
        "listener": STRING,
        "broker": nullable(INTEGER, "Node id; null for a bootstrap connection."),
        "since": TIME,
        "bytes_per_second": NUMBER,
        "received_bytes_per_second": about(NUMBER, "From the client."),
        "sent_bytes_per_second": about(NUMBER, "To the client."),
        "throttled_by": about(STRING, "The quota that the client is muted for; empty if it is not muted."),
        "throttle_left": about(NUMBER, "Seconds until the connection is read again."),
    }
)

CONFIGURED = fields(
    {
        "entity": about(STRING, "Such as `user=alice, client-id=etl`."),
        "key": STRING,
        "limit": nullable(NUMBER, "null for an exemption."),
        "unit": STRING,
        "exempt": BOOLEAN,
        "shadow": about(BOOLEAN, "A shadow limit: measured, and delays nobody."),
        "set_in": SET_IN,
    }
)

WORKER = fields(
    {
        "worker": about(INTEGER, "The worker's number, from 0."),
        "pid": nullable(INTEGER, "null if it does not run."),
        "started_at": nullable(TIME),
        "not_ready": nullable(STRING, "The reason why it takes no clients; null if it is ready."),
        "restarts": INTEGER,
    }
)

_SHARE = fields(
    {
        "kind": STRING,
        "key": STRING,
        "unit": STRING,
        "weight": NUMBER,
        "guarantee": NUMBER,
        "ceiling": NUMBER,
        "entitlement": about(NUMBER, "The part while every group wants everything."),
    }
)

_QUOTA = {
    "kind": STRING,
    "key": STRING,
    "unit": STRING,
    "limit": nullable(NUMBER, "null without a limit."),
    "entity": about(STRING, "The entity that has the limit."),
    "set_in": SET_IN,
    "candidates": rows(
        fields(
            {
                "entity": STRING,
                "limit": nullable(NUMBER),
                "set_in": SET_IN,
                "applies": BOOLEAN,
                "reason": about(STRING, "The reason why another value overrules it."),
            }
        )
    ),
    "bucket": about(fields(dict.fromkeys(("user", "client_id", "ip", "group"), STRING)), "The names that share the limit."),
    "at_each_broker": about(BOOLEAN, "Each broker has a limit of its own (`quotas.scope`)."),
    "use": {"anyOf": [reference("UsageRow"), {"type": "null"}]},
}

EXPLANATION = fields(
    {
        "client": fields({"user": STRING, "client_id": STRING, "ip": STRING, "claims": STRINGS, "catch_up": BOOLEAN}),
        "running": about(BOOLEAN, "True: the answer has the use now."),
        "enforce": ENFORCE,
        "notes": STRINGS,
        "group": nullable(
            fields(
                {
                    "name": STRING,
                    "rule": about(STRING, "The rule that puts the client into the group."),
                    "set_in": SET_IN,
                    "path": about(STRINGS, "The groups above, from the top, and the group."),
                    "shares": about(rows(_SHARE), "The group's part of each capacity that it shares."),
                }
            )
        ),
        "quotas": rows(fields({**_QUOTA, "exempt": BOOLEAN})),
        "shadows": about(rows(fields(_QUOTA)), "The shadow limits."),
        "connections": about(
            rows(fields({"scope": STRING, "key": STRING, "limit": INTEGER, "unit": STRING, "set_in": SET_IN})),
            "The limits on connections.",
        ),
        "topics": nullable(
            fields(
                {
                    "exempt_by": nullable(STRING, "The row that exempts the client."),
                    "enforce": BOOLEAN,
                    "total": NUMBER,
                    "at_each_broker": BOOLEAN,
                    "explicit": {"type": "object", "additionalProperties": NUMBER},
                    "unit": STRING,
                    "set_in": SET_IN,
                }
            ),
            "The topic quotas; null if they are not configured.",
        ),
        "volumes": nullable(
            fields(
                {
                    "exempt_by": nullable(STRING, "The row that exempts the client."),
                    "enforce": BOOLEAN,
                    "soft": STRING,
                    "hard": STRING,
                    "set_in": SET_IN,
                }
            ),
            "The volume quotas; null if they are not configured.",
        ),
        "binds": about(STRINGS, "Sentences on the quota that binds."),
    }
)

_GROUP = fields(
    {
        "kind": STRING,
        "unit": STRING,
        "group": STRING,
        "parent": about(STRING, "Empty for a whole capacity."),
        "level": about(INTEGER, "The number of groups above."),
        "weight": NUMBER,
        "guarantee": NUMBER,
        "ceiling": nullable(NUMBER),
        "entitlement": about(NUMBER, "The part while every group wants everything."),
        "allocation": about(NUMBER, "The part in the last division."),
        "use": about(NUMBER, "The average over the quota window, through all gateways."),
        "borrowed": NUMBER,
        "lent": NUMBER,
        "wants_more": about(BOOLEAN, "A client of the group waits."),
    }
)

GROUPS = answer(
    configured=about(BOOLEAN, "False: no group shares a capacity, and the lists are empty."),
    kinds=about(STRINGS, "The kinds of quotas in which groups share a capacity."),
    total=about(INTEGER, "All rows of the kind."),
    matching=about(INTEGER, "The rows that match the parameters."),
    groups=about(rows(_GROUP), "A row for each group and kind, parents first."),
)

_LINK = fields({"connected": BOOLEAN, "problem": about(STRING, "Empty if there is none.")})
_VOLUME_LIMIT = fields({"type": STRING, "level": NUMBER})

VOLUMES: Schema = {
    "state": {"enum": ["OPEN", "THROTTLE", "PAUSE"]},
    "factor": about(NUMBER, "The part of the producers' rate that the volumes let through: 1 open, 0 paused."),
    "reason": STRING,
    "why": about(STRING, "The reason as a sentence."),
    "enforced": BOOLEAN,
    "delay_seconds": about(NUMBER, "The delay of each Produce request."),
    "freshness_seconds": about(NUMBER, "The age from which a broker's usage counts as unknown."),
    "usage_age_seconds": {"type": "object", "description": "By node id.", "additionalProperties": NUMBER},
    "unknown": about(rows(fields({"broker": INTEGER, "usage": STRING})), "The brokers without usage, and the reason."),
    "volumes": rows(
        fields(
            {
                "broker": INTEGER,
                "volume": STRING,
                "capacity_bytes": INTEGER,
                "consumed_bytes": INTEGER,
                "soft": _VOLUME_LIMIT,
                "hard": _VOLUME_LIMIT,
                "factor": NUMBER,
            }
        )
    ),
    "reader": about(_LINK, "Reads the brokers' usage."),
    "publisher": nullable(_LINK, "Publishes usage; null with `source: topic`."),
    "source_problem": about(STRING, "Empty if there is none."),
    "skipped": counts("Unusable messages by reason."),
}
"""The fields of `/api/volumes`, if the feature is on."""
