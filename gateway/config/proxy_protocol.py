"""`proxy_protocol` of a listener: balancers that pass on the addresses of clients."""

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field, PlainSerializer, PlainValidator, model_validator

from gateway.config.endpoints import as_network
from gateway.config.section import Section, described, invalid
from gateway.quotas.addresses import Network

_BALANCERS = "write the balancers' addresses, such as trusted: [10.0.0.9, 10.0.1.0/28]"


def _network(value: object) -> Network:
    return as_network(value, _BALANCERS)


_Balancer = Annotated[Network, PlainValidator(_network, json_schema_input_type=str), PlainSerializer(str)]


class ProxyProtocolConfig(Section):
    """`listeners[].proxy_protocol`, versions 1 and 2: balancers pass on the addresses of clients, in front of TLS."""

    mode: Literal["required", "allowed", "disabled"] = described(
        "`required`: each connection begins with a header. `allowed`: a header is optional. A header from a peer outside of"
        " `trusted` is refused.",
        "disabled",
    )
    trusted: Annotated[tuple[_Balancer, ...], Field(strict=False)] = described(
        "Addresses and networks of the balancers. They may claim any client address, so name nothing else.", ()
    )
    header_seconds: Annotated[float, Field(gt=0, le=600)] = described(
        "Time that a balancer has to send the whole header.", 5.0, unit="seconds"
    )

    @model_validator(mode="after")
    def _has_balancers(self) -> "ProxyProtocolConfig":
        if self.mode != "disabled" and not self.trusted:
            raise invalid(f"has mode: {self.mode} and no trusted balancer, so every header would be refused", _BALANCERS)
        return self

    def warnings(self, listener: int) -> Iterator[str]:
        """One line for each probable mistake. `listener` is the index of the listener."""
        key = f"listeners[{listener}].proxy_protocol"
        if self.mode == "disabled" and self.trusted:
            yield f"{key}.mode: is disabled, so Weir reads no header from the trusted peers — write required or allowed"
        for network in self.trusted:
            if network.prefixlen == 0:
                yield f"{key}.trusted: {network} trusts every client to claim any address — write the balancers' addresses"
