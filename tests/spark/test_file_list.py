"""The archive's list of files: killed before every single effect, moved, and written by two."""

import contextlib
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")
from tests.support.waiting import eventually, let_pass
from tpc_broker.spark.pipelines.archive import ArchiveJob, EpochWriter
from tpc_broker.spark.pipelines.errors import PipelineError
from tpc_broker.spark.pipelines.file_list import DataFile, FileList
from tpc_broker.spark.pipelines.folder import Entry, Folder
from tpc_broker.spark.pipelines.leftovers import only_what_is_listed
from tpc_broker.spark.pipelines.local_folder import LocalFolder
from tpc_broker.spark.pipelines.merging import FAN_IN, merge_groups, tier

pytestmark = pytest.mark.spark

ROOT = Path(__file__).parent.parent.parent
EPOCHS = 5
FILES_PER_EPOCH = 4
ROWS_PER_FILE = 3
TARGET_BYTES = 40_000


class Killed(BaseException):
    """Instead of SIGKILL: nothing of the job runs any more."""


class DiskFolder:
    """`Folder` without Spark, for thousands of calls; dies instead of its n-th change."""

    def __init__(self, path, effects_left=10**9):
        self.path = self.url = str(path)
        self.effects_left = effects_left

    def _effect(self):
        self.effects_left -= 1
        if self.effects_left < 0:
            raise Killed

    def inside(self, name):
        return f"{self.path}/{name}"

    def exists(self, name=""):
        return Path(self.inside(name)).exists()

    def entries(self, name=""):
        if not self.exists(name):
            return []
        found = [(path.name, path.is_dir(), path.stat()) for path in Path(self.inside(name)).iterdir()]
        return [Entry(name, folder, about.st_size, int(about.st_mtime * 1000)) for name, folder, about in sorted(found)]

    def make(self, name=""):
        self._effect()
        Path(self.inside(name)).mkdir(parents=True, exist_ok=True)

    def read_text(self, name):
        return Path(self.inside(name)).read_text()

    def write_new(self, name, text):
        self._effect()
        if self.exists(name):
            return False
        Path(self.inside(name)).write_text(text)
        return True

    def move(self, old, new):
        self._effect()
        assert not self.exists(new)
        Path(self.inside(old)).rename(self.inside(new))

    def delete(self, name):
        self._effect()
        path = Path(self.inside(name))
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)

    def rows_in_parquet(self, name):
        return pq.read_metadata(self.inside(name)).num_rows


class SmallWriter(EpochWriter):
    """Epochs are numbers; their rows are written here and not by Spark, which would take a second each."""

    def _query(self):
        return "query"

    def _write_epoch(self, frame, place):
        folder = Path(place.removeprefix("file:")) / "date=2026-11-21"
        folder.mkdir(parents=True)
        for number in range(FILES_PER_EPOCH):
            first = (frame * FILES_PER_EPOCH + number) * ROWS_PER_FILE
            table = pa.table({"_offset": range(first, first + ROWS_PER_FILE)})
            pq.write_table(table, folder / f"epoch{frame}-{number}-{uuid4()}.parquet")

    def _write_merged(self, names, place):
        root = Path(self._files.folder.path.removeprefix("file:"))
        tables = [pq.ParquetFile(root / name).read() for name in names]
        folder = Path(place.removeprefix("file:"))
        folder.mkdir(parents=True)
        pq.write_table(pa.concat_tables(tables), folder / f"merged-{uuid4()}.parquet")


def job(out, **more):
    return ArchiveJob("", "t", str(out), str(out / "_checkpoint"), target_bytes=TARGET_BYTES, **more)


def listed_rows(folder):
    """The offsets that a reader finds now."""
    root = Path(folder.path.removeprefix("file:"))
    found = []
    for file in FileList(folder).read().files:
        table = pq.ParquetFile(root / file.name).read()
        assert table.num_rows == file.rows_count
        found += table["_offset"].to_pylist()
    return sorted(found)


def rows_until(epochs):
    return list(range(epochs * FILES_PER_EPOCH * ROWS_PER_FILE))


