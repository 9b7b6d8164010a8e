"""Names that others see: in checkpoints and among a cluster's topics."""

from typing import Final

LEDGER_TOPIC: Final = "_tpc-spark-epochs"
"""Which epochs of streaming writes are whole (`tpc_broker.spark.epochs`)."""
TOPIC_ID: Final = "id"
"""Beside the partitions' numbers in JSON with offsets, as in Spark's checkpoints: which topic they belong to."""
