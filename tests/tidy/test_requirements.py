"""What the package asks for."""

from __future__ import annotations

import tomllib
from pathlib import Path

PROJECT = tomllib.loads((Path(__file__).parent.parent.parent / "pyproject.toml").read_text())["project"]


def test_the_next_major_of_confluent_kafka_is_not_taken() -> None:
    """It is another library under the same name."""
    every = [*PROJECT["dependencies"], *(each for extra in PROJECT["optional-dependencies"].values() for each in extra)]
    asked = [each for each in every if each.startswith("confluent-kafka")]
    assert asked
    assert all(each.partition("<")[2].strip() == "3" for each in asked), asked
