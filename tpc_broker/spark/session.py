"""A Spark session for this project's own jobs."""

import atexit
import logging
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pyspark
from pyspark.sql import SparkSession

from tpc_broker.host_port import NO_HOST, may_name_a_host, split_host_port
from tpc_broker.spark.pipelines.errors import PipelineError
from tpc_broker.spark.source import TpcDataSource

CONNECT_SECONDS: Final = 5.0
JAVA_OLDEST: Final = 17
_JAVA_OPTIONS: Final = "spark.driver.extraJavaOptions"
_LOGGING: Final = Path(__file__).with_name("log4j2.properties")


def make_session(
    name: str, master: str, driver_memory: str = "1g", configuration: Mapping[str, str] | None = None, **more: str
) -> Any:
    """A session on ``master`` that knows ``tpc``.

    ``more`` is configuration too, written `spark__sql__shuffle__partitions="4"`. Python tasks use this interpreter
    where nothing else is said (`PYSPARK_PYTHON`, `spark.pyspark.python`) and the tasks run on this machine; elsewhere
    the cluster's own `python3`, which must have this package. `PipelineError`: no Java, or no such master.
    """
    check_master(master)
    given = {**(configuration or {}), **{key.replace("__", "."): value for key, value in more.items()}}
    if master.startswith("local") and "PYSPARK_PYTHON" not in os.environ:
        named = given.get("spark.pyspark.python")
        os.environ["PYSPARK_PYTHON"] = named or python_with_byte_code(sys.executable)
    quiet = f"-Dlog4j2.configurationFile={_LOGGING.as_uri()}"
    given[_JAVA_OPTIONS] = f"{quiet} {given.get(_JAVA_OPTIONS, '')}".strip()
    builder = (
        SparkSession.builder.master(master)
        .appName(name)
        .config("spark.driver.memory", driver_memory)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.session.timeZone", "UTC")
    )
    for key, value in given.items():
        builder = builder.config(key, value)
    logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)  # a page for every mistake in SQL
    session = builder.getOrCreate()
    session.dataSource.register(TpcDataSource)
    return session


def python_with_byte_code(python: str) -> str:
    """A command that starts ``python`` for Spark, with PySpark from where it is installed, and its byte code.

    Spark puts an archive of PySpark's source in front of the path of all its Python processes, which each of them
    compiles anew: a second of CPU, of the ten that Spark waits for a process that plans a read. ``python`` itself,
    where such a command cannot be.
    """
    folder = Path(tempfile.mkdtemp(prefix="tpc-spark-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    command = folder / "python3"
    installed = Path(pyspark.__file__).parent.parent
    path = f"{shlex.quote(str(installed))}${{PYTHONPATH:+:$PYTHONPATH}}"
    command.write_text(f'#!/bin/sh\nPYTHONPATH={path} exec {shlex.quote(python)} "$@"\n')
    command.chmod(0o700)
    try:
        subprocess.run([str(command), "-S", "-c", ""], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        return python
    return str(command)


def check_master(master: str) -> None:
    """What Spark would find out only after a minute, or say in a hundred lines."""
    _check_java()
    scheme, separator, rest = master.partition("://")
    if scheme == "sc":
        raise PipelineError("pipelines need a classic session; Spark Connect (sc://) cannot run them")
    if scheme == "spark" and separator:
        _check_listening(rest)
    elif not separator and not (master in ("local", "yarn") or (master.startswith("local[") and master.endswith("]"))):
        raise PipelineError(f"--master {master}: expected local[N], spark://host:port, yarn or k8s://…")


def _check_java() -> None:
    """That the Java which Spark will start is one it runs on."""
    home = os.environ.get("JAVA_HOME")
    java = f"{home}/bin/java" if home else "java"
    wanted = f"Spark needs Java {JAVA_OLDEST} or newer"
    if shutil.which(java) is None:
        where = f"JAVA_HOME is {home} and has none" if home else "there is none (on Debian: default-jre-headless)"
        raise PipelineError(f"{wanted}, and {where}")
    told = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    version = re.search(r'version "(\d+)', told)
    if version is not None and int(version[1]) < JAVA_OLDEST:
        raise PipelineError(f"{wanted}; {java} is version {version[1]}")


def _check_listening(addresses: str) -> None:
    problem = ""
    for address in addresses.split(","):
        host, port = split_host_port(address)
        if not host or port is None:
            raise PipelineError(f"--master spark://{addresses}: expected spark://host:port")
        if not may_name_a_host(host):
            raise PipelineError(f"--master spark://{addresses}: {NO_HOST}")
        try:
            socket.create_connection((host, port), CONNECT_SECONDS).close()
        except OSError as error:
            problem = str(error)
        else:
            return
    raise PipelineError(f"no Spark master answers at spark://{addresses} ({problem})")
