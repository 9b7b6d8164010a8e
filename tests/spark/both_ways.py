"""A driver of its own for tests that kill it, or that run it on a cluster: an archive and a streaming copy at once.

python -m tests.spark.both_ways MASTER BOOTSTRAP SOURCE TARGET FOLDER ROWS_PER_EPOCH [spark.KEY=VALUE …]
    [waiting=OFFSET | dying=OFFSET]     what tasks do there (`tests.spark.interrupting`)
    [committing=PLACE]                  where the driver stops, which has the copy alone to do then (likewise)
    [exactlyOnce=MODE]                  of the copy
"""

import contextlib
import sys
from pathlib import Path

from tests.spark import interrupting
from tpc_broker.spark.pipelines.archive import ArchiveJob, archive
from tpc_broker.spark.session import make_session


def start_copy(spark, bootstrap, source, target, folder, rows_per_epoch, mode="auto"):
    """A streaming query from one topic to another, everything that is there now; a task for each partition."""
    reader = spark.readStream.format("tpc").option("bootstrap", bootstrap).option("subscribe", source)
    reader = reader.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", rows_per_epoch)
    reader = reader.option("bytesTogether", "0")
    rows = reader.load().select("key", "value", "timestamp")
    writer = rows.writeStream.format("tpc").option("bootstrap", bootstrap).option("topic", target)
    writer = writer.option("checkpointLocation", str(Path(folder) / "copy")).queryName("copy")
    writer = writer.option("exactlyOnce", mode)
    return writer.trigger(availableNow=True).start()


def archive_job(bootstrap, source, folder, rows_per_epoch):
    out = Path(folder) / "archive"
    return ArchiveJob(bootstrap, source, str(out), str(out / "_checkpoint"), rows_per_epoch=rows_per_epoch)


def main():
    master, bootstrap, source, target, folder, rows_per_epoch, *more = sys.argv[1:]
    options = dict(entry.split("=", 1) for entry in more)
    spark = make_session("both ways", master, "700m", {key: options[key] for key in options if "." in key})
    with contextlib.ExitStack() as stack:
        for kind in options.keys() & {"waiting", "dying", "committing"}:
            interrupt, where = getattr(interrupting, kind), options[kind]
            where = int(where) if where.isdigit() else where
            stack.enter_context(interrupting.installed(spark, interrupt, folder, where))
        mode = options.get("exactlyOnce", "auto")
        copy = start_copy(spark, bootstrap, source, target, folder, int(rows_per_epoch), mode)
        if "committing" not in options:
            archive(spark, archive_job(bootstrap, source, folder, int(rows_per_epoch)))
        copy.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
