"""The admin API as OpenAPI and as a page. Schemas follow from the dataclasses; tests call each route and check its answer."""

import inspect
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any, get_args, get_type_hints

import answers
import yaml
from markdown import below_title, code, table
from pydantic import TypeAdapter

from gateway.admin.connection_list import FILTERS, SORTS
from gateway.admin.forgive import FORGIVE
from gateway.admin.group_list import PARAMETERS as GROUP_PARAMETERS
from gateway.config.problems import Problem
from gateway.feature import Feature
from gateway.features.catalogue import FEATURES
from gateway.quotas.debts import KEYS, ClearedDebt
from gateway.quotas.kinds import CLIENT_KINDS
from gateway.quotas.snapshot import UsageRow
from gateway.version import weir_version

ROOT = Path(__file__).resolve().parents[2]

TEXT, HTML, EVENTS, JSON = "text/plain", "text/html", "text/event-stream", "application/json"

INTRO = """\
# Admin API

The admin server is at `admin.host` and `admin.port`, by default `http://127.0.0.1:9644`. It has no password: bind it to an
address that only operators reach. Requests must name an IP address, localhost, the host's own name, or a name in
`admin.allowed_hosts`.

All requests read, except `POST {forgive}`. The gateway takes that request from its own host only, and refuses
it with a header of a proxy, such as `Via` or `X-Forwarded-For`. Some proxies add no such header. Let a proxy on the gateway's
host, for TLS and passwords, pass GET and HEAD alone.
[openapi.yaml](openapi.yaml) has the same in OpenAPI 3.1, with the fields of every answer. Times are ISO 8601 in UTC. Rates are
in the unit of the kind per second.
"""


ROUTES: dict[str, dict[str, Any]] = {
    "/": {"summary": "The live page", "media": HTML, "notes": "Updates itself once a second."},
    "/livez": {"summary": "Liveness probe", "media": TEXT, "notes": "`live` while the process answers."},
    "/readyz": {
        "summary": "Readiness probe",
        "media": TEXT,
        "notes": "`ready`, or 503 with the reason: for example, no broker has been reached yet, or the gateway is draining.",
        "errors": {503: "The gateway is not ready; the text is the reason."},
    },
    "/metrics": {
        "summary": "Metrics for Prometheus",
        "media": TEXT,
        "notes": "The text format, or OpenMetrics if the request accepts it.",
    },
    "/api/stream": {
        "summary": "The live page's data",
        "media": EVENTS,
        "notes": "Server-sent events: `history` once, then `snapshot` each second. For the live page; fields may change.",
        "errors": {503: "Too many viewers."},
    },
    "/api/quotas": {
        "summary": "Use of each quota now",
        "notes": "A row for each bucket: one entity's use of one kind of quota.",
        "schema": answers.answer(
            enforce=answers.ENFORCE,
            units={"type": "object", "description": "The unit of each kind.", "additionalProperties": answers.STRING},
            shared=answers.about(answers.BOOLEAN, "Gateways or workers share the quotas (`sharing`)."),
            rows=answers.USAGE_ROWS,
        ),
    },
    "/api/quotas/configured": {
        "summary": "Every configured quota",
        "notes": "A row for each entity and quota key that counts now, used or not. A row without a key is an exemption.",
        "schema": answers.answer(rows=answers.rows(answers.CONFIGURED)),
    },
    "/api/throttles": {
        "summary": "Current throttles",
        "notes": "The rows of `/api/quotas` whose clients are throttled now, the longest throttle first.",
        "schema": answers.answer(
            enforce=answers.ENFORCE, muted_connections=answers.INTEGER, early=answers.EARLY, rows=answers.USAGE_ROWS
        ),
    },
    "/api/connections": {
        "summary": "The open connections",
        "notes": "Filtered and sorted, at most 1000 of them. The bytes are the kernel's, with TLS."
        " The first answer takes a second: bytes per second are a mean over that time, or since the last reading.",
        "parameters": (*FILTERS, "sort", "reverse", "limit", "offset"),
        "schema": answers.answer(
            sort={"enum": list(SORTS)},
            limit=answers.INTEGER,
            offset=answers.INTEGER,
            total=answers.about(answers.INTEGER, "All open connections."),
            matching=answers.about(answers.INTEGER, "The connections that match the filters."),
            rows=answers.rows(answers.CONNECTION),
        ),
        "errors": {400: "A parameter is unknown, or its value is."},
    },
    "/api/config": {
        "summary": "The config in effect and the last reload",
        "notes": "The config has every key of the file, with defaults.",
        "schema": answers.optional(
            answers.answer(
                version=answers.about(answers.INTEGER, "Counts the accepted files with a change, from 1."),
                loaded_at=answers.TIME,
                config={"type": "object"},
                warnings=answers.STRINGS,
                reloads=answers.counts("Changed files by result."),
                last_reload=answers.RELOAD,
            ),
            workers=answers.WORKERS_OF_CONFIG,
        ),
    },
    "/api/explain": {
        "summary": "The quotas of one client",
        "notes": "The quotas that apply to a user, client-id, address and claims, their places, and the quota that binds."
        " `claim` is `NAME=VALUE`, and may be repeated. `catch-up`, with any value, asks for a consumer that reads far behind.",
        "parameters": ("user", "client-id", "ip", "claim", "catch-up"),
        "errors": {400: "A parameter is unknown, or its value is."},
        "schema": answers.EXPLANATION,
    },
    "/entities": {
        "summary": "The page of one entity",
        "media": HTML,
        "notes": "Use and quotas of one entity alone, without links and scripts: a page to send to its owner.",
        "parameters": ("user", "client-id", "ip", "group"),
        "errors": {400: "The request names no entity, or a parameter is unknown."},
    },
    "/api/entities": {
        "summary": "The page of one entity (`/entities`) as JSON",
        "notes": "The rows of `/api/quotas` that belong to one entity alone, 200 at most.",
        "parameters": ("user", "client-id", "ip", "group"),
        "schema": answers.answer(entity=answers.ENTITY, enforce=answers.ENFORCE, early=answers.EARLY, rows=answers.USAGE_ROWS),
        "errors": {400: "The request names no entity, or a parameter is unknown."},
    },
    "/api/active": {
        "summary": "Recently active buckets",
        "notes": "Weir's own use: a supervisor of workers asks for it. Fields may change.",
        "schema": {"type": "object"},
    },
    "/api/facts": {
        "summary": "Data for a supervisor of workers",
        "notes": "Weir's own use; fields may change.",
        "schema": {"type": "object"},
    },
    "/api/workers": {
        "summary": "The workers",
        "notes": "Only with several `workers`: process, start, restarts, and the reason if a worker is not ready.",
        "schema": answers.answer(workers=answers.rows(answers.WORKER)),
    },
}
"""Descriptions of GET requests by path, but for the pages of features."""

