"""A quota kind: its names, its unit, the messages that it charges, and the algorithms that measure it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from gateway.quotas.meter import Meter, Window
from gateway.quotas.rate import WindowMeter
from gateway.quotas.token_bucket import MAX_DEBT_SECONDS, TokenBucket
from gateway.whole_number import MAX_INT64
from protocol.api_keys import ApiKey

NewMeter = Callable[[float, Window, float], Meter]
"""(limit per second, the quota window, now) -> the meter of one bucket."""

BYTE_METERS: Mapping[str, NewMeter] = {
    "token_bucket": TokenBucket.for_bytes,
    "window": lambda limit, window, now: WindowMeter(limit, window),  # noqa: ARG005
}


@dataclass(frozen=True, slots=True)
class Unit:
    """The unit of amounts. `name` is a plural; `prefixes` are in steps of 1024, empty for plain numbers; `grafana` is Grafana's
    name of the unit per second."""

    name: str
    prefixes: tuple[str, ...] = ()
    grafana: str = "none"

    def text(self, amount: float) -> str:
        """Three digits or so with a prefix (`999 B`, `1.00 MiB`), or a number and the unit (`1,234.5 partitions`)."""
        if not self.prefixes:
            return f"{amount:,.1f} {self.name}"
        step = 0
        while amount >= 1023.5 and step < len(self.prefixes) - 1:
            amount /= 1024
            step += 1
        digits = 0 if step == 0 or amount >= 100 else 1 if amount >= 10 else 2
        return f"{amount:.{digits}f} {self.prefixes[step]}"


BYTES: Final = Unit("bytes", ("B", "KiB", "MiB", "GiB", "TiB"), "Bps")


@dataclass(frozen=True, slots=True)
class Charge:
    """The Kafka messages that use up a quota: requests of `apis`, or the responses to them.

    A message costs `per_message` units, and `per_byte` units for each byte. The registry of handlers charges requests with
    these figures. If both are 0, and for responses, the handler of each API has to charge.
    """

    apis: frozenset[ApiKey]
    by: Literal["request", "response"]
    per_message: int = 0
    per_byte: int = 0

    def has_figure_for(self, api: ApiKey) -> bool:
        """True if a request of the API costs a figure."""
        return self.by == "request" and api in self.apis and (self.per_message > 0 or self.per_byte > 0)


@dataclass(frozen=True, slots=True)
class ClientTimeout:
    """A time after which clients with default settings give something up."""

    seconds: float
    words: str


SESSION_TIMEOUT: Final = ClientTimeout(45.0, "session timeout")
"""Kafka's default of session.timeout.ms (KIP-735). A client that is muted for longer may lose its session."""

REQUEST_TIMEOUT: Final = ClientTimeout(30.0, "request timeout")
"""Kafka's default of request.timeout.ms. In debt, the first Produce of a producer's next connection waits as long."""


@dataclass(frozen=True, slots=True)
class FullRequest:
    """The largest request of a client with default settings: its units, in words, and how to make such requests smaller.

    A mute for it must not last longer than `timeout`.
    """

    amount: int
    words: str
    remedy: str
    timeout: ClientTimeout = SESSION_TIMEOUT

    def outlasts_timeout(self, limit: float) -> bool:
        """True if a quota of `limit` per second mutes the connection of such a request for longer than the client's timeout."""
        return self.amount / limit > self.timeout.seconds

    def warning(self, limit: float, unit: str, entity: str) -> str:
        seconds = min(self.amount / limit, MAX_DEBT_SECONDS)
        return (
            f"{limit:.16g} {unit}/s for {entity}: {self.words} mutes its connection for {seconds:.0f} s, "
            f"longer than the usual {self.timeout.words} ({self.timeout.seconds:.0f} s) — raise it, or {self.remedy}"
        )


@dataclass(frozen=True, slots=True)
class QuotaKind:
    """Something that is measured and limited.

    - `name`: the value of the metric label `kind`. `config_key`: Kafka's name of the quota, also in the config file.
    - `description`: a phrase with the words `the entity`, which become `all members together` for a group.
    - `order`: the place in tables. Orders from 100 on belong to the kinds of `request_rates`.
    - `in_kafka`: True if brokers have the same quota. `weir quotas import` and `lift` move such a quota.
    - `charge`: None for connections, which are no messages.
    - `entity_types`: the types of ClientQuotaEntity that can have the quota: Kafka's, and Weir's own `group`.
    - `integral` quotas are whole numbers, as byte rates are in Kafka. Rates below one per second need False.
    - `largest` is the limit of Kafka's type.
    - `meters`: the algorithms by their names in the config file, the default one first.
    - `full_request`: of each kind that charges and does not spare members, since its mutes may end a client's session.
    - `at_each_broker`: False if Kafka counts the quota at one broker for the whole cluster.
    - `in_overview`: the live page and the reports show the sum over all entities.
    - `api`: the only API of a kind of `request_rates`. Such a kind has no key of its own in a row of the config.
    """

    name: str
    config_key: str
    unit: Unit
    description: str
    order: int
    in_kafka: bool
    charge: Charge | None = None
    entity_types: frozenset[str] = frozenset({"user", "client-id", "group"})
    integral: bool = True
    largest: int = MAX_INT64
    meters: Mapping[str, NewMeter] = field(default_factory=lambda: BYTE_METERS)
    full_request: FullRequest | None = None
    at_each_broker: bool = True
    in_overview: bool = False
    api: ApiKey | None = None

    @property
    def spares_members(self) -> bool:
        """True if mutes for the quota end before a member of a consumer group is lost (`gateway.proxy.membership`).

        A kind that charges bytes mutes for its whole time: a producer could send heartbeats to escape its rate (decision 029).
        """
        charge = self.charge
        return charge is not None and charge.by == "request" and charge.per_message > 0 and charge.per_byte == 0

    @property
    def title(self) -> str:
        words = self.name.replace("_", " ").replace(".", " of ")
        return f"{words[:1].upper()}{words[1:]}"

    @property
    def limit_unit(self) -> str:
        """The unit of a limit in JSON: `bytes/s`."""
        return f"{self.unit.name}/s"

    def text(self, amount: float) -> str:
        """An amount as tables show it: `1.00 MiB/s`."""
        return f"{self.unit.text(amount)}/s"
