"""What members of a group, each a process of its own, did: told by the file that they share (`group_member`)."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from tests.support.waiting import PATIENCE_S

Place = tuple[str, int]
PROGRAM = [sys.executable, "-m", "tests.integration.group_member"]


class Story:
    """The members of one group and their file. Usable as a context manager, which ends those that still run."""

    def __init__(self, path: Path, settings: dict[str, Any]) -> None:
        self._path, self._settings = path, settings
        self._members: dict[str, subprocess.Popen[bytes]] = {}
        path.touch()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._members.values():
            process.kill()
            process.communicate()

    def comes(self, name: str, topics: str, program: Sequence[str] = PROGRAM, **more: Any) -> None:
        """A member, by a name that no other one had. `more`: settings of its own, with underscores for dots."""
        assert name not in self._members
        own = {key.replace("_", "."): value for key, value in more.items()}
        given = [str(self._path), name, topics, json.dumps({**self._settings, **own})]
        self._members[name] = subprocess.Popen(
            [*program, *given], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )

    def leaves(self, name: str) -> None:
        """It closes its consumer, and has ended."""
        said, _none = self._members[name].communicate(timeout=PATIENCE_S)
        assert self._members.pop(name).returncode == 0, said.decode()

    def is_killed(self, name: str) -> None:
        process = self._members.pop(name)
        process.kill()
        process.communicate()
        with self._path.open("a") as file:  # what a member writes is whole, so this is a line of its own
            file.write(json.dumps([name, "killed"]) + "\n")

    def lines(self) -> list[list[Any]]:
        for name, process in self._members.items():
            assert process.poll() is None, f"{name} has ended: {process.communicate()[0].decode()}"
        return [json.loads(line) for line in self._path.read_text().splitlines(keepends=True) if line.endswith("\n")]

    def owned(self) -> dict[str, set[Place]]:
        """What each member that is there has now. A partition that two have at a time, one of them not killed and not
        told that it has lost it, fails.
        """
        has: dict[str, set[Place]] = {}
        for name, what, *facts in self.lines():
            if what == "given":
                for place in map(tuple, facts[0]):
                    holders = [other for other, places in has.items() if place in places]
                    assert not holders, f"{place} is given to {name}, and {holders} have it"
                    has.setdefault(name, set()).add(place)
            elif what in ("back", "lost"):
                has[name] = has.get(name, set()) - set(map(tuple, facts[0]))
            elif what in ("left", "killed"):
                has.pop(name, None)
        return {name: places for name, places in has.items() if places}

    def handled(self) -> Counter[tuple[str, int, int]]:
        """How often each record was, by topic, partition and offset."""
        return Counter((facts[0], facts[1], facts[2]) for _name, what, *facts in self.lines() if what == "handled")

    def check_positions(self) -> None:
        """Each owner begins where what was handled before it is committed: nothing is left out, what is handled again
        was not committed, and no commit goes back.
        """
        committed: Counter[Place] = Counter()
        after: Counter[Place] = Counter()  # the highest that was handled, and one
        has: dict[Place, str] = {}
        for name, what, *facts in self.lines():
            if what == "committed":
                for topic, partition, offset in facts[0]:
                    assert offset >= committed[topic, partition], (name, topic, partition, offset)
                    committed[topic, partition] = offset
            elif what == "handled":
                place, offset = (facts[0], facts[1]), facts[2]
                if has.get(place) != name:
                    assert committed[place] <= offset <= after[place], (name, place, offset, committed[place])
                else:
                    assert offset == after[place], (name, place, offset)
                has[place], after[place] = name, offset + 1
            elif what == "given":
                for place in map(tuple, facts[0]):
                    has.pop(place, None)
