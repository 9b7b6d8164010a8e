"""What the package asks for."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_the_next_major_of_confluent_kafka_is_not_taken() -> None:
    """It is another library under the same name."""
    every = [*PROJECT["dependencies"], *(each for extra in PROJECT["optional-dependencies"].values() for each in extra)]
    asked = [each for each in every if each.startswith("confluent-kafka")]
    assert asked
    assert all(each.partition("<")[2].strip() == "3" for each in asked), asked


def test_extras_ask_for_the_same_versions() -> None:
    """Of a package that several bring."""
    asked: dict[str, set[str]] = {}
    for extra in ("broker", "testing", "registry", "msgspec"):
        for each in PROJECT["optional-dependencies"][extra]:
            asked.setdefault(re.split(r"[<>=\[]", each)[0], set()).add(each)
    assert [each for each in asked.values() if len(each) > 1] == []


def test_each_pyspark_that_the_extra_takes_is_tested() -> None:
    """One is in the lock file, the other has an environment of its own (tests/spark/test_other_version.py)."""
    [taken] = [each for each in PROJECT["optional-dependencies"]["spark"] if each.startswith("pyspark")]
    found = re.fullmatch(r"pyspark>=4\.(\d+),<4\.(\d+)", taken)
    assert found, taken
    tested = [
        re.search(r"^pyspark==4\.(\d+)\.", (ROOT / "requirements" / name).read_text(), re.MULTILINE)
        for name in ("test.txt", "other-pyspark.txt")
    ]
    assert [int(one[1]) for one in tested if one] == list(range(int(found[1]), int(found[2])))
