"""Files in the format of Java's properties, as Kafka's clients have them."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import javaproperties

_END_OF_LINE: Final = re.compile(r"\r\n?|\n")


@dataclass(frozen=True, slots=True)
class Property:
    """A key and its value. `line` counts from 1."""

    line: int
    key: str
    value: str

    @property
    def shown(self) -> str:
        """The property in messages, without its value. A line without one is not shown: it may be a part of a secret."""
        return f"line {self.line}: {self.key if self.value else 'a line without a value'}"


def properties_of(text: str) -> Iterator[Property]:
    """The properties in their order; of a key that is given twice, the last counts. Raises ValueError without any secret."""
    line = 1
    try:
        for each in javaproperties.parse(text):
            if isinstance(each, javaproperties.KeyValue):
                yield Property(line, each.key, each.value)
            line += len(_END_OF_LINE.findall(each.source))
    except javaproperties.InvalidUEscapeError:
        raise ValueError(f"line {line}: has a \\u escape without four hexadecimal digits") from None
