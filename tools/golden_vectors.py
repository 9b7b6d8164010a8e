"""Write ``tests/kafka/golden/vectors.txt``: every version of every message, encoded by Apache Kafka's own classes.

The values come from ``tests/kafka/golden_values.py``; they go to Kafka as the JSON that its generated converters read,
so our encoder has no part in the vectors. Needs Java 17 and the jars of Kafka, Jackson and SLF4J in one folder::

    python tools/golden_vectors.py --jars FOLDER

A line is ``message version variant base64``, or ``message version variant !reason`` where Kafka refuses the values.
"""

import argparse
import base64
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]

from tests.kafka import golden_values  # noqa: E402 - after the path is set
from tpc_broker.kafka.schema import MessageSchema, StructSchema, message_names, message_schema  # noqa: E402


def json_value(value: Any, element: str, struct: StructSchema | None, version: int) -> Any:
    """A value as Kafka's JSON converters want it."""
    if value is None:
        return None
    if isinstance(value, list):
        return [json_value(item, element, struct, version) for item in value]
    if struct is not None:
        return {
            field.kafka_name[0].lower() + field.kafka_name[1:]: json_value(
                getattr(value, field.name), field.element, field.struct, version
            )
            for field in struct.fields
            if version in field.versions
        }
    if element == "uuid":
        return base64.urlsafe_b64encode(value).decode().rstrip("=")
    if element in ("bytes", "records"):
        return base64.b64encode(value).decode()
    return value


def rows() -> list[dict[str, Any]]:
    found = []
    for name in message_names():
        schema: MessageSchema = message_schema(name)
        for version in range(schema.valid.first, schema.valid.end):
            for variant in golden_values.VARIANTS:
                message = golden_values.build(schema, version, variant)
                document = json_value(message, name, schema.root, version)
                found.append({"name": name, "version": version, "variant": variant, "json": document})
    return found


def vectors(jars: Path) -> str:
    """The text of the file, made with the jars in that folder."""
    wanted = "\n".join(json.dumps(row) for row in rows())
    command = ["java", "-cp", f"{jars}/*", str(ROOT / "tools" / "GoldenReferee.java")]
    done = subprocess.run(command, input=wanted, capture_output=True, text=True, check=True)  # noqa: S603 - fixed command
    lines = []
    for row in map(json.loads, done.stdout.splitlines()):
        data = base64.b64encode(bytes.fromhex(row["hex"])).decode() if "hex" in row else "!" + row["error"]
        lines.append(f"{row['name']} {row['version']} {row['variant']} {data}\n")
    return "".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jars", required=True, type=Path)
    arguments = parser.parse_args()
    path = ROOT / "tests" / "kafka" / "golden" / "vectors.txt"
    path.parent.mkdir(exist_ok=True)
    path.write_text(vectors(arguments.jars))


if __name__ == "__main__":
    main()
