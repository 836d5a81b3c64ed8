"""The section `quotas.topics`."""

import pytest

from tests.gateway.config.texts import MINIMAL, check_problem, parsed

TOTAL, EXPLICIT = "total.bytes.in.per.sec.threshold", "bytes.in.per.sec.threshold"


def topics(text: str) -> str:
    return MINIMAL + f"quotas: {{topics: {text}}}\n"


def test_topic_quotas_are_off_unless_configured() -> None:
    assert parsed(MINIMAL).quotas.topics is None
    found = parsed(topics(f"{{{TOTAL}: 1000, {EXPLICIT}: {{payments: 400, a.b: 600}}}}")).quotas.topics
    assert found is not None
    assert (found.total, found.explicit) == (1000, {"payments": 400, "a.b": 600})
    assert (found.meter, found.error_code) == ("one_minute", 19)


@pytest.mark.parametrize(
    ("text", "key", "words"),
    [
        (
            f"{{{TOTAL}: 1000, {EXPLICIT}: {{a: 700, b: 301, c: 1}}}}",
            "quotas.topics",
            [f"add up to 1002, 2 more than {TOTAL} 1000: a 700 + b 301 + c 1", "at least 1002"],
        ),
        (
            f"{{{TOTAL}: 10, {EXPLICIT}: {{{', '.join(f't{n}: {n}' for n in range(1, 10))}}}}}",
            "quotas.topics",
            ["add up to 45", "t9 9 + t8 8 + t7 7 + t6 6 + t5 5 + 4 more"],
        ),
        ("{}", f"quotas.topics.{TOTAL}", ["is missing"]),
        (f"{{{TOTAL}: 0}}", f"quotas.topics.{TOTAL}", ["must be above 0"]),
        (f"{{{TOTAL}: 10, {EXPLICIT}: {{a: 0}}}}", f"quotas.topics.{EXPLICIT}.a", ["must be above 0"]),
        (
            f"{{{TOTAL}: 10, {EXPLICIT}: {{'a b': 1}}}}",
            f"quotas.topics.{EXPLICIT}.a b",
            ["not a legal name of a topic"],
        ),
        (f"{{{TOTAL}: 10, meter: ewma}}", "quotas.topics.meter", ["one_minute", "window"]),
        (f"{{{TOTAL}: 10, error_code: 3}}", "quotas.topics.error_code", ["NOT_ENOUGH_REPLICAS", "THROTTLING_QUOTA_EXCEEDED"]),
        (f"{{{TOTAL}: 10, bytes.in.per.sec.treshold: {{}}}}", "quotas.topics.bytes.in.per.sec.treshold", [EXPLICIT]),
    ],
)
def test_senseless_topic_quotas_are_refused_with_reason(text: str, key: str, words: list[str]) -> None:
    check_problem(topics(text), key, *words)


@pytest.mark.parametrize("code", [19, 89])
def test_error_code_may_be_any_that_producers_retry(code: int) -> None:
    found = parsed(topics(f"{{{TOTAL}: 10, error_code: {code}}}")).quotas.topics
    assert found is not None
    assert found.error_code == code
