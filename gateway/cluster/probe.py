"""Whether the brokers want SASL, asked by one who has no credentials."""

import asyncio
import ssl
import struct

from gateway.cluster.brokers import Address
from protocol.bodies import sasl

TIMEOUT_SECONDS = 5.0

_MECHANISM = b"WEIR-ASKS"
_CLIENT_ID = b"weir"
_MAX_ANSWER_BYTES = 64 * 1024


async def sasl_mechanisms(address: Address, tls: ssl.SSLContext | None = None) -> tuple[str, ...]:
    """The mechanisms that the broker at `address` lets clients authenticate by; none where it wants no authentication.

    Asks for a mechanism that there is not: the answer to that names those there are. Raises OSError (TimeoutError is one),
    ProtocolError.
    """
    async with asyncio.timeout(TIMEOUT_SECONDS):
        reader, writer = await asyncio.open_connection(*address, ssl=tls)
        try:
            request = struct.pack(">hhih", sasl.SASL_HANDSHAKE, 1, 0, len(_CLIENT_ID)) + _CLIENT_ID
            request += struct.pack(">h", len(_MECHANISM)) + _MECHANISM
            writer.write(struct.pack(">i", len(request)) + request)
            head = await reader.readexactly(4)
            (size,) = struct.unpack(">i", head)
            if not 0 < size <= _MAX_ANSWER_BYTES:
                raise ConnectionError(f"an answer of {size} bytes is none of Kafka's")
            answer = sasl.read_handshake_response(head + await reader.readexactly(size))
        except asyncio.IncompleteReadError:
            raise ConnectionError("closed without an answer") from None
        finally:
            writer.close()
    return answer.mechanisms if answer.error_code == sasl.UNSUPPORTED_SASL_MECHANISM else ()
