"""Real Kafka from Maven jars, the demo, the load scenarios and the comparisons."""
