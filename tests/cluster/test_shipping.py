"""Replicas that are filled with segments: where the first records are deleted, and where much is missing."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from tests.cluster.test_leaders import NOT_NEEDED, PREFERRED, elect
from tests.cluster.test_replication import in_sync_everywhere, leads
from tests.support.broker_process import run_command
from tests.support.cluster_nodes import Cluster, Node, admin, answered, cluster, create_topic, eventually
from tests.support.replicated_load import Load
from tests.support.waiting import LOOK_S, PATIENCE_S
from tpc_broker.log.batch import walk_headers
from tpc_broker.storage.recovery.scrub_report import read_report

pytestmark = pytest.mark.cluster

PARTITIONS = 3


@pytest.fixture
def three(tmp_path: Path):
    with cluster(tmp_path, cores=1) as made:
        made.start()
        yield made


def delete_records(bootstrap: str, topic: str, starts: list[int]) -> None:
    client = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    asked = [TopicPartition(topic, partition, offset) for partition, offset in enumerate(starts)]
    for answer in client.delete_records(asked).values():
        answer.result(PATIENCE_S)


def was_filled(made: Cluster, number: int) -> int:
    return sum("was filled from node" in line for line in made[number].log_messages())


def test_an_empty_node_gets_a_log_whose_first_records_are_deleted(three: Cluster):
    """It cannot learn from the first record on; with it another node may go."""
    create_topic(three.bootstrap, "kept", PARTITIONS, replicas=3)
    with Load(three.bootstrap, "kept", PARTITIONS) as load:
        load.wait_progress()
        three[3].kill()
        shutil.rmtree(three[3].data_folder)
        load.wait_progress()
        load.starts = [len(each) // 2 for each in load.acknowledged]
        assert min(load.starts) > 0
        delete_records(three[1].bootstrap, "kept", load.starts)
        three.start(3)
        load.wait_progress()
        eventually(lambda: in_sync_everywhere(three, "kept"), "it has what is there, and votes")
        assert was_filled(three, 3) >= PARTITIONS
        killed = leads(three, "kept", but=3)
        three[killed].kill()
        load.wait_progress()
    load.check(three[3 if killed != 3 else 1].bootstrap)
    for node in three.nodes:
        assert not [line for line in node.log_messages() if "Traceback" in line or "AssertionError" in line]


def first_segment(node: Node) -> Path:
    return node.data_folder / "topics" / "kept-0" / f"{0:020d}.log"


def has_records(node: Node) -> bool:
    """In its first segment."""
    path = first_segment(node)
    return path.exists() and path.stat().st_size > 10_000


IN_OFFSET, IN_EPOCH, IN_RECORDS = 6, 15, 61
"""Of a batch; the first two are not under its checksum."""


def flip_a_byte(path: Path, at: int) -> None:
    """Of a batch in the middle of a segment."""
    data = bytearray(path.read_bytes())
    places = [place for _header, place in walk_headers(data)]
    data[places[len(places) // 2] + at] ^= 0x40
    with path.open("r+b") as file:
        file.write(data)


def scrub(node: Node) -> int:
    """How many stretches are damaged."""
    done = run_command("scrub", "--data", str(node.data_folder), "--rate", "1G", "--json")
    return int(json.loads(done.stdout)["damaged_count"])


def damages_told(node: Node) -> int:
    """As metrics and `tpc-broker status` tell of them."""
    report = read_report(node.data_folder)
    assert report is not None
    return report.damaged_count


def votes_again(node: Node) -> bool:
    return any("votes again, as another replica" in line for line in node.log_messages())


def lead_by(made: Cluster, number: int) -> None:
    """It is the preferred one, and is elected."""
    eventually(lambda: elect(made, PREFERRED, [0])[0][0] in (0, NOT_NEEDED), "the preferred one is elected")
    eventually(lambda: leads(made, "kept") == number, "it leads")


def test_a_replica_that_cannot_be_opened_begins_anew_from_another(three: Cluster):
    create_topic(three.bootstrap, "kept", 1, replicas=3)
    with Load(three.bootstrap, "kept", 1) as load:
        load.wait_progress()
        eventually(lambda: in_sync_everywhere(three, "kept"), "three replicas")
        eventually(lambda: has_records(three[2]), "something to damage")
        three[2].stop()
        path = first_segment(three[2])
        os.truncate(path, path.stat().st_size // 2)
        three.start(2)
        eventually(lambda: votes_again(three[2]), "it votes as another one")
        three[3].kill()
        load.wait_progress()
    load.check(three[2].bootstrap)
    [aside] = (three[2].data_folder / "lost+found").iterdir()
    assert (aside / path.name).stat().st_size > 0


@pytest.mark.parametrize(("leads_it", "at"), [(False, IN_OFFSET), (False, IN_EPOCH), (True, IN_RECORDS)])
def test_a_replica_in_which_a_scrub_finds_damage_begins_anew_from_another(three: Cluster, at: int, *, leads_it: bool):
    """One that leads hands its leadership over first."""
    create_topic(three.bootstrap, "kept", 1, replicas=3)
    with Load(three.bootstrap, "kept", 1) as load:
        load.wait_progress()
        eventually(lambda: in_sync_everywhere(three, "kept"), "three replicas")
        told = answered(lambda: admin(three[1].bootstrap).list_topics("kept", timeout=LOOK_S))
        found = told.topics["kept"].partitions[0]
        number = found.replicas[0] // 1024 if leads_it else leads(three, "kept") % 3 + 1
        eventually(lambda: has_records(three[number]), "something to damage")
        three[number].stop()  # with a checkpoint
        flip_a_byte(first_segment(three[number]), at)
        three.start(number)
        eventually(lambda: in_sync_everywhere(three, "kept"), "three replicas")
        if leads_it:
            lead_by(three, number)
        assert scrub(three[number]) == 1
        eventually(lambda: votes_again(three[number]), "it votes as another one")
        eventually(lambda: damages_told(three[number]) == 0, "nobody is alarmed any more")
        load.wait_progress()
        eventually(lambda: in_sync_everywhere(three, "kept"), "three replicas")
        other = number % 3 + 1
        three[other].kill()
        load.wait_progress()
    load.check(three[number].bootstrap)
    three[number].stop()
    assert scrub(three[number]) == 0
    [aside] = (three[number].data_folder / "lost+found").iterdir()
    assert aside.name.startswith("kept-0.")


@pytest.mark.parametrize("is_running", [False, True])
def test_a_replica_that_lost_a_sealed_segment_begins_anew_from_another(three: Cluster, *, is_running: bool):
    """While its node ran, or before that was started again, so that no list of its segments has it."""
    create_topic(three.bootstrap, "kept", 1, replicas=3)
    small = ConfigResource(ResourceType.TOPIC, "kept", incremental_configs=[
        ConfigEntry("segment.bytes", str(1 << 20), incremental_operation=AlterConfigOpType.SET),
    ])  # fmt: skip
    client = admin(three.bootstrap)  # kept until the answer is there
    client.incremental_alter_configs([small])[small].result(PATIENCE_S)
    with Load(three.bootstrap, "kept", 1, digits=4_000) as load:
        load.wait_progress()
        eventually(lambda: in_sync_everywhere(three, "kept"), "three replicas")
        number = leads(three, "kept") % 3 + 1
        node = three[number]
        eventually(lambda: len(segments(node)) > 3, "segments that are sealed")
        node.stop()  # with a checkpoint
        lost = segments(node)[1]
        if not is_running:
            lost.unlink()
        three.start(number)
        eventually(lambda: in_sync_everywhere(three, "kept"), "three replicas")
        lost.unlink(missing_ok=True)
        assert scrub(node) == 1
        eventually(lambda: votes_again(node), "it votes as another one")
        eventually(lambda: in_sync_everywhere(three, "kept"), "three replicas")
        three[number % 3 + 1].kill()
        load.wait_progress()
    load.check(node.bootstrap)
    node.stop()
    assert scrub(node) == 0


def segments(node: Node) -> list[Path]:
    return sorted((node.data_folder / "topics" / "kept-0").glob("*.log"))
