"""A folder on any file system that Spark can write to, as the driver sees it: through Hadoop, by way of Spark's JVM.

Names are relative to the folder, with `/` between their parts. What fails raises `PipelineError` with the name.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from py4j.protocol import Py4JJavaError

from tpc_broker.spark.pipelines.errors import PipelineError


@dataclass(frozen=True, slots=True)
class Entry:
    """A file or folder directly inside a folder."""

    name: str
    is_folder: bool
    size_bytes: int
    modified_ms: int


class Folder:
    """For the driver only: it holds references into the JVM, so it cannot go to tasks."""

    def __init__(self, spark: Any, path: str) -> None:
        self._jvm = spark._jvm  # noqa: SLF001 - PySpark has no other way to the file systems of the session
        self._gateway = spark.sparkContext._gateway  # noqa: SLF001
        self._configuration = spark._jsc.hadoopConfiguration()  # noqa: SLF001
        with _named(path):
            root = self._jvm.org.apache.hadoop.fs.Path(path)
            self._files = root.getFileSystem(self._configuration)
            self._root = self._files.makeQualified(root)
            self._context = self._jvm.org.apache.hadoop.fs.FileContext.getFileContext(
                self._root.toUri(), self._configuration
            )
        self.path: str = self._root.toString()
        self.url: str = self._root.toUri().toString()

    def inside(self, name: str) -> str:
        """The whole path of what is called ``name`` here, as Spark's readers and writers take it."""
        return f"{self.path}/{name}"

    def exists(self, name: str = "") -> bool:
        with _named(self.inside(name)):
            return bool(self._files.exists(self._place(name)))

    def entries(self, name: str = "") -> list[Entry]:
        """What is in it, sorted by name; nothing where it does not exist."""
        if not self.exists(name):
            return []
        with _named(self.inside(name)):
            found = [
                Entry(
                    status.getPath().getName(), bool(status.isDirectory()), int(status.getLen()),
                    int(status.getModificationTime()),
                )
                for status in self._files.listStatus(self._place(name))
            ]  # fmt: skip
        return sorted(found, key=lambda entry: entry.name)

    def make(self, name: str = "") -> None:
        with _named(self.inside(name)):
            self._files.mkdirs(self._place(name))

    def read_text(self, name: str) -> str:
        with _named(self.inside(name)):
            stream = self._files.open(self._place(name))
            try:
                return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
            finally:
                stream.close()

    def write_new(self, name: str, text: str) -> bool:
        """The whole file appears at once; False when there was one of this name, which stays as it is."""
        folder, _, last = name.rpartition("/")
        temporary = f"{folder}/.{last}.{uuid4()}.tmp"
        with _named(self.inside(name)):
            stream = self._files.create(self._place(temporary), False)
            try:
                stream.write(text.encode())
            finally:
                stream.close()
        try:
            self._rename(temporary, name)
        except Py4JJavaError as error:
            self.delete(temporary)
            if "FileAlreadyExistsException" in error.java_exception.getClass().getName():
                return False
            raise PipelineError(f"{self.inside(name)}: {error.java_exception.getMessage()}") from None
        return True

    def move(self, old: str, new: str) -> None:
        """`PipelineError` when ``new`` exists."""
        with _named(self.inside(new)):
            self._rename(old, new)

    def delete(self, name: str) -> None:
        """With all that is in it; it may be gone already."""
        with _named(self.inside(name)):
            self._files.delete(self._place(name), True)

    def rows_in_parquet(self, name: str) -> int:
        """What the file's footer says."""
        with _named(self.inside(name)):
            parquet = self._jvm.org.apache.parquet.hadoop
            place = parquet.util.HadoopInputFile.fromPath(self._place(name), self._configuration)
            reader = parquet.ParquetFileReader.open(place)
            try:
                return int(reader.getRecordCount())
            finally:
                reader.close()

    def _place(self, name: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(self.inside(name)) if name else self._root

    def _rename(self, old: str, new: str) -> None:
        no_options = self._gateway.new_array(self._jvm.org.apache.hadoop.fs.Options.Rename, 0)
        self._context.rename(self._place(old), self._place(new), no_options)


@contextmanager
def _named(path: str) -> Iterator[None]:
    try:
        yield
    except Py4JJavaError as error:
        raise PipelineError(f"{path}: {error.java_exception.getMessage()}") from None
