"""For Spark's discovery of Python data sources, which looks for top-level modules named ``pyspark_…``."""

from tpc_broker.spark.source import TpcDataSource


class DefaultSource(TpcDataSource):
    """The data source ``tpc``."""
