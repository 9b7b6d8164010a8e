#!/usr/bin/env bash
# PySpark 4.2.0: data sources are not looked up by the Python that `spark.pyspark.python` names.
#
# A Python data source needs no registration where a module `pyspark_NAME` with a `DefaultSource` is installed: Spark
# starts a Python and asks it. Tasks run in the Python of `spark.pyspark.python`, so one would expect that one to be
# asked. Spark asks that of the environment variable PYSPARK_PYTHON, or else `python3`, whatever the setting says; where
# that one has no such module the format is not found, though every task would have it.
#
# Seen with pyspark 4.2.0, Java 17, CPython 3.11, master local[1]:
#   spark.pyspark.python=…/workers/bin/python  ->  DATA_SOURCE_NOT_FOUND
#   PYSPARK_PYTHON=…/workers/bin/python        ->  [Row(word='hello')]
#
# For us: docs/spark.md names the command in the environment (tests/spark/test_shipping.py).
# Needs Java 17, python3 3.11 and about half a gigabyte; exit code 1: it behaves otherwise now.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
unset PYSPARK_PYTHON PYSPARK_DRIVER_PYTHON SPARK_HOME PYTHONPATH

python3 -m venv "$folder/driver"
"$folder/driver/bin/pip" install --quiet --disable-pip-version-check pyspark==4.2.0 pyarrow==21.0.0
python3 -m venv "$folder/workers"
packages() { "$1/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))'; }
packages "$folder/driver" > "$(packages "$folder/workers")/drivers.pth"

cat > "$(packages "$folder/workers")/pyspark_words.py" <<'PYTHON'
from pyspark.sql.datasource import DataSource, DataSourceReader


class DefaultSource(DataSource):
    @classmethod
    def name(cls):
        return "words"

    def schema(self):
        return "word string"

    def reader(self, schema):
        return Words()


class Words(DataSourceReader):
    def read(self, partition):
        yield ("hello",)
PYTHON

cat > "$folder/job.py" <<'PYTHON'
import re
import sys

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
for setting in sys.argv[1:]:
    builder = builder.config(*setting.split("=", 1))
spark = builder.getOrCreate()
spark.sparkContext.setLogLevel("OFF")
try:
    print(spark.read.format("words").load().collect())
except Py4JJavaError as error:
    print(re.search(r"\[(\w+)\]", str(error.java_exception))[1])
spark.stop()
PYTHON

cd "$folder"
by_setting=$(driver/bin/python job.py "spark.pyspark.python=$folder/workers/bin/python" 2> by-setting.log | tail -n 1)
by_variable=$(PYSPARK_PYTHON="$folder/workers/bin/python" driver/bin/python job.py 2> by-variable.log | tail -n 1)
echo "spark.pyspark.python: $by_setting"
echo "PYSPARK_PYTHON:       $by_variable"
[ "$by_setting" = DATA_SOURCE_NOT_FOUND ] && [ "$by_variable" = "[Row(word='hello')]" ]
