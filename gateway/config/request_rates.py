"""The key `request_rates` of entities and groups: requests per second by the API's name, such as `{Metadata: 5}`."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, Final

from pydantic import Field, PlainValidator, TypeAdapter, ValidationError
from pydantic_core import InitErrorDetails

from gateway.config.problems import nearest
from gateway.config.section import Section, described, invalid
from gateway.quotas.kinds.request_rates import BY_API, KEY, refusal
from gateway.whole_number import MAX_INT64

_REMEDY: Final = "write names of Kafka's APIs and their rates, such as {Metadata: 5, OffsetCommit: 20}"
_Rate = Annotated[float, Field(gt=0, le=MAX_INT64)]
_ONE: Final[TypeAdapter[float]] = TypeAdapter(_Rate, config=Section.model_config)


def _rates(value: object) -> Mapping[str, float]:
    """The limits by quota key, such as `request_rates.Metadata`."""
    if not isinstance(value, Mapping) or not value:
        raise invalid("is not a section of APIs and rates" if value else "is empty", _REMEDY)
    found: dict[str, float] = {}
    errors: list[InitErrorDetails] = []
    for name, rate in value.items():
        if name not in BY_API:
            errors.append(InitErrorDetails(type=invalid(*_unknown(name)), loc=(str(name),), input=rate))
            continue
        try:
            found[BY_API[name].config_key] = _ONE.validate_python(rate)
        except ValidationError as error:
            errors += [
                InitErrorDetails(type=each["type"], loc=(name,), input=rate, ctx=each.get("ctx", {}))
                for each in error.errors(include_url=False)
            ]
    if errors:
        raise ValidationError.from_exception_data(KEY, errors)
    return MappingProxyType(found)


RequestRates = Annotated[Any, PlainValidator(_rates, json_schema_input_type=dict[str, _Rate])]
"""The type of the key."""


def rates_key(whose: str) -> tuple[object, object]:
    """The type and the description of the key in a row."""
    words = f"Requests per second that {whose} may send, by the API's name, such as `{{Metadata: 5}}`."
    return RequestRates, described(words, None, unit="requests per second", absent="no limit")


def _unknown(name: object) -> tuple[str, str]:
    """Message and remedy for a name that no limit can have."""
    reason = refusal(str(name))
    if reason is not None:
        return f"can not be limited, because {reason}", "remove it"
    meant = nearest(str(name), BY_API)
    return "is not an API of Kafka", f"did you mean {meant}?" if meant else _REMEDY
