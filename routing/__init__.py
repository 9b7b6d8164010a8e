"""Who owns a partition, and how a client is led there. Pure decisions, no I/O; imported as ``tpc_broker.routing``."""
