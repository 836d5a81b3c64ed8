"""The tables of `reason` and of the log's fields have the names that the code can give."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway.features.connection_quotas import admission
from gateway.proxy.handlers import sasl
from gateway.quotas.debts import ClearedDebt
from protocol import errors
from tests.docs.test_reference import GENERATOR

ROOT = Path(__file__).parents[2]
REASONS: dict[str, dict[str, Any]] = GENERATOR["metric_rows"].reason_values.REASONS
PROTOCOL_ERRORS = {
    name for name, each in vars(errors).items() if isinstance(each, type) and issubclass(each, errors.ProtocolError)
}


def nodes() -> Iterator[ast.AST]:
    for package in ("gateway", "protocol"):
        for path in sorted((ROOT / package).rglob("*.py")):
            yield from ast.walk(ast.parse(path.read_text("utf-8")))


def called(node: ast.Call) -> str:
    return node.func.id if isinstance(node.func, ast.Name) else node.func.attr if isinstance(node.func, ast.Attribute) else ""


def text(node: ast.AST | None) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


@pytest.fixture(scope="module")
def found() -> dict[str, set[str]]:
    """The values by metric."""
    protocol, rejected, tls = set[str](), set(admission._CAUSES), set[str]()
    for node in nodes():
        if isinstance(node, ast.Call):
            name, first = called(node), text(node.args[0]) if node.args else ""
            if name in PROTOCOL_ERRORS:
                protocol.add(first)
            elif name == "connection_rejected":
                rejected.add(first)
            elif name == "EndConnection":
                rejected.update(text(each.value) for each in node.keywords if each.arg == "limit")
            elif name == "_refuse" and len(node.args) == 3 and text(node.args[1]):
                rejected.add(f"proxy_header_{text(node.args[1])}")
            elif name == "Cause":
                tls.add(first)
        elif isinstance(node, ast.IfExp) and text(node.body) == "idle":
            rejected.update((text(node.body), text(node.orelse)))
        elif isinstance(node, ast.Subscript) and isinstance(node.value, ast.Attribute):
            values = {"protocol_errors": protocol, "failures": tls}.get(node.value.attr, set[str]())
            values.add(text(node.slice))
    of_metric = {
        "weir_protocol_errors_total": protocol,
        "weir_connections_rejected_total": rejected,
        "weir_tls_handshake_failures_total": tls,
        "weir_authentication_failures_total": set(sasl._FAILURES),
    }
    return {metric: values - {""} for metric, values in of_metric.items()}


@pytest.mark.parametrize("metric", REASONS)
def test_page_has_each_reason(found: dict[str, set[str]], metric: str) -> None:
    assert set(REASONS[metric]) == found[metric], "correct REASONS in .ci/reference/reason_values.py, then run `make reference`"


def test_page_has_each_metric(found: dict[str, set[str]]) -> None:
    assert set(REASONS) == set(found)


def test_page_of_the_log_has_each_field() -> None:
    extras = [
        each.value
        for node in nodes()
        if isinstance(node, ast.Call) and called(node) in {"debug", "info", "warning", "error", "log"}
        for each in node.keywords
        if each.arg == "extra"
    ]
    fields = {text(key) for extra in extras if isinstance(extra, ast.Dict) for key in extra.keys} - {""}
    assert {"peer", "reason", "set_in", "drained"} <= fields
    page = (ROOT / "docs" / "reference" / "log.md").read_text("utf-8")
    assert [name for name in sorted({*fields, *ClearedDebt.__annotations__}) if f"`{name}`" not in page] == []
