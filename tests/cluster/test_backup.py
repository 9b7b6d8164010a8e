"""`tpc-broker backup` of a cluster's node, under load, and what becomes of the copy: a broker alone, a new cluster."""

from __future__ import annotations

import json
import shutil
import socket
import threading
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from confluent_kafka import Consumer, KafkaException, TopicPartition

from tests.cluster.test_moves import reassign, replicas
from tests.support.broker_process import TpcBroker, run_command
from tests.support.cluster_nodes import Cluster, answered, cluster, create_topic, eventually, leaders, run_tpc
from tests.support.replicated_load import Load, read_all
from tests.support.storage_plane import MemoryStoragePlane
from tests.support.waiting import LOOK_S, PATIENCE_S
from tpc_broker.log.checkpoint import PartitionCheckpoint, encode_checkpoint
from tpc_broker.metadata.image import ClusterImage
from tpc_broker.metadata.records import TopicCreated
from tpc_broker.model import CoreId, MetadataVersion, NodeId, Offset, PartitionIndex, TopicId
from tpc_broker.model import TopicPartition as Key
from tpc_broker.node.replicas.catching_up import CatchingUp, CaughtUp
from tpc_broker.operations.backup import _Backup
from tpc_broker.operations.backup import restore as restore_files
from tpc_broker.operations.backup_cores import HeldCores, JournalEnd, of_cores
from tpc_broker.operations.backup_hold import abstract_name, hold_for_backup
from tpc_broker.operations.backup_node import NODE_FILE, UNBOUND, NodeCopy
from tpc_broker.options import StartError

pytestmark = pytest.mark.cluster

PARTITIONS = 4
GROUP = "readers"


class Reader:
    """Reads a topic, and commits as it goes; `committed`: what was acknowledged of that."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.committed = [0] * PARTITIONS
        self._stop = threading.Event()
        self._consumer = Consumer({
            "bootstrap.servers": bootstrap, "group.id": GROUP, "enable.auto.commit": False, "log_level": 0,
            "auto.offset.reset": "earliest",
        })  # fmt: skip
        self._consumer.assign([TopicPartition(topic, index, 0) for index in range(PARTITIONS)])
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            if self._consumer.consume(100, timeout=0.1):
                self._commit()
        self._consumer.close()

    def _commit(self) -> None:
        try:
            done = self._consumer.commit(asynchronous=False) or ()
        except KafkaException:  # no coordinator yet, say: the next one commits this, too
            return
        for one in done:
            if one.error is None:
                self.committed[one.partition] = one.offset

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()


def begin(made: Cluster) -> None:
    """With few partitions for groups' offsets: each costs a start some time."""
    for node in made.nodes:
        node.overrides["offsets.topic.num.partitions"] = "3"
    made.start()


def back_up(node: TpcBroker, target: Path, *more: str) -> dict[str, Any]:
    done = run_command("backup", str(target), "--data", str(node.data_folder), "--json", *more)
    assert done.returncode == 0, done.stderr + node.log_text()[-3000:]
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def restore(source: Path, data: Path) -> dict[str, Any]:
    data.parent.mkdir(parents=True, exist_ok=True)
    done = run_command("restore", str(source), "--data", str(data), "--json")
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def check_copy(bootstrap: str, load: Load, before: list[dict[int, int | None]], committed: list[int]) -> list[int]:
    """What was acknowledged before is there, in front of it everything and nothing else; the logs' ends."""
    ends = []
    for partition, known in enumerate(before):
        found = read_all(bootstrap, load.topic, partition)
        assert [value for _offset, value in found] == list(range(len(found)))
        assert len(found) > max(known), f"{load.topic}-{partition} ends at {len(found)}; acknowledged: {max(known)}"
        places = {value: offset for offset, value in found}
        later = load.acknowledged[partition]
        wrong = [value for value in places if later.get(value, places[value]) not in (None, places[value])]
        assert not wrong
        ends.append(found[-1][0] + 1)
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": GROUP, "log_level": 0})
    asked = [TopicPartition(load.topic, index) for index in range(PARTITIONS)]
    offsets = [one.offset for one in eventually(lambda: consumer.committed(asked, timeout=LOOK_S), "offsets are told")]
    consumer.close()
    assert all(map(int.__ge__, offsets, committed)), (offsets, committed)
    assert all(map(int.__le__, offsets, ends)), f"offsets {offsets} are beyond the logs' ends, {ends}"
    return ends


