"""What is not known is never deleted: metadata that are gone, damaged or older than the partitions beside them."""

from __future__ import annotations

import shutil

import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

from tests.durability.test_repair import RECORDS, consume, create, numbered, produce, repair, values
from tests.support.broker_process import TpcBroker, run_command
from tests.support.waiting import PATIENCE_S, eventually

pytestmark = pytest.mark.crash

CORES = 2


@pytest.fixture
def broker(tmp_path):
    one = TpcBroker(tmp_path / "broker", CORES)
    one.start()
    yield one
    one.kill()


def serve_refused(broker):
    """The last line of a start that is refused: exit code 2, and no traceback."""
    refused = run_command(*broker.command()[broker.command().index("serve") :])
    assert refused.returncode == 2, refused.stderr
    assert "Traceback" not in refused.stderr
    return refused.stderr.strip().splitlines()[-1]


def metadata_folder(broker):
    return broker.data_folder / "topics" / "__cluster_metadata-0"


def segment_bytes(broker):
    return {path: path.stat().st_size for path in broker.data_folder.glob("topics/events-*/*.log")}


def alter(broker, **settings):
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    change = AlterConfigOpType.SET
    entries = [ConfigEntry(name, value, incremental_operation=change) for name, value in settings.items()]
    resource = ConfigResource("topic", "events", incremental_configs=entries)
    admin.incremental_alter_configs([resource])[resource].result(PATIENCE_S)


def setting(broker, name):
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    resource = ConfigResource("topic", "events")
    return admin.describe_configs([resource])[resource].result(PATIENCE_S)[name].value


def both_partitions(broker):
    for partition in (0, 1):
        assert consume(broker, partition) == numbered(0, RECORDS)
        assert produce(broker, partition, [b"more"]) is None


def filled(broker):
    create(broker)
    for partition in (0, 1):
        assert produce(broker, partition, values(0, RECORDS)) is None


@pytest.mark.parametrize("stop", ["kill", "stop"])
def test_a_missing_metadata_log_deletes_nothing_and_is_rebuilt(broker, stop):
    filled(broker)
    alter(broker, **{"retention.ms": "123456789"})
    getattr(broker, stop)()
    shutil.rmtree(metadata_folder(broker))
    for _attempt in range(2):
        reason = serve_refused(broker)
        assert "tpc-broker repair --rebuild-metadata" in reason
        assert "__cluster_metadata-0" in reason
    before = segment_bytes(broker)
    assert len(before) == 2

    shown = repair(broker)
    assert "--rebuild-metadata" in shown.stdout
    shown = repair(broker, "--rebuild-metadata")
    assert shown.returncode == 0
    assert "events: 2 partitions" in shown.stdout
    assert "nothing was changed" in shown.stdout
    assert segment_bytes(broker) == before
    assert not metadata_folder(broker).exists()
    assert "tpc-broker repair --rebuild-metadata" in serve_refused(broker)

    done = repair(broker, "--rebuild-metadata", "--apply")
    assert done.returncode == 0, done.stderr
    broker.start()
    both_partitions(broker)
    if stop == "kill":  # the journal still had the setting
        assert setting(broker, "retention.ms") == "123456789"
    broker.restart()
    assert consume(broker, 0)[-1] == (RECORDS, b"more")


@pytest.mark.parametrize("damage", ["a flipped bit", "an empty segment", "no partition.metadata"])
def test_a_damaged_metadata_log_is_refused_and_rebuilt(broker, damage):
    filled(broker)
    broker.stop()
    (log,) = metadata_folder(broker).glob("*.log")
    data = bytearray(log.read_bytes())
    if damage == "a flipped bit":
        data[data.index(b"topic_created")] ^= 1
    elif damage == "no partition.metadata":
        (log.parent / "partition.metadata").write_bytes(b"")
    log.write_bytes(b"" if damage == "an empty segment" else data)
    assert "tpc-broker repair --rebuild-metadata" in serve_refused(broker)
    done = repair(broker, "--rebuild-metadata", "--apply")
    assert done.returncode == 0, done.stderr
    assert "events: 2 partitions" in done.stdout
    assert (broker.data_folder / "lost+found").is_dir()
    broker.start()
    both_partitions(broker)


def test_another_number_of_cores_does_not_hide_that_the_metadata_are_gone(broker):
    filled(broker)
    broker.stop()
    shutil.rmtree(metadata_folder(broker))
    broker.cores_count = 1
    refused = run_command(*broker.command()[broker.command().index("serve") :])
    assert refused.returncode == 2
    assert "tpc-broker repair --rebuild-metadata" in refused.stderr
    assert "Traceback" not in refused.stderr
    assert repair(broker, "--rebuild-metadata", "--apply").returncode == 0
    broker.start()
    both_partitions(broker)


def test_metadata_older_than_the_partitions_put_them_aside_and_bring_them_back(broker):
    """A topic that the metadata do not know, and whose deletion they do not know either."""
    filled(broker)
    broker.stop()
    elsewhere = broker.folder / "elsewhere"
    elsewhere.mkdir()
    folders = sorted(broker.data_folder.glob("topics/events-*"))
    for folder in [*folders, metadata_folder(broker)]:
        folder.rename(elsewhere / folder.name)
    assert repair(broker, "--rebuild-metadata", "--apply").returncode == 0
    for folder in folders:
        (elsewhere / folder.name).rename(folder)

    broker.start()
    assert "know no topic with id" in broker.log_text()
    create(broker)  # the name is free
    assert produce(broker, 0, [b"another topic"]) is None
    broker.kill()
    assert len(list(broker.data_folder.glob("lost+found/events-*/reason"))) == 2
    broker.start()
    assert consume(broker, 0) == [(0, b"another topic")]
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.delete_topics(["events"])["events"].result(PATIENCE_S)
    broker.stop()

    assert "comes back from lost+found" in repair(broker, "--rebuild-metadata").stdout
    assert repair(broker, "--rebuild-metadata", "--apply").returncode == 0
    broker.start()
    both_partitions(broker)


def test_deleted_topics_are_still_removed(broker):
    """Also by a core that was told of it only at its next start: the deletion is on record."""
    filled(broker)
    broker.core_process(1).suspend()
    admin = AdminClient({"bootstrap.servers": f"{broker.host}:{broker.ports[0]}", "log_level": 0})
    admin.delete_topics(["events"])
    eventually(lambda: list(broker.data_folder.glob("topics/events-*-delete")), "one core deletes")
    broker.kill()
    assert len(list(broker.data_folder.glob("topics/events-[01]"))) == 1
    broker.start()
    assert list(broker.data_folder.glob("topics/events-*")) == []
    assert not (broker.data_folder / "lost+found").exists()
