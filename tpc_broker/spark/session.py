"""A Spark session for this project's own jobs."""

import os
import sys
from typing import Any

from pyspark.sql import SparkSession

from tpc_broker.spark.source import TpcDataSource


def make_session(name: str, master: str, driver_memory: str = "1g", **configuration: str) -> Any:
    """A session on ``master`` that knows ``tpc``; tasks use this interpreter where it is the same machine."""
    if master.startswith("local"):
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = (
        SparkSession.builder.master(master)
        .appName(name)
        .config("spark.driver.memory", driver_memory)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
        .config("spark.sql.session.timeZone", "UTC")
    )
    for key, value in configuration.items():
        builder = builder.config(key.replace("__", "."), value)
    session = builder.getOrCreate()
    session.dataSource.register(TpcDataSource)
    return session