def test_a_node_under_load_and_a_new_cluster_of_its_copy(tmp_path):
    with cluster(tmp_path, count=3) as made:
        begin(made)
        create_topic(made.bootstrap, "kept", PARTITIONS, replicas=3)
        create_topic(made.bootstrap, "apart", 3, replicas=1)
        load = Load(made.bootstrap, "kept", PARTITIONS, digits=200)
        load.__enter__()
        reader = Reader(made.bootstrap, "kept")
        try:
            load.wait_progress()
            eventually(lambda: all(reader.committed), "all of it is read")
            eventually(lambda: -1 not in leaders(made.bootstrap, "kept").values(), "all are led")
            led_by = answered(lambda: leaders(made.bootstrap, "kept")).values()
            led = {broker // 1024 for broker in led_by if broker >= 0}
            node = min(led)
            assert len(led) > 1, "it leads some, and follows others"
            before = [dict(each) for each in load.acknowledged]
            committed = list(reader.committed)
            report = back_up(made[node], tmp_path / "copy")
            load.wait_progress()
        finally:
            reader.stop()
            load.stop()
        assert report["node"] == node
        assert report["behind"] == []
        apart = answered(lambda: leaders(made.bootstrap, "apart"))
        assert report["left_out"] == [f"apart-{index}" for index, broker in apart.items() if broker // 1024 != node]
        load.check(made.bootstrap)  # the cluster has taken no harm
    told = restore(tmp_path / "copy", tmp_path / "new" / "node1" / "data")
    assert told["left_out"] == report["left_out"]
    assert told["shorter"] == []
    with cluster(tmp_path / "new", count=3) as made:
        begin(made)
        check_copy(made.bootstrap, load, before, committed)
        everywhere = {index: [1, 2, 3] for index in range(PARTITIONS)}
        assert reassign(made, "kept", everywhere) == [0] * PARTITIONS
        eventually(lambda: replicas(made, "kept") == everywhere, "the records are on three nodes")


def test_files_of_a_copy_never_change_and_its_node_is_another_cluster(tmp_path):
    """Segments are shared in front of what is committed only: a cut would change the backup's file."""
    with cluster(tmp_path, count=2, cores=2) as made:
        begin(made)
        said = run_tpc("topic", "create", "t", "--replication-factor", "2", "--config", "segment.bytes=1048576",
                       "--bootstrap", made.bootstrap)  # fmt: skip
        assert said[0] == 0, said
        source = tmp_path / "copy"
        with Load(made.bootstrap, "t", 1, digits=4_000) as load:
            eventually(lambda: len(load.acknowledged[0]) > 600, "some segments are full")
            acknowledged = max(load.acknowledged[0])
            report = back_up(made[2], source)
        node = NodeCopy.read(source / NODE_FILE)
        committed = node.bounds[Key(node.image.ids["t"], PartitionIndex(0))]
        bases = sorted(int(path.stem) for path in (source / "topics/t-0").glob("*.log"))
        ends = dict(zip((f"{base:020}.log" for base in bases), [*bases[1:], 1 << 62], strict=True))
        shared = {path.name for path in (source / "topics/t-0").iterdir() if path.stat().st_nlink > 1}
        assert shared == {name for name, end in ends.items() if end <= committed}
        assert report["linked_bytes"] >= 1 << 20
        stray = made[2]
        stray.stop()
        stray.data_folder.rename(tmp_path / "lost")
        told = restore(source, stray.data_folder)
        assert not (stray.data_folder / "cluster").exists()
        stray.launch()
        assert stray.wait_ended() != 0
        refused = next(line for line in stray.log_messages() if "holds data of cluster" in line)
        assert f"the data directory holds data of cluster {told['cluster_id']}" in refused
        assert f"is of cluster {told['of_cluster']}; start with an empty --data to join that one" in refused
    shutil.rmtree(stray.data_folder / "cluster")  # it has asked for a cluster, and is in none
    alone = TpcBroker(stray.data_folder.parent, 1)  # another number of cores
    try:
        alone.start()
        found = read_all(alone.bootstrap, "t", 0)
        assert [value for _offset, value in found] == list(range(committed))
        assert committed > acknowledged
    finally:
        alone.kill()


# -- refusals ----------------------------------------------------------------------------------------------------------


def a_backup(folder: Path, node_file: str) -> Path:
    folder.mkdir()
    (folder / NODE_FILE).write_text(node_file)
    manifest = {"format": 2, "release": "1", "taken_ms": 0, "cluster_id": "c", "cores": 1,
                "files": {NODE_FILE: len(node_file)}}  # fmt: skip
    (folder / "backup.json").write_text(json.dumps(manifest))
    return folder


@pytest.mark.parametrize(
    ("node_file", "wrong"),
    [
        ("{", "Expecting property name"),
        ("[]", "list indices"),
        ('{"node": 1, "cluster_id": "c", "bounds": [["x", 0, 1]], "image": {}}', "badly formed"),
        ('{"node": 1, "cluster_id": "c", "bounds": [], "image": {"version": 1, "records": [1]}}', "an object"),
        ('{"node": 1, "cluster_id": "c", "bounds": [], "image": {"version": 1, "records": []}}', "not among its nodes"),
    ],
)
def test_a_copy_that_does_not_say_what_it_is(tmp_path, node_file, wrong):
    source = a_backup(tmp_path / "backup", node_file)
    with pytest.raises(StartError) as refused:
        restore_files(source, tmp_path / "new", lambda _done, _total: None)
    told = str(refused.value)
    assert told.startswith(f"{source / NODE_FILE} cannot be read: ")
    assert wrong in told
    assert "\n" not in told
    assert not (tmp_path / "new").exists()


def row(key: Key, committed: int = 0, *, sure: bool = True, voter: bool = True) -> list[Any]:
    return [str(key.topic_id), key.partition, f"t-{key.partition}", committed, sure, voter]


KEYS = [Key(TopicId(uuid.UUID(int=9)), PartitionIndex(index)) for index in range(4)]


def test_what_counts_of_each_replica():
    node = NodeCopy(NodeId(1), "c")
    node.note([row(KEYS[0], 7), row(KEYS[1], 5, sure=False), row(KEYS[2], 3, sure=False, voter=False)])
    assert node.bounds == {KEYS[0]: 7, KEYS[1]: UNBOUND}, "one that is still filled is no copy"
    assert node.behind == {KEYS[1]: "t-1"}
    assert node.committed == {KEYS[0]: 7, KEYS[1]: 5, KEYS[2]: 3}


@pytest.mark.parametrize(("committed", "shared_below"), [(0, 0), (99, 0), (100, 100), (150, 100), (400, 200)])
def test_only_segments_that_are_committed_whole_are_shared(tmp_path, committed, shared_below):
    """The checkpoint says that those below 200 are written no more; a cut may still end them where it is committed."""
    (tmp_path / "journals").mkdir()
    state = PartitionCheckpoint(KEYS[0].topic_id, KEYS[0].partition, "t", Offset(200), 0, Offset(0), Offset(200))
    (tmp_path / "journals" / "0000.checkpoint").write_bytes(encode_checkpoint(1, [state]))
    run = _Backup(tmp_path, tmp_path, tmp_path / "target", lambda _done, _total: None, with_links=True)
    run.node = NodeCopy(NodeId(1), "c", committed={KEYS[0]: committed})
    made = TopicCreated("t", KEYS[0].topic_id, (CoreId(0),), 1)
    run.node.image = ClusterImage().apply([made], MetadataVersion(1))
    names = [Path(f"topics/t-0/{base:020}.log") for base in (0, 100, 200, 300)]
    assert run._sealed_below(names) == {"t-0": shared_below}


class _Storage:
    """As much of a core's storage as a backup asks for."""

    cuts_begun = 4

    @asynccontextmanager
    async def hold_checkpoints(self) -> AsyncIterator[None]:
        yield


class _Replicas:
    """More rows than a packet has, and an image of several parts."""

    image = ClusterImage(cluster_id="c" * 100_000)

    def __init__(self) -> None:
        self.asked: list[bool] = []

    async def run(self, *, first: bool, patience_s: float) -> list[CaughtUp]:
        assert patience_s > 1
        self.asked.append(first)
        count = 1 if first else 1000
        return [CaughtUp(Key(KEYS[0].topic_id, PartitionIndex(index)), f"t-{index}", index, True, True)
                for index in range(count)]  # fmt: skip


def test_what_a_core_of_a_node_is_asked(tmp_path):
    token, storage, replicas, node = uuid.uuid4().hex, _Storage(), _Replicas(), NodeCopy(NodeId(1), "c")
    plane = MemoryStoragePlane()
    for _commit in range(4):
        plane.journal_append(0, KEYS[0], 0, 0)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind(abstract_name(token))
        listening.listen()
        core = threading.Thread(
            target=trio.run,
            args=(hold_for_backup, 0, token, storage, plane, replicas),  # type: ignore[arg-type]
        )
        core.start()
        cores = HeldCores(listening, 1)
        try:
            cores.connect()
            cores.catch_up(node)
            assert replicas.asked == [True, False], "groups' offsets come first"
            assert [node.bounds[Key(KEYS[0].topic_id, PartitionIndex(index))] for index in (0, 1, 999)] == [0, 1, 999]
            cores.wait_held()
            assert cores.fix_moment() == {0: JournalEnd(6, 5)}
            assert cores.take_image() == _Replicas.image
            cores.release()
            assert cores.cuts() == 0
            storage.cuts_begun += 2
            assert cores.cuts() == 2, "since it was held"
        finally:
            cores.close()
            core.join(PATIENCE_S)
        assert not core.is_alive()
    with pytest.raises(StartError, match="the cores' part of the backup failed: a core went away"), of_cores():
        raise ValueError("a core went away")


# -- catching up -------------------------------------------------------------------------------------------------------


class _Bounds:
    def __init__(self, high_watermark: int) -> None:
        self.high_watermark = high_watermark


class _Machine:
    def __init__(self, leader: str | None, *, leads: bool = False, ready: bool = True, voter: bool = True) -> None:
        self.leader, self.is_leader, self.is_ready, self.is_voter = leader, leads, ready, voter

    def address_of(self, voter: str) -> str:
        return voter


class _Links:
    def __init__(self, core: _Core) -> None:
        self._core = core

    async def ask(self, address: str, _method: str, payload: dict[str, Any]) -> dict[str, Any]:
        told = {group: self._core.told[address][group] for group in payload["groups"]
                if group in self._core.told[address]}  # fmt: skip
        return {"committed": told}


class _Core:
    """A core's replication: partition 0 is led here, 1 and 2 by another core, 3 by nobody."""

    def __init__(self) -> None:
        self.image = ClusterImage()
        self.machines: dict[Key, _Machine] = {
            KEYS[0]: _Machine(None, leads=True), KEYS[1]: _Machine("b"), KEYS[2]: _Machine("b", voter=False),
            KEYS[3]: _Machine(None),
        }  # fmt: skip
        self.told: dict[str, dict[str, int]] = {"b": {"1": 12, "2": 10_000_000}}
        self.committed = dict.fromkeys(KEYS, 10)
        self.confirms = True
        self.links = _Links(self)

    def replicas_here(self) -> list[Key]:
        return list(self.machines)

    def look_at(self, key: Key) -> _Machine:
        return self.machines[key]

    def key_of(self, group: str) -> Key:
        return KEYS[int(group)]

    def group_name(self, key: Key) -> str:
        return str(key.partition)

    def bounds_of(self, key: Key) -> _Bounds:
        self.committed[key] += 1  # it comes nearer with each look
        return _Bounds(self.committed[key])

    async def confirm(self, _key: Key) -> bool:
        return self.confirms


def caught_up(core: _Core, patience_s: float) -> dict[int, CaughtUp]:
    async def run() -> list[CaughtUp]:
        return await CatchingUp(core, core).run(first=False, patience_s=patience_s)  # type: ignore[arg-type]

    return {one.key.partition: one for one in trio.run(run)}


def test_what_names_others_offsets_is_told_apart():
    core = _Core()
    offsets = Key(TopicId(uuid.UUID(int=10)), PartitionIndex(0))
    made = [TopicCreated(name, key.topic_id, (CoreId(0),), 1)
            for name, key in (("t", KEYS[0]), ("__consumer_offsets", offsets))]  # fmt: skip
    core.image = ClusterImage().apply(made, MetadataVersion(1))
    core.machines = {KEYS[0]: _Machine(None, leads=True), offsets: _Machine(None)}
    core.committed[offsets] = 0

    too_short_s = 0.2

    async def run(*, first: bool) -> list[str]:
        return [one.label for one in await CatchingUp(core, core).run(first=first, patience_s=too_short_s)]  # type: ignore[arg-type]

    assert trio.run(partial(run, first=True)) == ["__consumer_offsets-0"]
    assert trio.run(partial(run, first=False)) == ["t-0"]


def test_a_replica_has_caught_up_when_it_knows_as_committed_what_its_leader_did():
    core = _Core()
    found = caught_up(core, 0.5)
    assert [found[index].is_sure for index in range(4)] == [True, True, False, False]
    assert found[1].committed_offset >= 12
    assert [found[index].is_voter for index in range(4)] == [True, True, False, True]


@pytest.mark.parametrize("doubt", ["confirms", "is_ready", "leads"])
def test_who_may_lead_no_more_answers_nothing(doubt):
    """Others may have acknowledged more."""
    core = _Core()
    if doubt == "confirms":
        core.confirms = False
    elif doubt == "is_ready":
        core.machines[KEYS[0]].is_ready = False
    else:
        core.machines[KEYS[0]].is_leader = False
    assert not caught_up(core, 0.2)[0].is_sure

    async def serve() -> Any:
        return await CatchingUp(core, core).serve(None, {"groups": ["0"]}, [])  # type: ignore[arg-type]

    assert trio.run(serve) == ({"committed": {}}, ())
