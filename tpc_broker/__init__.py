"""tpc-broker: a durable, partitioned log, thread-per-core, speaking the Kafka protocol."""

__version__ = "0.1.0"
