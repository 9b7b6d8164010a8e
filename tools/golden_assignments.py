"""Write ``tests/coordinator/golden/assignments.json``: what Apache Kafka's own assignors answer in a table of cases.

The cases come from ``tests/coordinator/assignor_cases.py``. Needs Java 17 and the jars of Kafka and Jackson in one
folder::

    python tools/golden_assignments.py --jars FOLDER
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]

from tests.coordinator.assignor_cases import run_all  # noqa: E402 - after the path is set


def table(jars: Path) -> str:
    """The text of the file, made with the jars in that folder: a row on each line."""
    command = ["java", "-cp", f"{jars}/*", str(ROOT / "tools" / "AssignorReferee.java")]
    rows: list[str] = []
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as java:  # noqa: S603 - fixed command
        assert java.stdin is not None
        assert java.stdout is not None

        def kafka(row: dict[str, Any]) -> dict[str, Any]:
            assert java.stdin is not None
            assert java.stdout is not None
            java.stdin.write(json.dumps(row) + "\n")
            java.stdin.flush()
            answered = row | json.loads(java.stdout.readline())
            rows.append(json.dumps(answered, separators=(",", ":")))
            return answered

        run_all(kafka)
        java.stdin.close()
    return "[\n" + ",\n".join(rows) + "\n]\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jars", required=True, type=Path)
    arguments = parser.parse_args()
    path = ROOT / "tests" / "coordinator" / "golden" / "assignments.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(table(arguments.jars))


if __name__ == "__main__":
    main()
