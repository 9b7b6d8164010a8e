"""A folder of this machine's file system without Spark: for what has to be done when its JVM may be gone.

What `folder.Folder` does there through Hadoop, with the same result: also Hadoop's checksums (`.NAME.crc`) go with
their files.
"""

import contextlib
import os
import shutil
from pathlib import Path
from urllib.parse import unquote, urlsplit
from uuid import uuid4

from pyarrow import parquet

from tpc_broker.spark.pipelines.errors import PipelineError
from tpc_broker.spark.pipelines.folder import Entry


class LocalFolder:
    """``url`` as Hadoop writes it, ``file:/…``. `OSError` where something fails."""

    def __init__(self, url: str) -> None:
        self.url = self.path = url
        self._root = Path(unquote(urlsplit(url).path))

    def inside(self, name: str) -> str:
        return f"{self.path}/{name}"

    def entries(self, name: str = "") -> list[Entry]:
        """What is in it, sorted by name; nothing where it does not exist."""
        found = []
        with contextlib.suppress(FileNotFoundError), os.scandir(self._root / name) as inside:
            for path in inside:
                about = path.stat()
                found.append(Entry(path.name, path.is_dir(), about.st_size, int(about.st_mtime * 1000)))
        return sorted(found, key=lambda entry: entry.name)

    def make(self, name: str = "") -> None:
        (self._root / name).mkdir(parents=True, exist_ok=True)

    def read_text(self, name: str) -> str:
        return (self._root / name).read_text()

    def write_new(self, name: str, text: str) -> bool:
        """The whole file appears at once; False when there was one of this name, which stays as it is."""
        path = self._root / name
        temporary = path.with_name(f".{path.name}.{uuid4()}.tmp")
        temporary.write_text(text)
        try:
            os.link(temporary, path)
        except FileExistsError:
            return False
        finally:
            temporary.unlink()
        return True

    def move(self, old: str, new: str) -> None:
        if (self._root / new).exists():
            raise PipelineError(f"{self.inside(new)} exists")
        (self._root / old).rename(self._root / new)

    def delete(self, name: str) -> None:
        """With all that is in it; it may be gone already."""
        path = self._root / name
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
            path.with_name(f".{path.name}.crc").unlink(missing_ok=True)

    def rows_in_parquet(self, name: str) -> int:
        """What the file's footer says."""
        return int(parquet.read_metadata(self._root / name).num_rows)
