"""Write ``tpc_broker/kafka/schema.jsonl`` and ``api_table.py`` from the message definitions in Apache Kafka's jars.

Only facts are taken: names, types, versions, nullability, tags, defaults, whether a field may be ignored, which
versions are flexible, which listeners serve an API, and whether its latest version is unstable. Documentation stays
where it is. Run::

    python tools/extract_schema.py --kafka-version 4.4.0

which fetches the jars with Maven, or name jar files on the command line. A later jar that defines a message again is
refused: a name is one message.

The schema has one JSON object per line, sorted by name, so that a reader indexes lines and parses only what it needs.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

KAFKA_VERSION = "4.4.0"
"""What is committed is made from its jars."""
ROOT = Path(__file__).resolve().parent.parent / "tpc_broker" / "kafka"
ARTIFACTS = ("kafka-clients", "kafka-group-coordinator", "kafka-transaction-coordinator", "kafka-share-coordinator")
INTEGERS = {"int8", "int16", "int32", "int64", "uint16", "uint32"}


def fetch_jars(kafka_version: str, folder: Path) -> list[Path]:
    """Copy the jars that hold message definitions out of Maven's repository into ``folder``."""
    for artifact in ARTIFACTS:
        coordinates = f"-Dartifact=org.apache.kafka:{artifact}:{kafka_version}"
        command = ["mvn", "-q", "dependency:copy", coordinates, f"-DoutputDirectory={folder}"]
        subprocess.run(command, check=True, stdout=sys.stderr)  # noqa: S603 - fixed command, version from the operator
    return sorted(folder.glob("*.jar"))


def strip_comments(text: str) -> str:
    """Remove ``//`` comments outside of strings, which is all that these files have beyond JSON."""
    return re.sub(r'("(?:\\.|[^"\\])*")|//[^\n]*', lambda match: match.group(1) or "", text)


def default_of(kind: str, value: Any) -> Any:
    """The default as the JSON value it means; Kafka writes most of them as strings."""
    if value == "null":
        return None
    if kind in INTEGERS:
        return int(value, 0) if isinstance(value, str) else value
    if kind == "bool":
        return value in (True, "true")
    return value


def field_facts(field: dict[str, Any]) -> dict[str, Any]:
    versions = field["versions"] if "versions" in field else field["taggedVersions"]
    facts: dict[str, Any] = {"name": field["name"], "type": field["type"], "versions": versions}
    for source, target in (("nullableVersions", "nullable"), ("taggedVersions", "tagged"), ("tag", "tag")):
        if source in field:
            facts[target] = field[source]
    if "flexibleVersions" in field:
        facts["flexible"] = field["flexibleVersions"]
    if field.get("default") is not None:  # a JSON null states no default; the string "null" does
        facts["default"] = default_of(field["type"], field["default"])
    if str(field.get("ignorable", "false")).lower() == "true":
        facts["ignorable"] = True
    if "fields" in field:
        facts["fields"] = [field_facts(child) for child in field["fields"]]
    return facts


def message_facts(definition: dict[str, Any]) -> dict[str, Any]:
    facts: dict[str, Any] = {"name": definition["name"], "type": definition["type"]}
    if "apiKey" in definition:
        facts["key"] = definition["apiKey"]
    facts["valid"] = definition["validVersions"]
    facts["flexible"] = definition.get("flexibleVersions", "none")
    if "listeners" in definition:
        facts["listeners"] = definition["listeners"]
    if definition.get("latestVersionUnstable"):
        facts["unstable"] = True
    facts["fields"] = [field_facts(field) for field in definition.get("fields", [])]
    if "commonStructs" in definition:
        facts["structs"] = [
            {key: struct[key] for key in ("name", "versions")} | {"fields": [field_facts(f) for f in struct["fields"]]}
            for struct in definition["commonStructs"]
        ]
    return facts


def read_messages(jars: list[Path]) -> dict[str, dict[str, Any]]:
    messages: dict[str, dict[str, Any]] = {}
    for jar in jars:
        with zipfile.ZipFile(jar) as archive:
            for name in archive.namelist():
                if not (name.startswith("common/message/") and name.endswith(".json")):
                    continue
                facts = message_facts(json.loads(strip_comments(archive.read(name).decode())))
                if facts["name"] in messages:
                    raise SystemExit(f"{jar.name}: {facts['name']} is defined twice")
                messages[facts["name"]] = facts
    return messages


def schema_text(messages: dict[str, dict[str, Any]]) -> str:
    """The text of ``schema.jsonl``."""
    return "".join(json.dumps(messages[name], separators=(",", ":")) + "\n" for name in sorted(messages))


def snake_upper(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).upper()


def api_table_text(messages: dict[str, dict[str, Any]]) -> str:
    """The Python text of ``api_table.py``: one row per API that has versions."""
    rows = []
    for request in sorted((m for m in messages.values() if m["type"] == "request"), key=lambda m: m["key"]):
        if request["valid"] == "none":
            continue
        first, _, last = request["valid"].partition("-")
        flexible = request["flexible"].rstrip("+")
        rows.append(
            (
                request["key"],
                request["name"].removesuffix("Request"),
                int(first),
                int(last or first),
                32767 if flexible == "none" else int(flexible),
                bool(request.get("unstable")),
                tuple(request.get("listeners", ())),
            )
        )
    lines = [
        '"""The APIs of the Kafka protocol as facts. Written by ``tools/extract_schema.py``; do not edit."""',
        "",
        "from enum import IntEnum",
        "",
        "",
        "class ApiKey(IntEnum):",
        '    """The number that names an API in a request header."""',
        "",
        *[f"    {snake_upper(row[1])} = {row[0]}" for row in rows],
        "",
        "",
        "# (key, Kafka's name, first version, last version, first flexible version, last one is unstable, listeners)",
        "API_ROWS: tuple[tuple[int, str, int, int, int, bool, tuple[str, ...]], ...] = (",
        *["    " + repr(row).replace("'", '"') + "," for row in rows],
        ")",
        "",
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("jars", nargs="*", type=Path, help="jar files with common/message/*.json inside")
    parser.add_argument("--kafka-version", default=KAFKA_VERSION, help="version to fetch when no jar is named")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        jars = arguments.jars or fetch_jars(arguments.kafka_version, Path(folder))
        messages = read_messages(jars)
    (ROOT / "schema.jsonl").write_text(schema_text(messages))
    (ROOT / "api_table.py").write_text(api_table_text(messages))
    sys.stderr.write(f"{len(messages)} messages\n")


if __name__ == "__main__":
    main()
