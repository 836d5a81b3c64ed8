"""Writes data/api_facts.json: facts about each API from Kafka's own jar, which the table in protocol/api_keys.py must match.

Writes data/message_specs.json as well: the layouts of messages that kafka-python has no codec for, without Kafka's texts.

    python tests/protocol/generate_api_facts.py .../kafka-clients-4.3.0.jar

Versions, flexibility and fields come from the message specifications in the jar.
"""

import json
import re
import sys
import zipfile
from pathlib import Path

DATA = Path(__file__).parent / "data"
NOT_IN_KAFKA_PYTHON = (38, 39, 40, 41, 64, 68, 69, 71, 72, *range(76, 82), *range(83, 93))
LAYOUT = ("name", "type", "versions", "nullableVersions", "taggedVersions", "tag", "default")


def read_specs(jar: zipfile.ZipFile) -> dict[int, dict[str, dict]]:
    specs: dict[int, dict[str, dict]] = {}
    for name in jar.namelist():
        if re.fullmatch(r"common/message/\w+\.json", name):
            spec = json.loads(re.sub(r"(?m)(^|\s)//.*$", "", jar.read(name).decode()))
            if "apiKey" in spec:
                specs.setdefault(spec["apiKey"], {})[spec["type"]] = spec
    return specs


def first(versions: str) -> int | None:
    return None if versions == "none" else int(re.match(r"\d+", versions)[0])


def layout_of(field: dict, structs: dict[str, list]) -> dict:
    layout = {key: field[key] for key in LAYOUT if key in field}
    inner = field.get("fields") or structs.get(field["type"].removeprefix("[]"))
    return layout | {"fields": [layout_of(each, structs) for each in inner]} if inner else layout


def message_layout(spec: dict) -> dict:
    structs = {struct["name"]: struct["fields"] for struct in spec.get("commonStructs", [])}
    head = {key: spec[key] for key in ("apiKey", "type", "name", "validVersions", "flexibleVersions")}
    return head | {"fields": [layout_of(field, structs) for field in spec["fields"]]}


def addresses_since(fields: list[dict]) -> int | None:
    """The first version in which one of these fields, or a field inside them, is an address: a host beside a port."""
    versions = {field["name"]: field["versions"] for field in fields}
    found = [max(first(versions["Host"]), first(versions["Port"]))] if {"Host", "Port"} <= versions.keys() else []
    found += [since for field in fields if (since := addresses_since(field.get("fields", []))) is not None]
    return min(found, default=None)


def write_lines(name: str, rows: list[dict]) -> None:
    lines = ",\n".join(json.dumps(row) for row in rows)
    (DATA / name).write_text(f"[\n{lines}\n]\n")


def main() -> None:
    with zipfile.ZipFile(sys.argv[1]) as jar:
        specs = read_specs(jar)
    facts = []
    for key, spec in sorted(specs.items()):
        request, response = spec["request"], spec["response"]
        if request["validVersions"] == "none":  # removed in 4.0; only the key is left in the jar
            continue
        name = request["name"].removesuffix("Request")
        fields = [f for f in response["fields"] if "taggedVersions" not in f]
        place = next((i for i, f in enumerate(fields) if f["name"] == "ThrottleTimeMs"), None)
        facts.append(
            {
                "key": key,
                "name": name,
                "max_version": int(request["validVersions"].split("-")[-1]),
                "flexible_since": first(request["flexibleVersions"]),
                "response_flexible_since": first(response["flexibleVersions"]),
                "throttle_since": None if place is None else first(fields[place]["versions"]),
                "before_throttle": None if place is None else [f["type"] for f in fields[:place]],
                "on_broker_listener": "broker" in request["listeners"],
                "addresses_since": addresses_since(message_layout(response)["fields"]),
            }
        )
    write_lines("api_facts.json", facts)
    write_lines("message_specs.json", [message_layout(m) for k in NOT_IN_KAFKA_PYTHON for m in specs[k].values()])


if __name__ == "__main__":
    main()
