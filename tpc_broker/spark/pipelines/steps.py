"""A long job in steps, each of which is a range of offsets per partition and is done again when it was not finished.

For jobs that Spark would run as one batch: backfill, replay, quality, compact-archive. What a step covers is written
down before it begins and that it is done when it has ended, so a job that is started again repeats at most one step,
the one that was under way, and exactly that. `StepLog` keeps this in a checkpoint folder:

    job.json          what the job is about; another job is refused
    id.json           a name for the job, which no other has
    planned/N.json    the ranges of step N
    done/N.json       step N is done; where each partition goes on

Places are those of a topic and not of its name: its id is with them.
"""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final
from uuid import uuid4

from tpc_broker.client.requests import TopicPartition
from tpc_broker.spark.losses import Losses
from tpc_broker.spark.pace import Rate
from tpc_broker.spark.pipelines.errors import PipelineError
from tpc_broker.spark.pipelines.folder import Folder
from tpc_broker.spark.pipelines.progress import OnProgress, Progress, patiently
from tpc_broker.spark.ranges import (
    OffsetRange,
    Offsets,
    Places,
    TopicIds,
    from_json,
    limit_offsets,
    replaced_topics,
    to_json,
)

ROWS_PER_STEP: Final = 500_000
_SECONDS_PER_PACED_STEP: Final = 5.0


@dataclass(frozen=True, slots=True)
class Step:
    """``ranges`` hold something, each, and every partition at most once."""

    number: int
    ranges: tuple[OffsetRange, ...]

    @property
    def offsets_count(self) -> int:
        return sum(piece.size for piece in self.ranges)


class StepLog:
    """What is planned and what is done, in one checkpoint folder."""

    def __init__(self, folder: Folder, job: Mapping[str, Any]) -> None:
        """``job`` is plain JSON. `PipelineError`: the folder belongs to a job that says otherwise."""
        self._folder = folder
        self._check_same(dict(job))
        for name in ("planned", "done"):
            folder.make(name)
        self.next_number = 1 + max(self._numbers("done"), default=-1)

    def job_id(self) -> str:
        """Made with the checkpoint, or when a checkpoint of an earlier version is asked for it."""
        if not self._folder.exists("id.json"):
            self._write("id.json", str(uuid4()))
        return str(json.loads(self._folder.read_text("id.json")))

    def position(self) -> Places:
        """Where each partition goes on; nothing before the first step."""
        if self.next_number == 0:
            return Places()
        return from_json(json.loads(self._folder.read_text(f"done/{self.next_number - 1}.json")))

    def interrupted(self) -> Step | None:
        """The step that was planned and is not known to be done."""
        if self.next_number not in self._numbers("planned"):
            return None
        text = self._folder.read_text(f"planned/{self.next_number}.json")
        found = json.loads(text)
        ranges = (
            OffsetRange(TopicPartition(topic, number), first, end, topic_id="".join(topic_id))
            for topic, number, first, end, *topic_id in found  # older ones have no ids
        )
        return Step(self.next_number, tuple(ranges))

    def plan(self, ranges: tuple[OffsetRange, ...]) -> Step:
        step = Step(self.next_number, ranges)
        rows = [[*piece.where, piece.first_offset, piece.end_offset, piece.topic_id] for piece in ranges]
        self._write(f"planned/{step.number}.json", rows)
        return step

    def finish(self, step: Step) -> None:
        self._write(f"done/{step.number}.json", to_json(after(self.position(), step)))
        self.next_number = step.number + 1

    def _check_same(self, job: dict[str, Any]) -> None:
        if not self._folder.exists("job.json"):
            if any(not entry.name.startswith(".") for entry in self._folder.entries()):
                raise PipelineError(f"{self._folder.path} is not empty and no checkpoint of this job")
            self._folder.make()
            self._write("job.json", job)
            return
        found = json.loads(self._folder.read_text("job.json"))
        for name in sorted(found.keys() | job.keys()):
            if found.get(name) != job.get(name):
                raise PipelineError(
                    f"the checkpoint {self._folder.path} belongs to a job with {name} {found.get(name)!r}, "
                    f"not {job.get(name)!r}; go on with that, or take another --checkpoint"
                )

    def _write(self, name: str, value: Any) -> None:
        if not self._folder.write_new(name, json.dumps(value)):
            raise PipelineError(f"another job is at work with the checkpoint {self._folder.path}")

    def _numbers(self, name: str) -> list[int]:
        names = [entry.name.removesuffix(".json") for entry in self._folder.entries(name)]
        return [int(number) for number in names if number.isdigit()]


