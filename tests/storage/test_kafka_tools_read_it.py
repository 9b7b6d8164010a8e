"""Kafka's own dump tool reads our files: nothing on standard error, every record counted, the indexes agree."""

import re
import uuid

import pytest

from tests.log.log_batches import batch, marker
from tests.storage.direct_writes import append_past_the_page_cache
from tests.support.kafka_peer import PeerUnavailable, run_tool
from tests.support.plain_disk import PlainDisk
from tpc_broker.log.segment import LogSettings
from tpc_broker.model import TopicPartition
from tpc_broker.storage.segments import segment_appender as storage_module
from tpc_broker.storage.segments.files import FileCache
from tpc_broker.storage.segments.folders import create_partition

pytestmark = pytest.mark.kafka


async def write_log(topics, *, direct):
    """Two and a half segments: idempotent batches, one aborted and one committed transaction; (folder, records).

    `direct`: past the page cache, wherever ten rounds of batches are long enough for it.
    """
    waiting = []
    settings = LogSettings(segment_bytes=200_000, index_interval_bytes=4096)
    key = TopicPartition(uuid.UUID(int=77), 0)
    storage = await create_partition(FileCache(PlainDisk()), topics, "dumped", key, settings)
    offset = records = 0
    while len(storage.segments) < 3 or storage.active.size_bytes < 100_000:
        values = [b"x" * (100 + offset % 900), b"y"]
        ours = [batch(offset, values, timestamp=1_700_000_000_000 + offset, producer=(5, 0, offset % 2**31)),
                batch(offset + 2, values, timestamp=1_700_000_000_000 + offset, producer=(9, 1, offset % 2**31),
                      transactional=True),
                marker(offset + 4, offset // 5 % 2, 9, 1, coordinator_epoch=3, timestamp=1_700_000_000_000 + offset)]
        waiting += ours
        if not direct:
            await storage.append(waiting)
            waiting.clear()
        elif len(waiting) >= 30:
            done = await append_past_the_page_cache(storage, waiting)
            del waiting[:done]
            if not done:
                await storage.append(waiting)
                waiting.clear()
        offset, records = offset + 5, records + 5
    await storage.append(waiting)
    await storage.roll()
    await storage.capture()
    await storage.sync()
    await storage.close()
    return storage.folder.path, records


def dump(*arguments, first_offset=0):
    """Standard output. Deep iteration calls the first record of a segment that does not begin at 0 "non-consecutive",
    also in Kafka's own logs; that complaint, and no other, is let through.
    """
    try:
        done = run_tool("dump-log", *map(str, arguments))
    except PeerUnavailable as reason:
        pytest.skip(str(reason))
    allowed = rf"Non-consecutive offsets in \S+\s+-1 is followed by {first_offset}" if first_offset else ""
    assert re.fullmatch(allowed, done.stderr.strip()) or not done.stderr.strip(), done.stderr
    assert "mismatch" not in done.stdout.lower(), done.stdout
    assert "Found timestamp" not in done.stdout, done.stdout
    return done.stdout


@pytest.mark.parametrize("direct", [False, True], ids=["page-cache", "direct"])
async def test_the_dump_tool_reads_everything(tmp_path, direct, monkeypatch):
    monkeypatch.setattr(storage_module, "DIRECT_BYTES_MIN", 4096)
    folder, records = await write_log(tmp_path, direct=direct)
    names = sorted(folder.iterdir())
    logs = [name for name in names if name.suffix == ".log" and name.stat().st_size]
    text = "".join(dump("--deep-iteration", "--files", log, first_offset=int(log.stem)) for log in logs)
    assert len(re.findall(r"^\| offset: ", text, re.MULTILINE)) == records
    assert text.count("isvalid: true") == len(re.findall(r"^baseOffset: ", text, re.MULTILINE)) == records * 3 // 5
    for suffix in (".index", ".timeindex", ".txnindex", ".snapshot"):
        files = [name for name in names if name.suffix == suffix and name.stat().st_size]
        assert len(files) >= 3, (suffix, names)
        text = dump("--files", ",".join(map(str, files)))
        pattern = {".index": r"^offset: \d+ position: \d+", ".timeindex": r"^timestamp: \d+ offset: \d+",
                   ".txnindex": r"^version: 0 producerId: 9", ".snapshot": r"^producerId: 5 "}[suffix]
        entry_bytes = {".index": 8, ".timeindex": 12, ".txnindex": 34}.get(suffix)
        found = len(re.findall(pattern, text, re.MULTILINE))
        wanted = sum(name.stat().st_size // entry_bytes for name in files) if entry_bytes else len(files)
        assert found == wanted, (suffix, found, wanted, text[:2000])