FEATURE_PAGES: dict[str, tuple[str, str]] = {
    "topics": ("Use of topics", "Thresholds and rates of topics (`quotas.topics`)."),
    "volumes": ("Usage of disks", "The brokers' volumes and their effect on producers (`quotas.volumes`)."),
    "groups": (
        "Groups that share a capacity",
        "The use, the share and the limits of each group (`quotas.groups`), or of the busiest `limit` groups.",
    ),
    "sharing": ("Gateways that share quotas", "The members and the state of the topic (`sharing`)."),
}
"""Summary and notes of features' pages; the default is the first line of the feature's module."""

FEATURE_QUERIES: dict[str, dict[str, Any]] = {
    "groups": {"parameters": GROUP_PARAMETERS, "errors": {400: "A parameter is unknown, or its value is."}},
}
"""The parameters of features' pages."""


def paths() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {path: {"get": _get(route)} for path, route in ROUTES.items()}
    for feature in FEATURES:
        if feature.page:
            about = (sys.modules[feature.__module__].__doc__ or "").partition("\n")[0]
            summary, notes = FEATURE_PAGES.get(feature.page, (feature.page.capitalize(), about))
            route = {"summary": summary, "notes": notes, "schema": _feature_schema(feature)}
            found[f"/api/{feature.page}"] = {"get": _get(route | FEATURE_QUERIES.get(feature.page, {}))}
    found[FORGIVE] = {"post": _forgive()}
    return dict(sorted(found.items()))


def _get(route: Mapping[str, Any]) -> dict[str, Any]:
    media = route.get("media", JSON)
    schema = route.get("schema", {"type": "string"})
    none = {400: "The page has no parameters."} if media == JSON and "parameters" not in route else {}
    errors = {str(code): {"description": words} for code, words in (none | route.get("errors", {})).items()}
    parameters = [{"name": name, "in": "query", "schema": {"type": "string"}} for name in route.get("parameters", ())]
    return {
        "summary": route["summary"],
        "description": route["notes"],
        **({"parameters": parameters} if parameters else {}),
        "responses": {"200": {"description": "OK", "content": {media: {"schema": schema}}}, **errors},
    }