def after(position: Places, step: Step) -> Places:
    """Where each partition goes on when the step is done; of topics that were created again, only the new ones."""
    ids = {piece.where.topic: piece.topic_id for piece in step.ranges if piece.topic_id}
    kept = position.without(replaced_topics(position.ids, ids))
    ends = {piece.where: piece.end_offset for piece in step.ranges}
    return Places({**kept.offsets, **ends}, {**kept.ids, **ids})


def run_steps(  # noqa: PLR0913 - what is done, how fast, and what may be lost
    log: StepLog,
    bounds: tuple[Places, Places],
    work: Callable[[Step], None],
    on_progress: OnProgress,
    rows_per_step: int = ROWS_PER_STEP,
    rate: Rate | None = None,
    *,
    fails_on_data_loss: bool = True,
) -> int:
    """Do everything from where the log stands (for new partitions: from the first bound) to the second bound.

    A step is done again where Spark could not start it (`patiently`). The number of offsets that were covered; with a
    rate, no faster than that on average. `PipelineError`: a topic was deleted and created again since an earlier run;
    where losses are allowed, the new one is done from its first bound.
    """
    start, end = bounds
    losses = Losses(are_errors=fails_on_data_loss)
    began, done = time.monotonic(), 0
    if rate is not None and rate.records_per_second:
        rows_per_step = min(rows_per_step, max(1, int(rate.records_per_second * _SECONDS_PER_PACED_STEP)))
    total = sum(piece.size for piece in between(going_on(log.position(), start, losses), end))
    on_progress(Progress(0, total))
    while True:
        step = log.interrupted() or _next_step(log, going_on(log.position(), start, losses), end, rows_per_step)
        if step is None:
            return done
        if left := _still_there(step, end.ids, losses):
            patiently(partial(work, left))
        log.finish(step)
        done += step.offsets_count
        on_progress(Progress(done, max(total, done)))
        if rate is not None and rate.records_per_second:
            time.sleep(max(0.0, began + done / rate.records_per_second - time.monotonic()))


def _next_step(log: StepLog, position: Offsets, end: Places, rows_per_step: int) -> Step | None:
    ranges = next_ranges(position, end, rows_per_step)
    return log.plan(ranges) if ranges else None


def _still_there(step: Step, ids: TopicIds, losses: Losses) -> Step | None:
    """The step without topics that are others by now; None when nothing is left of it."""
    planned = {piece.where.topic: piece.topic_id for piece in step.ranges if piece.topic_id}
    replaced = replaced_topics(planned, ids)
    lost = [str(piece) for piece in step.ranges if piece.where.topic in replaced]
    if lost:
        _say_replaced(losses, replaced, planned, ids, f"the step that was under way is lost: {', '.join(lost)}")
    ranges = tuple(piece for piece in step.ranges if piece.where.topic not in replaced)
    return replace(step, ranges=ranges) if ranges else None


def going_on(position: Places, start: Places, losses: Losses) -> Offsets:
    """Where each partition goes on: where it was, or where topics begin that are new, or were created again."""
    replaced = replaced_topics(position.ids, start.ids)
    if replaced:
        said = f"done was {position.text(replaced)}, and what the old one held behind that is lost"
        _say_replaced(losses, replaced, position.ids, start.ids, said)
    return {**start.offsets, **position.without(replaced).offsets}


def _say_replaced(losses: Losses, topics: list[str], before: TopicIds, now: TopicIds, what: str) -> None:
    ids = ", ".join(f"{topic} had the id {before[topic]} and has {now[topic]}" for topic in topics)
    said = f"{', '.join(topics)}: deleted and created again ({ids}); {what}"
    if losses.are_errors:
        raise PipelineError(f"{said}; take another --checkpoint for the new one")
    losses.lost(tuple(topics), said, "with the new one from its beginning")


def next_ranges(position: Offsets, end: Places, rows_max: int) -> tuple[OffsetRange, ...]:
    """At most so many rows of what lies between the two."""
    ends = limit_offsets({where: position[where] for where in end.offsets}, end.offsets, rows_max)
    return between(position, replace(end, offsets=ends))


def between(position: Offsets, end: Places) -> tuple[OffsetRange, ...]:
    """What lies between the two, partition by partition."""
    pieces = (
        OffsetRange(where, position[where], stop, topic_id=end.ids.get(where.topic, ""))
        for where, stop in sorted(end.offsets.items())
    )
    return tuple(piece for piece in pieces if piece.size > 0)
