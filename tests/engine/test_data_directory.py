"""The data directory: its lock, its identity, its properties, and each way in which it cannot be used."""

import os
import stat
from pathlib import Path

import pytest

from tpc_broker.engine import data_directory
from tpc_broker.engine.data_directory import DataDirectory, read_properties, write_properties
from tpc_broker.model import CoreId
from tpc_broker.options import StartError


def test_a_new_directory_gets_an_identity_that_stays(tmp_path: Path) -> None:
    path = tmp_path / "a" / "data"
    with DataDirectory.open(path) as data:
        first = data.cluster_id
        assert data.cores is None
        data.write_cores(4)
    assert len(first) == 22
    assert sorted(entry.name for entry in path.iterdir()) == [".lock", "journals", "meta.properties", "topics"]
    with DataDirectory.open(path) as data:
        assert (data.cluster_id, data.cores) == (first, 4)


def test_only_one_broker_at_a_time(tmp_path: Path) -> None:
    with DataDirectory.open(tmp_path):
        second = DataDirectory.open(tmp_path)
        with pytest.raises(StartError, match="is locked by another broker"):
            second.__enter__()
    with DataDirectory.open(tmp_path):
        pass


def test_the_lock_is_not_inherited_by_the_cores(tmp_path: Path) -> None:
    with DataDirectory.open(tmp_path):
        links = {entry: os.path.realpath(entry) for entry in Path("/proc/self/fd").iterdir()}
        (lock,) = [int(entry.name) for entry, target in links.items() if target == str(tmp_path / ".lock")]
        assert not os.get_inheritable(lock)


def test_journals_are_found_whatever_the_number_of_cores(tmp_path: Path) -> None:
    with DataDirectory.open(tmp_path) as data:
        for name in ("0.journal", "3.journal", "10.journal", "probe-7.tmp", "x.journal"):
            (tmp_path / "journals" / name).touch()
        assert data.journal_cores() == [CoreId(0), CoreId(3), CoreId(10)]


def test_properties_are_replaced_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "meta.properties"
    write_properties(path, {"b": "2", "a": "x=y"})
    assert path.read_text() == "a=x=y\nb=2\n"
    assert read_properties(path) == {"a": "x=y", "b": "2"}

    def fail(_self: Path, _target: Path) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(Path, "rename", fail)
    with pytest.raises(OSError, match="Input/output"):
        write_properties(path, {"a": "new"})
    assert read_properties(path) == {"a": "x=y", "b": "2"}


def test_properties_are_durable_before_they_have_their_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    rename, fdatasync, fsync = Path.rename, os.fdatasync, os.fsync

    def note_rename(source: Path, target: Path) -> Path:
        order.append("rename")
        return rename(source, target)

    def note_fsync(descriptor: int) -> None:
        order.append("fsync of the folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "fsync of a file")
        fsync(descriptor)

    def note_fdatasync(descriptor: int) -> None:
        order.append("fdatasync")
        fdatasync(descriptor)

    monkeypatch.setattr(Path, "rename", note_rename)
    monkeypatch.setattr(data_directory.os, "fsync", note_fsync)
    monkeypatch.setattr(data_directory.os, "fdatasync", note_fdatasync)
    write_properties(tmp_path / "meta.properties", {"a": "1"})
    assert order == ["fdatasync", "rename", "fsync of the folder"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"version=2\n", "has format version 2; this broker reads 1"),
        (b"version=1\ncores=many\n", "cores=many is not a number"),
        (b"\xff\xfe\x00", "is not text"),
    ],
)
def test_properties_of_something_else_are_refused(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "meta.properties").write_bytes(content)
    with pytest.raises(StartError, match=message), DataDirectory.open(tmp_path):
        pass


def test_a_file_in_its_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / "data").touch()
    with pytest.raises(StartError, match=r"cannot be used: (File exists|Not a directory)"):
        DataDirectory.open(tmp_path / "data").__enter__()


@pytest.mark.parametrize(("number", "hint"), [(28, "free some space"), (13, "make it writable"), (30, "read-only")])
def test_the_hint_fits_the_reason(
    tmp_path: Path, number: int, hint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_arguments: object, **_more: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(StartError, match=f"{os.strerror(number)}; .*{hint}"), DataDirectory.open(tmp_path / "data"):
        pass


def test_the_directory_and_its_parents_are_synced_before_it_has_an_identity(tmp_path, monkeypatch):
    """On a file system that keeps only what was synced, names that were not are gone with everything behind them."""
    synced, path = [], tmp_path / "new" / "newer" / "data"
    fsync = os.fsync

    def record(descriptor):
        fsync(descriptor)
        synced.append((Path(f"/proc/self/fd/{descriptor}").readlink(), (path / "meta.properties").exists()))

    monkeypatch.setattr(os, "fsync", record)
    with DataDirectory.open(path):
        assert {folder for folder, has_identity in synced if not has_identity} >= {path, *path.parents[:3]}
    synced.clear()
    with DataDirectory.open(path):
        assert synced == []