def _forgive() -> dict[str, Any]:
    properties: dict[str, Any] = {key: {"type": "string"} for key in KEYS}
    properties["kind"] = {"anyOf": [{"enum": list(CLIENT_KINDS)}, {"type": "string", "pattern": r"^request_rate\.[A-Z]\w+$"}]}
    body = {"type": "object", "properties": properties, "additionalProperties": False}
    return {
        "summary": "Clear the debt of a client or a group",
        "description": "Names a user, a client-id or both, or a group, and unmutes it. `weir quotas forgive` sends it.",
        "requestBody": {"required": True, "content": {JSON: {"schema": body}}},
        "responses": {
            "200": {
                "description": "OK",
                "content": {JSON: {"schema": answers.fields({"cleared": answers.rows(answers.reference("ClearedDebt"))})}},
            },
            "400": {"description": "The body is wrong, or there is no such group; the text says how."},
            "403": {"description": "The request is from another host, or came through a proxy."},
            "413": {"description": "The body is too large."},
            "415": {"description": "The content type is not application/json."},
        },
    }


def _feature_schema(feature: type[Feature[Any]]) -> dict[str, Any]:
    """The fields of a feature's page. They follow from its report, unless the page shows other fields."""
    if feature.page == "groups":
        return answers.GROUPS
    schema = answers.answer(configured=answers.about(answers.BOOLEAN, answers.OFF))
    if feature.page == "volumes":
        return schema | {"properties": schema["properties"] | answers.VOLUMES}
    report = get_type_hints(feature.report)["return"]
    (kind,) = (each for each in (report, *get_args(report)) if is_dataclass(each))
    return schema | {"properties": schema["properties"] | _schema(kind)["properties"]}


def _schema(kind: Any) -> dict[str, Any]:  # noqa: ANN401
    schema = TypeAdapter(kind).json_schema(ref_template="#/components/schemas/{model}")
    _DEFINITIONS.update(schema.pop("$defs", {}))
    return dict(schema)


_DESCRIBED = {
    "key": {"type": "string", "description": "The quota's key in Kafka and in the config file."},
    "unit": {"type": "string", "description": "The unit of `limit` and `rate`."},
    "set_in": {"type": "string", "description": "The place that sets the limit, such as `weir.yaml:12`."},
    "throttled_since": {"type": ["string", "null"], "description": "Time at which the current throttle began."},
}
"""The fields that `gateway.admin.rows` adds to a row."""

_DEFINITIONS: dict[str, Any] = {}
"""Schemas of the dataclasses inside of others."""


def document() -> dict[str, Any]:
    routes = paths()
    schemas = {kind.__name__: _schema(kind) for kind in (UsageRow, ClearedDebt, Problem)}
    row = schemas["UsageRow"]
    row["properties"] |= _DESCRIBED
    row["required"] = [*row["required"], *_DESCRIBED]
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Weir's admin API",
            "version": _version(),
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "http://127.0.0.1:9644"}],
        "paths": routes,
        "components": {"schemas": dict(sorted((_DEFINITIONS | schemas).items()))},
    }


def _version() -> str:
    """The version of this checkout, as an installed Weir may have another one."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    return str(project.get("version") or weir_version())


class _Plain(yaml.SafeDumper):
    """Writes no anchors: each schema is written where it is used."""

    def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002
        return True


def openapi() -> str:
    text: str = yaml.dump(document(), Dumper=_Plain, sort_keys=False, width=120, allow_unicode=True)
    return f"# Written by .ci/reference: change the code, then run `python .ci/reference`.\n{text}"


def page() -> str:
    routes = document()
    rows = [
        (f"{method.upper()} {code(path)}", operation["summary"], _media(operation), operation["description"])
        for path, methods in routes["paths"].items()
        for method, operation in methods.items()
    ]
    parts = [INTRO.format(forgive=FORGIVE), table(("request", "content", "type", "notes"), rows)]
    row = routes["components"]["schemas"]["UsageRow"]
    fields = [(code(name), _type(schema)) for name, schema in row["properties"].items()]
    parts += [
        "## Rows of `/api/quotas` and `/api/throttles`\n",
        inspect.cleandoc(UsageRow.__doc__ or "").replace("None", "null") + "\n",
        table(("field", "type"), fields),
    ]
    example = (
        f"curl -s -X POST -H 'Content-Type: application/json' -d '{{\"client-id\": \"etl\"}}' http://127.0.0.1:9644{FORGIVE}"
    )
    parts.append(f"## Examples\n\n```console\n$ curl -s http://127.0.0.1:9644/api/throttles | jq .rows\n$ {example}\n```\n")
    return below_title("\n".join(parts))


def _type(schema: Mapping[str, Any]) -> str:
    if "anyOf" in schema:
        return " or ".join(_type(each) for each in schema["anyOf"])
    kind = schema.get("type", "object")
    return " or ".join(kind) if isinstance(kind, list) else str(kind)


def _media(operation: Mapping[str, Any]) -> str:
    return next(iter(operation["responses"]["200"]["content"]))
