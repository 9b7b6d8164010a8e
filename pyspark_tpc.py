"""For Spark's discovery of Python data sources, which looks for top-level modules named ``pyspark_…``.

Spark imports all modules of that name together and gives up all of them when one fails. So where the data source cannot
work (an older PySpark, no pyarrow) this one can be imported all the same, and says why when somebody uses it.
"""

from pyspark.sql.datasource import DataSource

try:
    from tpc_broker.spark.source import TpcDataSource as _Source
except ImportError as error:
    _reason = str(error)

    class _Source(DataSource):  # type: ignore[no-redef]
        """In its place."""

        def __init__(self, _options: dict[str, str]) -> None:
            raise ImportError(_reason)

        @classmethod
        def name(cls) -> str:
            return "tpc"


class DefaultSource(_Source):
    """The data source ``tpc``."""
