"""Not faster than so many records or bytes a second."""

import re
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from tpc_broker.spark.pipelines.errors import PipelineError

SLICE_SECONDS: Final = 0.1
_UNITS: Final = {"": 1, "k": 1000, "m": 1000**2, "g": 1000**3}


@dataclass(frozen=True, slots=True)
class Rate:
    """One of the two is set."""

    records_per_second: float = 0.0
    bytes_per_second: float = 0.0

    def divided(self, count: int) -> "Rate":
        """What each of so many tasks may do."""
        return Rate(self.records_per_second / count, self.bytes_per_second / count)


def parse_rate(text: str) -> Rate:
    """``5000`` or ``5000/s`` (records), ``20MB`` or ``20MB/s``. `PipelineError` for anything else."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmg]?)(b?)(?:/s)?", text.strip().lower())
    if not found or not float(found[1]):
        raise PipelineError(f"the rate {text!r} is neither records a second (5000) nor bytes a second (20MB/s)")
    amount = float(found[1]) * _UNITS[found[2]]
    return Rate(bytes_per_second=amount) if found[3] else Rate(records_per_second=amount)


class Pace:
    """``wait(amount)`` returns when so much more may be done. Starts at once, and never runs ahead of its rate by
    more than one amount.
    """

    def __init__(
        self,
        per_second: float,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._per_second = per_second
        self._clock = clock
        self._sleep = sleep
        self._free_at = clock()

    def wait(self, amount: float) -> None:
        now = self._clock()
        if self._free_at > now:
            self._sleep(self._free_at - now)
        self._free_at = max(self._free_at, now) + amount / self._per_second


def paced_batches(rate: Rate, batches: Iterable[Any]) -> Iterator[Any]:
    """The rows of Arrow batches, at most so fast."""
    pace = Pace(rate.records_per_second or rate.bytes_per_second)
    for batch in batches:
        yield from _slices(rate, pace, batch)


def _slices(rate: Rate, pace: Pace, batch: Any) -> Iterator[Any]:
    """Pieces of about `SLICE_SECONDS`, each when its time has come."""
    if not batch.num_rows:
        return
    cost = 1.0 if rate.records_per_second else max(1.0, batch.nbytes / batch.num_rows)
    per_second = rate.records_per_second or rate.bytes_per_second
    step = max(1, int(per_second * SLICE_SECONDS / cost))
    for first in range(0, batch.num_rows, step):
        piece = batch.slice(first, step)
        pace.wait(piece.num_rows * cost)
        yield piece