def run(out, folder, first_epoch=0):
    """Epochs as Spark gives them; the number of those that were done."""
    done = first_epoch
    try:
        files = FileList(folder)
        files.take_over(0)
        writer = SmallWriter(None, files, job(out, keep_replaced_seconds=0))
        for epoch in range(first_epoch, EPOCHS):
            writer.write(epoch, epoch)
            done = epoch + 1
    except Killed:
        pass
    return done


def test_a_kill_before_any_effect_loses_and_doubles_nothing(tmp_path):
    effects = 0
    while True:
        out = tmp_path / str(effects)
        mortal, reader = DiskFolder(out, effects), DiskFolder(out)
        done = run(out, mortal)
        assert listed_rows(reader) in (rows_until(done), rows_until(min(done + 1, EPOCHS))), effects
        assert run(out, DiskFolder(out), done) == EPOCHS
        assert listed_rows(reader) == rows_until(EPOCHS), effects
        inside = {path.name for path in out.glob("date=*/*.parquet")}
        assert inside == {Path(file.name).name for file in FileList(reader).read().files}, effects
        if mortal.effects_left > 0:
            break
        effects += 1
    assert effects > 40
    assert len(inside) < EPOCHS * FILES_PER_EPOCH, "nothing was merged"


def parquet_names(out):
    return {path.relative_to(out).as_posix() for path in out.glob("*/*.parquet")}


@pytest.mark.parametrize("end", ["in order", "an error", "another job"])
def test_a_job_that_ended_leaves_only_what_is_listed(tmp_path, end):
    """Counted by a reader that knows no list, whatever the job keeps for those that do."""
    out = tmp_path / "archive"
    files = FileList(LocalFolder(out.as_uri()))
    files.take_over(600)
    with contextlib.suppress(ArithmeticError), only_what_is_listed(files):
        writer = SmallWriter(None, files, job(out))
        for epoch in range(EPOCHS):
            writer.write(epoch, epoch)
        assert writer.merges_count
        assert len(files.listing.replaced) >= FAN_IN
        assert rows_of_all_files(out) > len(rows_until(EPOCHS))
        shutil.copy(out / files.listing.files[0].name, out / "date=2026-11-21" / "not-committed.parquet")
        staged = out / files.stage("epoch")
        staged.mkdir(parents=True)
        if end == "another job":
            FileList(LocalFolder(out.as_uri())).take_over(600)
            before = parquet_names(out)
        if end == "an error":
            raise ArithmeticError
    if end == "another job":
        assert parquet_names(out) == before, "the files are the other one's"
        return
    assert parquet_names(out) == {file.name for file in FileList(LocalFolder(out.as_uri())).read().files}
    assert rows_of_all_files(out) == len(rows_until(EPOCHS))
    assert not staged.exists()
    with pytest.raises(PipelineError, match="has ended"):
        writer.write(EPOCHS, EPOCHS)


def rows_of_all_files(out):
    return sum(pq.read_metadata(path).num_rows for path in out.glob("date=*/*.parquet"))


def rows_while_cleared_up(out):
    """None: a file went between the look at the folder and the look into it."""
    with contextlib.suppress(FileNotFoundError):
        return rows_of_all_files(out)


KILLED = """
import os, pathlib, signal, sys
from tests.spark.test_file_list import EPOCHS, SmallWriter, job
from tpc_broker.spark.pipelines.file_list import FileList
from tpc_broker.spark.pipelines.leftovers import only_what_is_listed
from tpc_broker.spark.pipelines.local_folder import LocalFolder
out = pathlib.Path(sys.argv[1])
files = FileList(LocalFolder(out.as_uri()))
files.take_over(600)
with only_what_is_listed(files):
    writer = SmallWriter(None, files, job(out))
    for epoch in range(EPOCHS):
        writer.write(epoch, epoch)
    assert files.listing.replaced
    if sys.argv[2:]:
        FileList(LocalFolder(out.as_uri())).take_over(600)
    os.killpg(0, signal.SIGKILL)
"""


@pytest.mark.parametrize("taken_over", [False, True], ids=["nobody", "another run"])
def test_a_job_that_was_killed_leaves_only_what_is_listed(tmp_path, taken_over):
    out = tmp_path / "archive"
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(out), *(["x"] if taken_over else [])], cwd=ROOT, start_new_session=True,
        check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == -signal.SIGKILL
    reader = FileList(LocalFolder(out.as_uri()))
    number = reader.read().number
    if taken_over:
        let_pass(1)
        assert reader.read().number == number
        assert len(reader.read().replaced) >= FAN_IN
        assert rows_of_all_files(out) > len(rows_until(EPOCHS)), "the other run keeps them for its readers"
    else:
        eventually(lambda: rows_while_cleared_up(out) == len(rows_until(EPOCHS)), "somebody has cleared up")
        assert parquet_names(out) == {file.name for file in reader.read().files}


