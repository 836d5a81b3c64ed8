"""Python's clients with every mechanism: each sends one record, or returns the error that its user sees."""

import asyncio
import logging
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

from aiokafka import AIOKafkaProducer
from aiokafka.abc import AbstractTokenProvider
from confluent_kafka import KafkaError, Producer

from loadtest.testkit.kafka.sasl import librdkafka_properties, unsecured_token

TIMEOUT = 60.0


def _protocol(ca: Path | None) -> str:
    return "SASL_PLAINTEXT" if ca is None else "SASL_SSL"


def with_librdkafka(servers: str, topic: str, mechanism: str, user: str, password: str, ca: Path | None = None) -> str | None:
    """Send one record. Return None, or the client's error message."""
    errors: list[KafkaError] = []
    producer = Producer(
        {
            "bootstrap.servers": servers,
            "client.id": "etl",
            "error_cb": errors.append,
            **librdkafka_properties(mechanism, user, password, security_protocol=_protocol(ca)),
            **({} if ca is None else {"ssl.ca.location": str(ca)}),
        }
    )
    producer.produce(topic, bytes(100), on_delivery=lambda error, _: errors.append(error) if error else None)
    while len(producer) and not any(error.code() == KafkaError._AUTHENTICATION for error in errors):
        producer.poll(0.05)
    producer.purge()
    for error in errors:
        if error.code() == KafkaError._AUTHENTICATION:
            return str(error.str()).partition(": ")[2].partition(" (after")[0]
    assert errors == []
    return None


class _Token(AbstractTokenProvider):
    def __init__(self, user: str) -> None:
        self._user = user

    async def token(self) -> str:
        return unsecured_token(self._user)


def with_aiokafka(servers: str, topic: str, mechanism: str, user: str, password: str, ca: Path | None = None) -> str | None:
    """Send one record. Return None, or the client's error message."""
    return asyncio.run(_aiokafka(servers, topic, mechanism, user, password, ca))


async def _aiokafka(servers: str, topic: str, mechanism: str, user: str, password: str, ca: Path | None) -> str | None:
    producer = AIOKafkaProducer(
        bootstrap_servers=servers,
        client_id="etl",
        security_protocol=_protocol(ca),
        ssl_context=None if ca is None else ssl.create_default_context(cafile=str(ca)),
        sasl_mechanism=mechanism,
        sasl_plain_username=user,
        sasl_plain_password=password,
        sasl_oauth_token_provider=_Token(user),
    )
    said = _Said()
    logging.getLogger("aiokafka").addHandler(said)
    try:
        await producer.start()
        await producer.send_and_wait(topic, bytes(100))
    except Exception as error:
        return f"{type(error).__name__}; {' '.join(said.lines)}"
    finally:
        logging.getLogger("aiokafka").removeHandler(said)
        await producer.stop()
    return None


class _Said(logging.Handler):
    """Collects aiokafka's log, because only the log has the reason of a refusal."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        # without the address, which differs between gateway and broker
        self.lines.append(record.getMessage().partition('": ')[2])


def with_kafka_python(servers: str, topic: str, mechanism: str, user: str, password: str, ca: Path | None = None) -> str | None:
    """Send one record. Return None, or the name of the error."""
    from kafka import KafkaProducer
    from kafka.net.sasl.oauth import AbstractTokenProvider as KafkaPythonProvider

    class Token(KafkaPythonProvider):  # type: ignore[misc]
        def token(self) -> str:
            return unsecured_token(user)

    options: dict[str, Any] = {"sasl_oauth_token_provider": Token()} if mechanism == "OAUTHBEARER" else {}
    producer = None
    try:
        producer = KafkaProducer(
            bootstrap_servers=servers,
            client_id="etl",
            security_protocol=_protocol(ca),
            ssl_cafile=None if ca is None else str(ca),
            sasl_mechanism=mechanism,
            sasl_plain_username=user,
            sasl_plain_password=password,
            **options,
        )
        producer.send(topic, bytes(100)).get(TIMEOUT)
    except Exception as error:
        return type(error).__name__
    finally:
        if producer is not None:
            producer.close(timeout=1)
    return None


CLIENTS: dict[str, Callable[..., str | None]] = {
    "librdkafka": with_librdkafka,
    "aiokafka": with_aiokafka,
    "kafka-python": with_kafka_python,
}
