"""Names of settings of Kafka's clients and brokers, and the keys of Weir that have their place."""

import re
from collections.abc import Mapping
from typing import Final

_PEM: Final = "as a PEM file (convert a Java keystore with keytool -importkeystore, then openssl pkcs12)"
_NONE_NEEDED: Final = "remove it: Weir reads PEM files without a password (openssl pkey -in FILE -out NEW)"
_IN_A_FILE: Final = "name a file with the password in upstream.sasl.password_file"

_KEYS: Final[Mapping[tuple[str, ...], str]] = {
    ("ssl_truststore_location", "ssl_truststore_certificates", "ssl_ca_location", "ssl_cafile"): f"write {{tls}}.{{ca}} {_PEM}",
    ("ssl_keystore_location", "ssl_keystore_certificate_chain"): f"write {{tls}}.cert and {{tls}}.key {_PEM}",
    ("ssl_certificate_location", "ssl_certfile"): f"write {{tls}}.cert {_PEM}",
    ("ssl_key_location", "ssl_keystore_key", "ssl_keyfile"): "write {tls}.key, a PEM file",
    ("ssl_truststore_password", "ssl_keystore_password", "ssl_key_password", "ssl_password"): _NONE_NEEDED,
    ("ssl_truststore_type", "ssl_keystore_type"): f"remove it, and name the files in {{tls}} {_PEM}",
    ("ssl_endpoint_identification_algorithm", "ssl_check_hostname"): "write upstream.tls.verify_hostname",
    ("enable_ssl_certificate_verification",): "write upstream.tls.verify_hostname",
    ("ssl_protocol", "ssl_enabled_protocols"): "write {tls}.min_version",
    ("ssl_client_auth",): "write listeners[].tls.client_auth",
    ("ssl_principal_mapping_rules",): "write listeners[].tls.principal_mapping_rules",
    (
        "sasl_mechanism",
        "sasl_mechanisms",
    ): 'write "sasl: {mechanism: NAME}" below upstream; the mechanisms of clients need no setting',
    ("sasl_enabled_mechanisms",): "remove it: each mechanism of the brokers passes through Weir",
    ("sasl_username", "sasl_plain_username"): "write upstream.sasl.username",
    ("sasl_password", "sasl_plain_password", "password"): _IN_A_FILE,
    ("sasl_jaas_config",): f"write mechanism and username in upstream.sasl, and {_IN_A_FILE}",
    ("sasl_oauthbearer_token_endpoint_url", "token"): "name a file with the token in upstream.sasl.token_file",
    ("bootstrap_servers", "bootstrap_server", "brokers"): "write upstream.bootstrap_servers, a list",
    ("client_id",): "write client-id in a row of quotas.entities",
    ("advertised_listeners",): "write listeners[].advertised_host",
    ("advertised_port",): "write listeners[].bootstrap_port, and listeners[].broker_ports for single brokers",
    ("max_connections_per_ip",): "write connections.max_per_ip",
    ("max_connections_per_ip_overrides",): "write connections.max_per_ip_overrides",
    ("max_connection_creation_rate",): "write connection_creation_rate, in connections or a listener",
    ("connections_max_idle_ms",): "write connections.max_idle_ms",
    ("socket_request_max_bytes",): "write connections.max_frame_bytes",
    ("quota_window_num",): "write quotas.window.samples",
    ("quota_window_size_seconds",): "write quotas.window.seconds",
    ("controller_quota_window_num",): "write quotas.mutations.window.samples",
    ("controller_quota_window_size_seconds",): "write quotas.mutations.window.seconds",
    ("super_users",): "write quota_admins, for users who may change quotas through Weir",
}

_REMEDIES: Final = {name: remedy for names, remedy in _KEYS.items() for name in names}

_CLIENTS_OWN: Final = frozenset({
    "group_id", "acks", "linger_ms", "batch_size", "compression_type", "retries", "request_timeout_ms", "session_timeout_ms",
    "enable_idempotence", "max_poll_records", "auto_offset_reset", "fetch_max_bytes", "max_request_size", "metadata_max_age_ms",
})  # fmt: skip

_VALUE: Final = re.compile(r"[:=/\s].*", re.DOTALL)

_SECRETIVE: Final = ("password", "jaas", "secret", "token", "ssl_keystore_key", "credential", "url")


def folded(name: str) -> str:
    """The name in snake_case, as libraries for Python spell Kafka's names: `sasl.mechanism` becomes `sasl_mechanism`."""
    return name.strip().casefold().replace("-", "_").replace(".", "_")


def may_hold_secret(name: str) -> bool:
    """True for a name whose value must not be shown, and for a text with such a name. A webhook's URL is a secret."""
    return any(word in folded(name) for word in _SECRETIVE)


def without_value(key: str) -> str:
    """The key of a text such as `password:secret`: without a space behind the colon, YAML takes all of it for the key."""
    return _VALUE.sub("", key)


def foreign_name(name: str, side: str) -> tuple[str, str] | None:
    """Message and remedy for a setting of Kafka's. `side` is the key of the top level that it stands below, or ""."""
    key = folded(name)
    tls = "listeners[].tls" if side == "listeners" else "upstream.tls"
    if key in ("security_protocol", "security_inter_broker_protocol", "listener_security_protocol_map"):
        if side == "listeners":
            remedy = "for TLS, add tls: {cert: FILE, key: FILE} to the listener; SASL passes through without a setting"
        else:
            remedy = "for SSL, write upstream.tls: {} (and its ca); for SASL, upstream.sasl; for SASL_SSL, both"
        return "a setting of Kafka's clients", remedy
    if key in _REMEDIES:
        ca = "client_ca" if side == "listeners" else "ca"
        return "Kafka's name for another key", _REMEDIES[key].replace("{tls}", tls).replace("{ca}", ca)
    return ("a setting of Kafka's clients", "remove it: clients keep their own settings") if key in _CLIENTS_OWN else None
