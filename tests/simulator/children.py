"""Runs in processes of their own, one after the other: one that aborts is told, with what it said, as a failure is."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Self

from tests.simulator.schedule import SimulationFailedError

RUNS_MAX = 50
"""Of one process, which then gives all of its memory back."""
TOLD_BYTES = 4000
ENDED, FAILED = "ended", "failed"


class Child:
    """Carries out the runs of simulators, of which it knows the names. Use it as a context."""

    def __init__(self, command: Sequence[str] = (sys.executable, "-m", __spec__.name)) -> None:
        self._command = command
        self._process: subprocess.Popen[str] | None = None
        self._said: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (`__exit__` closes it)
        self._runs = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()
        self._said.close()

    def _end(self) -> int:
        process, self._process = self._process, None
        if process is None:
            return 0
        with process:  # what it reads from and writes to is closed, and it is waited for
            pass
        return process.returncode

    def _begun(self) -> subprocess.Popen[str]:
        if self._runs >= RUNS_MAX:
            self._end()
        if self._process is None:
            self._said.truncate(0)
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._said, text=True
            )
            self._runs = 0
        return self._process

    def run(self, name: str, seed: int, steps: int) -> str:
        """As the simulator's own."""
        process = self._begun()
        self._runs += 1
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps([name, seed, steps]) + "\n")
        process.stdin.flush()
        line = process.stdout.readline()
        if not line:
            status = self._end()
            what = f"its process ended with {status}: {self._last_words()}"
            raise SimulationFailedError(what, command_of(name, seed, steps))
        kind, what, command = json.loads(line)
        if kind == ENDED:
            return str(what)
        raise SimulationFailedError(what, command)

    def _last_words(self) -> str:
        self._said.seek(0, 2)
        self._said.seek(max(0, self._said.tell() - TOLD_BYTES))
        return self._said.read().decode(errors="replace")

    def runs(self, named: Mapping[str, object]) -> dict[str, Callable[[int, int], str]]:
        """Of these simulators, here."""

        def of(name: str) -> Callable[[int, int], str]:
            return lambda seed, steps: self.run(name, seed, steps)

        return {name: of(name) for name in named}


def command_of(name: str, seed: int, steps: int) -> str:
    return f"make sim ONLY={name} SEED={seed} STEPS={steps}"


def serve() -> None:
    """In the child: a line of JSON for each line of JSON."""
    from tests.simulator.__main__ import broken, simulators  # noqa: PLC0415 (which imports this)

    known = simulators()
    for line in sys.stdin:
        name, seed, steps = json.loads(line)
        try:
            answer = ENDED, known[name](seed, steps), ""
        except Exception as error:
            verdict = error if isinstance(error, SimulationFailedError) else broken(error, name, seed, steps)
            schedule = [f"  {step}" for step in verdict.schedule]
            what = "\n".join([verdict.what, *(["shortest schedule found:", *schedule] if schedule else [])])
            answer = FAILED, what, verdict.command
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    serve()
