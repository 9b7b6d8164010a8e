"""How far a pipeline is, for whoever watches it."""

import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException, StreamingQueryException

from tpc_broker.spark.lag import offsets_behind
from tpc_broker.spark.pipelines.errors import PipelineError

POLL_SECONDS: Final = 0.25
STARTS_MAX: Final = 3
TOO_BUSY: Final = "this machine is too busy for it; run the job again when it is less so"
TOO_SLOW: Final = "Python worker failed to connect back"
_PLANNER_GONE: Final = re.compile(
    r"java\.(io\.EOF|net\.Socket)Exception.*\n(\s+at java\..*\n)*.*PythonStreamingSourceRunner"
)
Done = TypeVar("Done")
logger = logging.getLogger("tpc.spark")


@dataclass(frozen=True, slots=True)
class Progress:
    """``rows_total`` is what this run will have done at its end, as far as is known; ``lag_rows`` what waits in the
    source of a job that goes on for ever. Of a job that writes to a topic, the first two count offsets of its source,
    and ``written_count`` the rows that these became.
    """

    rows_count: int
    rows_total: int | None = None
    lag_rows: int | None = None
    written_count: int | None = None


OnProgress = Callable[[Progress], None]


def unwatched(_progress: Progress) -> None:
    """For jobs that nobody watches."""


class StreamProgress:
    """Adds up what a streaming query says about its epochs.

    ``counted``, if given, has the rows of epochs by their number where Spark cannot know them.
    """

    def __init__(self, counted: Mapping[int, int] | None = None) -> None:
        self._counted = counted
        self._rows_by_epoch: dict[int, int] = {}
        self._lag_rows: int | None = None

    @property
    def rows_count(self) -> int:
        return sum(self._rows_by_epoch.values())

    @property
    def epochs_count(self) -> int:
        """Those that had rows."""
        return sum(rows > 0 for rows in self._rows_by_epoch.values())

    def take(self, query: Any) -> None:
        for epoch in query.recentProgress:
            rows_count = epoch.numInputRows if self._counted is None else self._counted.get(epoch.batchId, 0)
            self._rows_by_epoch[epoch.batchId] = rows_count
            self._lag_rows = sum(sum(offsets_behind(source).values()) for source in epoch.sources)

    def now(self, *, follows: bool) -> Progress:
        total = None if follows or self._lag_rows is None else self.rows_count + self._lag_rows
        return Progress(self.rows_count, total, self._lag_rows if follows else None)


def follow(
    start: Callable[[], Any], on_progress: OnProgress, *, follows: bool, counted: Mapping[int, int] | None = None
) -> StreamProgress:
    """Start a streaming query and stay until it ends; raises what it ended with, and stops it on the way out.

    What is known to pass is not raised: the query is started again, from its checkpoint, at most `STARTS_MAX` times
    without an epoch in between. Spark gives the Python process that plans a streaming read ten seconds to start, which
    cannot be configured and is not enough on a machine that is very busy; and a query fails when that process dies.
    """
    progress = StreamProgress(counted)
    starts_left = STARTS_MAX
    while True:
        rows_before = progress.rows_count
        query = start()
        try:
            _watch(query, progress, on_progress, follows=follows)
        except StreamingQueryException as error:
            progress.take(query)
            starts_left = STARTS_MAX if progress.rows_count > rows_before else starts_left - 1
            if not lost_its_planner(error):
                raise
            if not starts_left:
                raise PipelineError(f"{_what_happened(error)}, {STARTS_MAX} times in a row; {TOO_BUSY}") from None
            logger.warning("%s; the query is started again", _what_happened(error))
        else:
            return progress
        finally:
            query.stop()


def lost_its_planner(error: Exception) -> bool:
    """Whether a query ended because the Python process that plans its read did not come up, or is gone."""
    return TOO_SLOW in _whole_text(error) or bool(_PLANNER_GONE.search(_whole_text(error)))


def patiently(work: Callable[[], Done]) -> Done:
    """What is done outside of a streaming query, again where a Python process of Spark did not come up in time.

    ``work`` may be repeated. `PipelineError`: it did not come up `STARTS_MAX` times in a row.
    """
    for starts_left in range(STARTS_MAX - 1, -1, -1):
        try:
            return work()
        except (PySparkException, Py4JJavaError) as error:
            if TOO_SLOW not in _whole_text(error):
                raise
            if not starts_left:
                raise PipelineError(f"{_what_happened(error)}, {STARTS_MAX} times in a row; {TOO_BUSY}") from None
            logger.warning("%s; it is started again", _what_happened(error))
    raise AssertionError


def _what_happened(error: Exception) -> str:
    if TOO_SLOW in _whole_text(error):
        return "Spark's Python process did not start within ten seconds"
    return "Spark lost the Python process that plans the read"


def _whole_text(error: Exception) -> str:
    return f"{error}\n{getattr(error, '_stackTrace', '')}"


def _watch(query: Any, progress: StreamProgress, on_progress: OnProgress, *, follows: bool) -> None:
    ended = False
    while not ended:
        ended = query.awaitTermination(POLL_SECONDS)
        progress.take(query)
        on_progress(progress.now(follows=follows))
