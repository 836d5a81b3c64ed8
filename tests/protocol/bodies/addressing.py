"""Address translations for the tests."""


def gateway(node_id, host, port):
    """Translate every broker to another address, longer than the original in any test."""
    return f"broker-{node_id}.gateway.example.com", 30_000 + node_id % 1_000


def same(node_id, host, port):
    return host, port


def nothing(node_id, host, port):
    return None


def only_odd(node_id, host, port):
    return gateway(node_id, host, port) if node_id % 2 else None


TRANSLATIONS = [gateway, same, nothing, only_odd]
