"""Runs a real Apache Kafka on this machine: KRaft nodes and Kafka's Java tools, from the jars of `make setup`."""

from loadtest.testkit.kafka.cluster import SHORT_SESSIONS, KafkaCluster
from loadtest.testkit.kafka.jars import JarsMissingError, broker_version
from loadtest.testkit.kafka.node import KafkaListener, KafkaNode, NodeError
from loadtest.testkit.kafka.ports import free_port, free_port_range
from loadtest.testkit.kafka.processes import franz_go, spawn, stop
from loadtest.testkit.kafka.readiness import live_brokers, read_exactly
from loadtest.testkit.kafka.small_volumes import CannotMountError, cluster_on_small_volumes, used_bytes
from loadtest.testkit.kafka.tools import Tool, ToolError, run_tool, start_tool
from loadtest.testkit.kafka.verifiable_producer import VerifiableProducer

__all__ = [
    "SHORT_SESSIONS",
    "CannotMountError",
    "JarsMissingError",
    "KafkaCluster",
    "KafkaListener",
    "KafkaNode",
    "NodeError",
    "Tool",
    "ToolError",
    "VerifiableProducer",
    "broker_version",
    "cluster_on_small_volumes",
    "franz_go",
    "free_port",
    "free_port_range",
    "live_brokers",
    "read_exactly",
    "run_tool",
    "spawn",
    "start_tool",
    "stop",
    "used_bytes",
]
