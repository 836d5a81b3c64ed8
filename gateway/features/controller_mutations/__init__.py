"""Partition mutations of CreateTopics, DeleteTopics and CreatePartitions (KIP-599)."""