def test_clearing_up_does_not_stop_a_run_that_begins_meanwhile(tmp_path):
    """It takes the archive over all the same when a list appears between its look and its commit."""
    out = tmp_path / "archive"
    run(out, DiskFolder(out))

    class Overtaken(DiskFolder):
        others = 2

        def write_new(self, name, text):
            if self.others:
                self.others -= 1
                assert super().write_new(name, text)
            return super().write_new(name, text)

    files = FileList(Overtaken(out))
    files.take_over(0)
    files.commit(files.listing)
    assert listed_rows(DiskFolder(out)) == rows_until(EPOCHS)


def test_readers_see_a_list_and_not_a_folder(spark, tmp_path):
    out = tmp_path / "archive"
    assert run(out, Folder(spark, str(out))) == EPOCHS
    found = spark.read.parquet(str(out)).select("_offset").collect()
    assert sorted(row[0] for row in found) == rows_until(EPOCHS)
    before = len(found)
    one = next(out.glob("date=*/*.parquet"))
    shutil.copy(one, one.with_name("leftover.parquet"))
    assert spark.read.parquet(str(out)).count() == before
    moved = tmp_path / "moved"
    out.rename(moved)
    FileList(Folder(spark, str(moved))).take_over(600)
    assert spark.read.parquet(str(moved)).count() == before
    assert not (moved / "date=2026-11-21" / "leftover.parquet").exists()


def test_replaced_files_stay_for_readers_that_began_before(spark, tmp_path):
    out = tmp_path / "archive"
    files = FileList(Folder(spark, str(out)))
    files.take_over(600)
    writer = SmallWriter(spark, files, job(out))
    writer.write(0, 0)
    frame = spark.read.parquet(str(out))
    for epoch in range(1, EPOCHS):
        writer.write(epoch, epoch)
    assert writer.merges_count
    assert frame.count() == FILES_PER_EPOCH * ROWS_PER_FILE
    assert spark.read.parquet(str(out)).count() == len(rows_until(EPOCHS))


def test_of_two_jobs_one_is_refused(spark, tmp_path):
    out = tmp_path / "archive"
    first, second = FileList(Folder(spark, str(out))), FileList(Folder(spark, str(out)))
    first.take_over(600)
    second.take_over(600)
    with pytest.raises(PipelineError, match="another job"):
        SmallWriter(spark, first, job(out)).write(0, 0)
    SmallWriter(spark, second, job(out)).write(0, 0)
    assert listed_rows(Folder(spark, str(out))) == rows_until(1)


@pytest.mark.parametrize(("name", "said"), [("holiday.jpg", "no archive"), ("_spark_metadata/0", "another program")])
def test_folders_with_something_else_in_them_are_left_alone(spark, tmp_path, name, said):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("v1")
    with pytest.raises(PipelineError, match=re.escape(said)):
        FileList(Folder(spark, str(tmp_path))).take_over(600)
    assert path.exists()


def test_what_is_merged():
    def files(*sizes, folder="date=a"):
        return [DataFile(f"{folder}/{number}", size, 1, number) for number, size in enumerate(sizes)]

    assert merge_groups(files(*[10] * (FAN_IN - 1)), 1000) == []
    assert [len(group) for group in merge_groups(files(*[10] * FAN_IN), 1000)] == [FAN_IN]
    assert merge_groups(files(*[10] * 4) + files(*[10] * 4, folder="date=b"), 1000) == []
    assert merge_groups(files(*[600] * 20), 1000) == [], "large enough"
    assert [len(group) for group in merge_groups(files(*[400] * FAN_IN), 1000)] == [2] * (FAN_IN // 2)
    assert merge_groups(files(*[10] * 7, 499), 1000) == [], "of different tiers"
    assert [tier(size, 1024) for size in (511, 64, 63, 8, 7)] == [0, 0, 1, 1, 2]
