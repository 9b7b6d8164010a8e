"""Jars that Maven fetches once into a cache folder of the user, which clones of the repository share: Apache Kafka's,
those of its frameworks, and those of Flink's and Spark's own Kafka connectors.

`PeerUnavailable` with a reason where Java or Maven is missing, or nothing can be fetched.
"""

from __future__ import annotations

import fcntl
import shutil
import subprocess
from contextlib import contextmanager
from importlib import metadata
from typing import TYPE_CHECKING

from tpc_broker.bench.compiled import cache_folder
from tpc_broker.bench.server import PeerUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

KAFKA_VERSION = "4.3.1"
_SLF4J_BINDING_VERSION = "1.7.36"
_FRAMEWORKS = [
    ("org.apache.kafka", "kafka-streams", KAFKA_VERSION),
    ("org.apache.kafka", "connect-file", KAFKA_VERSION),
]
"""What they need is among Kafka's jars, but for RocksDB, without which state is kept in memory."""
_MIRROR = [
    ("org.apache.kafka", "connect-mirror", KAFKA_VERSION),
    ("org.apache.kafka", "connect-mirror-client", KAFKA_VERSION),
]
FLINK_VERSION = "2.0.0"
_FLINK = [
    ("org.apache.flink", "flink-connector-kafka", "4.0.1-2.0"),
    ("org.apache.flink", "flink-connector-base", FLINK_VERSION),
    ("org.apache.flink", "flink-streaming-java", FLINK_VERSION),
    ("org.apache.flink", "flink-clients", FLINK_VERSION),
    ("org.slf4j", "slf4j-simple", _SLF4J_BINDING_VERSION),
]
CONNECTOR_VERSION = "4.2.0"
_CONNECTOR = [
    ("org.apache.spark", "spark-sql-kafka-0-10_2.13", CONNECTOR_VERSION),
    ("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", "4.0.0"),
    ("org.apache.kafka", "kafka-clients", "3.9.1"),
    ("org.apache.commons", "commons-pool2", "2.12.0"),
]
"""Group, artifact, version: what PySpark lacks to read Kafka; the rest of what these need is in PySpark."""
_NO_OTHERS = "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"


def _pom(wanted: Sequence[tuple[str, str, str]], *, with_what_they_need: bool) -> str:
    exclusions = "" if with_what_they_need else _NO_OTHERS
    dependencies = "".join(
        f"<dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId>"
        f"<version>{version}</version>{exclusions}</dependency>\n"
        for group, artifact, version in wanted
    )
    return f"""<project xmlns="http://maven.apache.org/POM/4.0.0">
<modelVersion>4.0.0</modelVersion>
<groupId>peer</groupId><artifactId>peer</artifactId><version>1</version><packaging>pom</packaging>
<dependencies>
{dependencies}</dependencies></project>
"""


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def java_command() -> str:
    java = shutil.which("java")
    if java is None:
        raise PeerUnavailable("java is not installed (Debian: default-jre-headless)")
    return java


def kafka_jars(version: str = KAFKA_VERSION) -> Path:
    """Folder with Kafka's jars and all they need at run time."""
    wanted = [
        ("org.apache.kafka", "kafka_2.13", version),
        ("org.apache.kafka", "kafka-tools", version),
        ("org.slf4j", "slf4j-simple", _SLF4J_BINDING_VERSION),
    ]
    return _fetched(f"kafka-{version}", _pom(wanted, with_what_they_need=True))


def framework_jars() -> Path:
    """Folder with Kafka Streams and a connector for Kafka Connect, to be used beside `kafka_jars`."""
    return _fetched(f"kafka-frameworks-{KAFKA_VERSION}", _pom(_FRAMEWORKS, with_what_they_need=False))


def mirror_jars() -> Path:
    """Folder with MirrorMaker 2, to be used beside `kafka_jars`."""
    return _fetched(f"kafka-mirror-{KAFKA_VERSION}", _pom(_MIRROR, with_what_they_need=False))


def flink_jars() -> Path:
    """Folder with Apache Flink, its Kafka connector, and a Kafka client that this one wants."""
    return _fetched(f"flink-{FLINK_VERSION}", _pom(_FLINK, with_what_they_need=True))


def connector_jars() -> list[Path]:
    """The jars that make PySpark's format ``kafka`` work, for ``spark.jars``: of the PySpark that it was built with."""
    if (installed := _pyspark_version()) not in ("", CONNECTOR_VERSION):
        raise PeerUnavailable(f"Spark's Kafka connector {CONNECTOR_VERSION} is not for PySpark {installed}")
    pom = _pom(_CONNECTOR, with_what_they_need=False)
    return sorted(_fetched(f"spark-sql-kafka-{CONNECTOR_VERSION}", pom).glob("*.jar"))


def _pyspark_version() -> str:
    """Empty: there is none."""
    try:
        return metadata.version("pyspark")
    except metadata.PackageNotFoundError:
        return ""


def _fetched(name: str, pom: str) -> Path:
    """Folder with the jars of a project; fetched by Maven the first time."""
    java_command()
    folder = cache_folder() / name
    jars = folder / "jars"
    if jars.is_dir():
        return jars
    maven = shutil.which("mvn")
    if maven is None:
        raise PeerUnavailable("mvn is not installed (Debian: maven)")
    folder.mkdir(parents=True, exist_ok=True)
    with _locked(folder / "lock"):
        if jars.is_dir():
            return jars
        partial = folder / "jars.partial"
        shutil.rmtree(partial, ignore_errors=True)
        (folder / "pom.xml").write_text(pom)
        goal = ["dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={partial}"]
        fetch = subprocess.run(
            [maven, "-q", "-B", "-Dstyle.color=never", *goal],
            cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=600, check=False,
        )  # fmt: skip
        if fetch.returncode != 0:
            raise PeerUnavailable(f"Maven could not fetch {name}: {_first_error(fetch.stdout)}")
        partial.rename(jars)
    return jars


def _first_error(said: str) -> str:
    """Maven's first complaint in one line; what follows is advice on running Maven."""
    complaints = (line.partition("[ERROR]")[2].strip() for line in said.splitlines() if "[ERROR]" in line)
    return next(filter(None, complaints), said[-500:].strip())
