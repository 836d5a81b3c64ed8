"""The values of the label `reason`: meaning and remedy. tests/docs/test_reasons.py compares the values with the code."""

from collections.abc import Mapping

from markdown import code, table

_SCANNER = "a port scanner or another protocol: close the port to the peer"
_CLIENT_BUG = "a bug of the client, or damaged bytes: update the client's library, and look at the network"
_BROKER_BUG = "a bug of the broker, or of Weir: report it with the broker's version"
_EITHER = "a bug of the side that the log names, or damaged bytes: update it. Report it if all of its connections end so"
_RENEW = "renew the certificate of the side that the log names"

REASONS: Mapping[str, Mapping[str, tuple[str, str]]] = {
    "weir_protocol_errors_total": {
        "bad_count": ("a count or a length of a text that does not fit into its frame", _EITHER),
        "bad_length": ("bytes are missing or left over in a frame", _EITHER),
        "bad_tags": (
            "the tagged fields of an answer are out of order, leave no room for addresses, or are longer than 256 KiB",
            _BROKER_BUG,
        ),
        "bad_varint": ("a number of variable length is too long", _EITHER),
        "broker_order": ("the broker answers in another order than it was asked", _BROKER_BUG),
        "broker_other_cluster": (
            "a broker of another cluster answers",
            "take its address out of `upstream.bootstrap_servers` and DNS; restart Weir if the cluster was replaced",
        ),
        "broker_overrun": ("an answer ends inside its own header", _BROKER_BUG),
        "broker_raw_length": ("the broker sends a SASL token that is too long", _BROKER_BUG),
        "broker_results": ("the broker answers another number of entities than it was asked for", _BROKER_BUG),
        "broker_unasked": ("the broker sends an answer that nobody asked for", _BROKER_BUG),
        "frame_too_large": (
            "a request is longer than Weir takes",
            "raise the limit that the log names, `connections.max_frame_bytes` for most requests, or send shorter ones",
        ),
        "frame_too_short": ("a frame is shorter than a header", _SCANNER),
        "head_too_long": ("the header of a frame is still incomplete after 256 KiB", _CLIENT_BUG),
        "http": (
            "HTTP in place of Kafka's protocol",
            "let health checks and Prometheus use the admin port; close the port to scanners",
        ),
        "internal": ("a bug of Weir", "report it with the traceback in the log"),
        "negative_length": ("a frame has a negative length", _SCANNER),
        "not_authenticated": (
            "a client without a login sends requests",
            "set `security.protocol` and `sasl.mechanism` of the client",
        ),
        "not_authenticated_size": (
            "a request before the login is longer than `listeners[].sasl.max_frame_bytes`",
            "set `security.protocol` and `sasl.mechanism` of the client, or raise the limit for large tokens",
        ),
        "overrun": ("a field ends behind its frame", _EITHER),
        "proxy_header": (
            "a PROXY header that the listener does not expect",
            "set `proxy_protocol.mode` of the listener, or let only one balancer send a header",
        ),
        "raw_length": ("a SASL token without a header is longer than 512 KiB", _CLIENT_BUG),
        "sasl_order": ("messages of a login come in a wrong order", _CLIENT_BUG),
        "sasl_raw_unreadable": (
            "an old client logs in by a mechanism that Weir cannot read",
            "use a client of Kafka 1.0 or later",
        ),
        "tls": (
            "damaged TLS, or new keys and handshakes again and again",
            "the log has OpenSSL's words: look at the network between both sides",
        ),
        "tls_on_plaintext": (
            "TLS to a listener without TLS",
            "set `security.protocol` of the client, or `tls` of the listener",
        ),
        "too_many_elements": ("a request has more elements than Weir takes", "send several requests"),
        "trailing_bytes": ("a message of a login has bytes behind its last field", _CLIENT_BUG),
        "truncated": ("the client closes the connection inside a request", "look at the client's log, and at the network"),
        "unknown_api": (
            "the client uses a request that Weir does not offer",
            "such requests are for brokers alone: connect to a broker's own address, or close the port to a scanner",
        ),
        "unsupported_version": (
            "the client uses a version of a request that Weir does not offer",
            "let the client choose versions by ApiVersions: check `api.version.request` and `broker.version.fallback`",
        ),
    },
    "weir_connections_rejected_total": {
        "authentication_timeout": (
            "the client did not log in within `listeners[].sasl.timeout_seconds`",
            "set `security.protocol` of the client, or close the port to a scanner",
        ),
        "broker_unreachable": ("Weir cannot connect to the client's broker", "start the broker, or mend the network"),
        "collected_bytes": (
            "unread answers, refused batches or requests fill the shared memory, and this client held the most for long",
            "find the client in the log: send smaller requests, or fewer at a time, and read the answers",
        ),
        "connection_creation_rate": (
            "the address opens connections faster than its `connection_creation_rate`",
            "let the client keep its connections, or raise the rate of the ip",
        ),
        "creation_rate_per_user": (
            "the user opens connections much faster than its `connection_creation_rate`",
            "let the clients keep their connections, or raise the rate of the user",
        ),
        "idle": ("no byte in either direction for `connections.max_idle_ms`", "none: clients connect again when they need to"),
        "max_per_ip": (
            "the address has `connections.max_per_ip` connections",
            "add the address of a NAT or a balancer to `connections.max_per_ip_overrides`",
        ),
        "max_per_user": ("the user has `max_connections` connections", "raise `max_connections` of the user"),
        "proxy_header_invalid": ("the balancer's header is damaged or too long", "the log has the details"),
        "proxy_header_missing": ("the balancer sends no header", "HAProxy: `send-proxy-v2`; or `proxy_protocol.mode: allowed`"),
        "proxy_header_timeout": ("the balancer's header is late", "check the balancer's settings of the PROXY protocol"),
        "proxy_header_untrusted": (
            "a peer that is not in `trusted` sends a header, or connects where one is required",
            "add a balancer's address to `proxy_protocol.trusted`; clients must connect to the balancer",
        ),
        "too_many_held": ("as `connection_creation_rate`, and Weir holds no more sockets", "close the port to the address"),
    },
    "weir_tls_handshake_failures_total": {
        "bad_certificate": ("the certificate is not valid", "the log has OpenSSL's words"),
        "cipher": ("no cipher in common", "update the older side"),
        "closed": ("the peer closed the connection", "usually a health check: none. Otherwise see the client's log"),
        "crowded_out": (
            "more handshakes than Weir takes at once; the address has most of them",
            "close the port to the address",
        ),
        "expired": ("the certificate has expired", _RENEW),
        "key_share": (
            "the client's key share is of a finite-field group above 2048 bits, whose computation would delay all clients",
            "let the client offer x25519 or secp256r1; a client with its defaults does. Otherwise it is an attack",
        ),
        "no_certificate": ("the client has no certificate, and `tls.client_auth` requires one", "give the client one"),
        "not_tls": (
            "the peer sends no TLS",
            "set `security.protocol` of the client; for a balancer's PROXY header set `proxy_protocol.mode`",
        ),
        "not_yet_valid": ("the certificate is not valid yet", "set the clocks right"),
        "other": ("another error of TLS", "the log has OpenSSL's words"),
        "principal": (
            "no rule of `tls.principal_mapping_rules` matches the certificate's subject",
            "add a rule, such as DEFAULT, or give the client another certificate",
        ),
        "refused_by_peer": (
            "the client refuses Weir's certificate, or the lack of one",
            "let the client trust the authority of the listener's certificate; the log has the alert",
        ),
        "revoked": ("the certificate has been revoked", _RENEW),
        "self_signed": ("the certificate is self-signed, and not trusted", "add it to `tls.client_ca`"),
        "server_name": (
            "the client sent no name (SNI), or that of no broker",
            "connect by the names in `advertised_host` and `sni`",
        ),
        "timeout": ("the handshake did not end within `tls.handshake_seconds`", "look at the network; otherwise a scanner"),
        "unknown_ca": ("the certificate's authority is not trusted", "add the authority to `tls.client_ca`"),
        "version": ("no TLS version in common", "update the older side, or lower `tls.min_version`"),
        "wrong_host": (
            "the certificate is for another host: in the log of brokers alone",
            "give the broker's certificate the broker's name",
        ),
        "wrong_purpose": ("the certificate is not for this use", "issue it with the extended key usage of clients"),
    },
    "weir_authentication_failures_total": {
        "abandoned": (
            "the client closed the connection before its next token",
            "see the client's log; with GSSAPI the KDC may have no principal for the host, or the ticket has expired",
        ),
        "broker_error": ("the broker answers with another error", "see the broker's log"),
        "closed": (
            "the connection ended before the broker's answer",
            "see the broker's log; brokers may close after a refusal",
        ),
        "illegal_state": (
            "the broker wants no login here, or not now",
            "compare `security.protocol` of the client with the brokers' listener",
        ),
        "refused": ("the broker refuses the credentials", "give the client the right password or token"),
        "unnamed": (
            "the mechanism hides the user's name, and `sasl.unnamed` is `close`",
            "use another mechanism, or set `sasl.unnamed: anonymous`",
        ),
        "unreadable": (
            "the broker accepts a token in which Weir finds no name",
            "check `sasl.principal_claim`, and the client's library",
        ),
        "unsupported_mechanism": ("the broker does not have the mechanism", "enable it at the brokers, or use another one"),
    },
}
"""By metric and value."""

INTRO = """\
## Values of `reason` {#reasons}

These metrics have the label `reason` with one of these values. The [log](log.md) has the peer, and the
value as the field `reason`. There, `tls_` stands before the values of handshakes, and
`authentication_` before those of logins.
"""


def section() -> str:
    tables = [
        f"### `{metric}` {{#{metric.removeprefix('weir_').removesuffix('_total').replace('_', '-')}}}\n\n"
        + table(("reason", "meaning", "remedy"), ((code(value), *texts) for value, texts in values.items()))
        for metric, values in REASONS.items()
    ]
    return "\n".join([INTRO, *tables])
