"""A partition that an earlier run set aside without a folder, of which nothing but its mark tells any more, is not made
anew in place of what lies beside the journals.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import pytest

from tests.runtime.in_place_core import Bench, on_core
from tpc_broker.errors import PartitionNotMadeError, PartitionOfflineError
from tpc_broker.model import PartitionIndex, TopicId, TopicPartition
from tpc_broker.storage.folders import OFFLINE_FILE, lost_folder_name
from tpc_broker.storage.journalled_storage import NEW_FOLDERS_FEW

if TYPE_CHECKING:
    from pathlib import Path

KEYS = [TopicPartition(TopicId(uuid.UUID(int=88)), PartitionIndex(number)) for number in range(NEW_FOLDERS_FEW + 2)]
MARKED = KEYS[0]


@pytest.fixture
def marked(tmp_path: Path) -> Path:
    folder = tmp_path / "data" / "journals" / lost_folder_name(MARKED)
    folder.mkdir(parents=True)
    (folder / OFFLINE_FILE).write_text("somebody says so")
    (folder / "salvage-1").write_bytes(b"records")
    return folder


def test_it_is_offline_while_others_are_made(tmp_path: Path, marked: Path) -> None:
    async def body(bench: Bench) -> None:
        storage = bench.storage
        await storage.prepare([(key, "more") for key in KEYS])
        for key in KEYS[1:]:
            await storage.open(key, "more", bench.config)
        for _ in range(2):
            with pytest.raises(PartitionOfflineError, match="somebody says so") as refused:
                await storage.open(MARKED, "more", bench.config)
            assert not isinstance(refused.value, PartitionNotMadeError)
        assert storage.damaged() == [MARKED]
        assert await storage.checkpoint()
        assert not list((tmp_path / "data" / "topics").glob("more-0"))

    on_core(tmp_path, body)
    assert marked.is_dir()


def test_it_can_be_deleted_and_made_anew(tmp_path: Path, marked: Path) -> None:
    async def body(bench: Bench) -> None:
        with pytest.raises(PartitionOfflineError):
            await bench.storage.open(MARKED, "more", bench.config)
        await bench.storage.delete_offline(MARKED)
        assert marked.name not in await bench.core.disk.listdir(marked.parent)
        await bench.storage.open(MARKED, "more", bench.config)

    on_core(tmp_path, body)
