"""A listener with PLAIN, SCRAM and Kafka's unsecured OAUTHBEARER tokens, and the settings of its clients."""

import base64
import json
import time
from collections.abc import Mapping, Sequence

from loadtest.testkit.kafka.node import KafkaListener

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")

_SECURITY = "org.apache.kafka.common.security"
_MODULES = {
    "PLAIN": f"{_SECURITY}.plain.PlainLoginModule",
    "SCRAM-SHA-256": f"{_SECURITY}.scram.ScramLoginModule",
    "SCRAM-SHA-512": f"{_SECURITY}.scram.ScramLoginModule",
    "OAUTHBEARER": f"{_SECURITY}.oauthbearer.OAuthBearerLoginModule",
}


def sasl_listener(
    name: str,
    passwords: Mapping[str, str],
    *,
    security_protocol: str = "SASL_PLAINTEXT",
    properties: Mapping[str, str] | None = None,
    max_reauth_ms: int | None = None,
) -> KafkaListener:
    """A listener with all of `MECHANISMS` for these users. SCRAM also needs `scram_arguments`.

    Sessions end after `max_reauth_ms` unless clients authenticate again (KIP-368).
    """
    settings = {"sasl.enabled.mechanisms": ",".join(MECHANISMS)}
    options = {
        "PLAIN": [f'user_{user}="{password}"' for user, password in passwords.items()],
        "OAUTHBEARER": ['unsecuredLoginStringClaim_sub="broker"'],
    }
    for mechanism, module in _MODULES.items():
        prefix = mechanism.lower()
        settings[f"{prefix}.sasl.jaas.config"] = " ".join([module, "required", *options.get(mechanism, ())]) + ";"
        if max_reauth_ms is not None:
            settings[f"{prefix}.connections.max.reauth.ms"] = str(max_reauth_ms)
    return KafkaListener(name, security_protocol, settings | dict(properties or {}))


def scram_arguments(passwords: Mapping[str, str]) -> Sequence[str]:
    """The arguments for StorageTool's format that create these users' SCRAM credentials."""
    credentials = [
        f"{mechanism}=[name={user},password={password}]"
        for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512")
        for user, password in passwords.items()
    ]
    return [argument for credential in credentials for argument in ("--add-scram", credential)]


def java_properties(mechanism: str, user: str, password: str, *, security_protocol: str = "SASL_PLAINTEXT") -> dict[str, str]:
    """Properties of a Java client. OAUTHBEARER ignores the password."""
    options = (
        f'unsecuredLoginStringClaim_sub="{user}"' if mechanism == "OAUTHBEARER" else f'username="{user}" password="{password}"'
    )
    return {
        "security.protocol": security_protocol,
        "sasl.mechanism": mechanism,
        "sasl.jaas.config": f"{_MODULES[mechanism]} required {options};",
    }


def librdkafka_properties(
    mechanism: str, user: str, password: str, *, security_protocol: str = "SASL_PLAINTEXT"
) -> dict[str, str | bool]:
    """The same properties for librdkafka."""
    common: dict[str, str | bool] = {"security.protocol": security_protocol, "sasl.mechanism": mechanism}
    if mechanism == "OAUTHBEARER":
        return common | {"enable.sasl.oauthbearer.unsecure.jwt": True, "sasl.oauthbearer.config": f"principal={user}"}
    return common | {"sasl.username": user, "sasl.password": password}


def unsecured_token(user: str) -> str:
    """An unsigned bearer token of an hour, which Kafka's brokers accept by default for tests (KIP-255)."""
    # Brokers compare in whole ms, and refuse a token that was issued a fraction of a ms in the future.
    now = int(time.time())
    parts = ({"alg": "none"}, {"sub": user, "iat": now, "exp": now + 3600})
    return ".".join(base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts) + "."
