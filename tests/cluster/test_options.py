"""What `serve` refuses of a cluster, each by one line; and what a data directory refuses."""

from __future__ import annotations

import uuid
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.support.broker_process import run_command, run_here
from tests.support.today import now_ms
from tpc_broker.cluster.founding import Founding
from tpc_broker.cluster.raft_codec import decode_entry, encode_entry
from tpc_broker.log.checkpoint import VOTE_NOTE
from tpc_broker.metadata.image import ClusterImage
from tpc_broker.metadata.records import BrokerConfigChanged, NodeAddress, NodeRegistered, NodeRemoved
from tpc_broker.model import CoreId, MetadataVersion, NodeId, PartitionIndex, TopicId, TopicPartition
from tpc_broker.node.membership.identity import IdentityFile, check_directory, core_ended, next_core_boot
from tpc_broker.node.membership.options import parse_address, plan_cluster
from tpc_broker.node.metadata.metadata_group import certain_voters
from tpc_broker.node.metadata.voters import wanted_voters
from tpc_broker.node.replicas.core_replicas import group_of
from tpc_broker.node.replicas.replica_lives import ReplicaLives, hand_lives_over
from tpc_broker.operations.repair_found import groups_of
from tpc_broker.options import ClusterOptions, StartError
from tpc_broker.raft.items import Config, Marker, Voter, simple
from tpc_broker.raft.journal import MarkerEntry, VoteEntry
from tpc_broker.storage.recovery.handover import Given

GOOD = {"cluster": "127.0.0.1:9000", "seeds": "127.0.0.1:9000,127.0.0.1:9001", "node_id": 1}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"cluster": None}, "--node-id goes with --cluster"),
        ({"node_id": None}, "--node-id: --cluster needs a number"),
        ({"node_id": -1}, "--node-id -1: --cluster needs a number from 0"),
        ({"node_id": 2**31}, "another one for each node"),
        ({"seeds": None}, "--cluster needs --seeds"),
        ({"seeds": "127.0.0.1:9000"}, "names this node alone"),
        ({"seeds": "127.0.0.1:9000,there"}, "--seeds there: expected HOST:PORT"),
        ({"seeds": ",".join(f"h:{n}" for n in range(1, 70))}, "at most 64 are allowed"),
        ({"seeds": "127.0.0.1:9000,broker..svc:9092"}, "--seeds broker..svc:9092: no host has such a name"),
        ({"seeds": f"127.0.0.1:9000,{'b' * 64}.svc:9092"}, "b.svc:9092: no host has such a name"),
        ({"seeds": "127.0.0.1:9000,broker\udc80:9092"}, "--seeds broker\udc80:9092: no host has such a name"),
        ({"cluster": ".svc:9000"}, "--cluster .svc:9000: no host has such a name"),
        ({"cluster": "127.0.0.1"}, "--cluster 127.0.0.1: expected HOST:PORT"),
        ({"cluster": "127.0.0.1:0"}, "from 1 to 65535"),
        ({"cluster": "::1:9000"}, "expected HOST:PORT"),
        ({"cluster": "0.0.0.0:9000"}, "must be an address of this host"),
        ({"cluster": "127.0.0.1:65535"}, "choose a lower port"),
        ({"cluster": "192.0.2.1:9000"}, "listens on loopback only"),
        ({"rack": "r" * 65}, "at most 64 are allowed"),
        ({"cluster_secret": "/nowhere/at/all"}, "--cluster-secret /nowhere/at/all: No such file"),
    ],
)
def test_what_is_wrong_is_named(changes, said):
    with pytest.raises(StartError, match=said.replace("(", r"\(")) as refused:
        plan_cluster({**GOOD, **changes}, 2)
    assert "\n" not in str(refused.value)


def test_what_is_right(tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("0123456789abcdef")
    secret.chmod(0o600)
    found = plan_cluster({**GOOD, "cluster": "[::1]:9000", "rack": "a", "cluster_secret": secret}, 2)
    assert found == ClusterOptions(
        1, ("::1", 9000), (("127.0.0.1", 9000), ("127.0.0.1", 9001)), "a", str(secret.resolve())
    )
    assert str(parse_address("x", "[::1]:9000")) == "[::1]:9000"
    for name in ("broker.svc.", f"{'b' * 63}.svc", "b\u00fccher.svc"):
        assert parse_address("x", f"{name}:9000") == (name, 9000)
    assert plan_cluster({}, 2) is None


@pytest.mark.parametrize(("text", "mode", "said"), [("short", 0o600, "16 to 1024"), ("x" * 20, 0o644, "chmod 600")])
def test_a_secret_that_is_none_or_that_others_read(tmp_path, text, mode, said):
    secret = tmp_path / "secret"
    secret.write_text(text)
    secret.chmod(mode)
    with pytest.raises(StartError, match=said):
        plan_cluster({**GOOD, "cluster_secret": str(secret)}, 2)


def test_the_command_says_one_line(tmp_path):
    done = run_command("serve", "--data", str(tmp_path / "d"), "--cluster", "192.0.2.1:9000", "--node-id", "1",
                       "--seeds", "192.0.2.1:9000,192.0.2.2:9000", "--cores", "1")  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "without --cluster-secret FILE" in done.stderr


def node_directory(data: Path, *, joined: bool, level: int = 3) -> None:
    file = IdentityFile(data)
    file.open(1, 2)
    file.is_at_level(level)
    if joined:
        file.joined(Founding("the-cluster", (Voter(1, file.identity.incarnation),)))


def test_a_directory_is_one_node_of_one_cluster(tmp_path):
    options = ClusterOptions(1, ("127.0.0.1", 9000), (), "", "")
    check_directory(tmp_path, None, 2)
    node_directory(tmp_path, joined=False)
    check_directory(tmp_path, None, 2)
    node_directory(tmp_path, joined=True)
    check_directory(tmp_path, options, 2)
    with pytest.raises(StartError, match="node 1's of cluster the-cluster: start it with --cluster"):
        check_directory(tmp_path, None, 2)
    check_directory(tmp_path, options, 3)
    check_directory(tmp_path, options, 1)
    with pytest.raises(StartError, match="is node 1's data directory, not node 2's"):
        check_directory(tmp_path, ClusterOptions(2, ("127.0.0.1", 9000), (), "", ""), 2)


def test_fewer_cores_need_a_cluster_that_knows_of_them(tmp_path):
    """A controller of an earlier release would refuse the node when its data are handed over already."""
    options = ClusterOptions(1, ("127.0.0.1", 9000), (), "", "")
    node_directory(tmp_path, joined=True, level=2)
    check_directory(tmp_path, options, 3)
    with pytest.raises(StartError, match=r"with 2 cores; --cores 1 is possible from tpc\.version=3 on, and the clust"):
        check_directory(tmp_path, options, 1)


def test_what_the_metadata_have_to_hear_of_cores_outlives_a_start(tmp_path):
    node_directory(tmp_path, joined=True)
    incarnation = IdentityFile(tmp_path).read().incarnation
    assert IdentityFile(tmp_path).hands_over(3).counts_to_tell == ()
    assert IdentityFile(tmp_path).open(1, 3).counts_to_tell == ()
    for cores, told in ((2, (2,)), (4, (2,)), (1, (2, 1))):
        assert IdentityFile(tmp_path).hands_over(cores).counts_to_tell == told
        file = IdentityFile(tmp_path)
        assert file.open(1, cores).counts_to_tell == told
    file.counts_told()
    found = IdentityFile(tmp_path).read()
    assert (found.counts_to_tell, found.cores, found.incarnation) == ((), 1, incarnation)


def test_a_core_whose_promises_others_have_needs_no_journal_and_counts_its_starts_on(tmp_path):
    node_directory(tmp_path, joined=True)
    options = ClusterOptions(1, ("127.0.0.1", 9000), (), "", "")
    before = next_core_boot(tmp_path, 1, MetadataVersion(70))
    (tmp_path / "journals").mkdir()
    with pytest.raises(StartError, match=r"0001\.journal is gone"):
        check_directory(tmp_path, options, 1)
    for _each in range(2):
        core_ended(tmp_path, 1)
        check_directory(tmp_path, options, 1)
    assert next_core_boot(tmp_path, 1, MetadataVersion(8)) > before
    with pytest.raises(StartError, match=r"0001\.journal is gone"):
        check_directory(tmp_path, options, 2)


def test_a_replica_that_another_core_takes_over_is_the_voter_that_it_was(tmp_path):
    """Else the core would take its files for another one's, and remove them."""
    node_directory(tmp_path, joined=True)
    keys = [TopicPartition(TopicId(uuid.UUID(int=1)), PartitionIndex(index)) for index in range(3)]
    before = [ReplicaLives(tmp_path, core) for core in range(3)]
    before[1].begin_blocking({group_of(keys[0]): 3})
    before[0].begin_blocking({group_of(keys[1]): 2})  # it was there once, in an earlier life
    before[0].begin_blocking({group_of(keys[2]): 5})
    given = [Given(keys[0], CoreId(1), CoreId(0)), Given(keys[1], CoreId(2), CoreId(0))]
    for _each in range(2):
        hand_lives_over(tmp_path, given, group_of)
        assert [ReplicaLives(tmp_path, 0).of(group_of(key)) for key in keys] == [3, 0, 5]


def test_boots_rise_and_an_incarnation_stays(tmp_path):
    lives = [IdentityFile(tmp_path).open(1, 2) for _ in range(3)]
    assert len({life.incarnation for life in lives}) == 1
    assert lives[0].boot < lives[1].boot < lives[2].boot
    (tmp_path / "cluster" / "node.json").unlink()
    assert IdentityFile(tmp_path).open(1, 2).incarnation != lives[0].incarnation


def test_a_damaged_identity_is_refused(tmp_path):
    node_directory(tmp_path, joined=True)
    (tmp_path / "cluster" / "node.json").write_text("{")
    with pytest.raises(StartError, match="cannot be read"):
        check_directory(tmp_path, None, 2)


def registered(*incarnations: int, draining=(), removed=()) -> ClusterImage:
    records: list = [
        NodeRegistered(node, incarnation, 1, "", "", NodeAddress("h", 1), ())
        for node, incarnation in enumerate(incarnations, start=1)
    ]
    records += [BrokerConfigChanged(node * 1024, "node.draining", "true") for node in draining]
    records += [NodeRemoved(node, incarnation) for node, incarnation in removed]
    return ClusterImage().apply(records, MetadataVersion(len(records)))


def test_who_should_vote():
    def wanted(present, image, gone=()):
        voters = frozenset(Voter(*each) for each in present)
        return sorted(wanted_voters(voters, image, lambda node: node not in gone))

    two, three = [(1, 10), (2, 20)], [(1, 10), (2, 20), (3, 30)]
    assert wanted(two, registered(10, 20)) == two
    assert wanted(two, registered(10, 20, 30)) == three
    assert wanted(two, registered(10, 20, 30), gone={3}) == two
    assert wanted(three, registered(10, 20, 30), gone={1, 2}) == three, "nobody loses its vote for being away"
    assert wanted(three, registered(10, 21, 30)) == [(1, 10), (2, 21), (3, 30)], "another directory, another voter"
    assert wanted(three, registered(10, 21, 30), gone={2}) == three
    assert wanted(three, registered(10, 20, 30, 40)) == three, "an even number tolerates no more"
    assert len(wanted(three, registered(10, 20, 30, 40, 50))) == 5
    assert wanted(three, registered(10, 20, 30, removed=[(3, 30)])) == two, "who was removed has no vote"
    assert wanted(three, registered(10, 20, 30, 40, removed=[(3, 30)])) == [*two, (4, 40)], "and is replaced"
    assert wanted(three, registered(10, 20, 30, 40, removed=[(3, 30)]), gone={4}) == two
    assert wanted(three, registered(10, 20, 30, 40, draining=[1])) == [(2, 20), (3, 30), (4, 40)]
    assert wanted(three, registered(10, 20, 30, draining=[1])) == three, "two tolerate no more than three"
    five = [(node, 10 * node) for node in range(1, 6)]
    assert wanted(five, registered(10, 20, 30, 40, 50, draining=[4, 5])) == five[:3]
    assert wanted(five, registered(10, 20, 30, 40, 50, draining=[5])) == five, "four tolerate no more than five"
    assert wanted(three, registered(10, 20, 30, 40, draining=[4], removed=[(3, 30)])) == two, "it is about to go"
    assert len(wanted(three, registered(10, 20, 30, 40, 50, 60, 70))) == 5


def test_what_knows_only_a_broker_without_a_cluster_refuses_a_nodes_directory(tmp_path):
    data = tmp_path / "data"
    (data / "journals").mkdir(parents=True)
    (data / "topics").mkdir()
    (data / ".lock").touch()
    node_directory(data, joined=True)
    done = run_here("repair", "--rebuild-metadata", "--apply", "--data", str(data))
    assert done.returncode == 2, done
    assert "node 1's of cluster the-cluster, whose metadata its voters have" in done.stderr
    done = run_here("backup", str(tmp_path / "copy"), "--data", str(data))
    assert done.returncode == 2, done
    assert done.stderr == (
        f"tpc-broker: {data} is node 1's of cluster the-cluster, and does not run: the cluster's metadata are not in "
        "it. Start it first; nothing was copied\n"
    )
    assert not (tmp_path / "copy").exists()


def test_a_journal_that_is_gone_ends_the_start_of_a_node_whose_core_had_replicas(tmp_path):
    node_directory(tmp_path, joined=True)
    options = ClusterOptions(1, ("127.0.0.1", 9000), (), "", "")
    first = [next_core_boot(tmp_path, core, MetadataVersion(7)) for core in (0, 1)]
    assert all(next_core_boot(tmp_path, core, MetadataVersion(7)) > before for core, before in enumerate(first))
    again = [next_core_boot(tmp_path, 0, MetadataVersion(7)) for _ in range(100)]
    (tmp_path / "empty" / "cluster").mkdir(parents=True)
    assert next_core_boot(tmp_path / "empty", 0, MetadataVersion(8)) > again[-1] > now_ms()
    (tmp_path / "journals").mkdir()
    for core in (0, 1):
        (tmp_path / "journals" / f"000{core}.journal").touch()
    check_directory(tmp_path, options, 2)
    (tmp_path / "journals" / "0001.journal").unlink()
    with pytest.raises(StartError, match=r"0001\.journal is gone, .* to others: start it with an empty --data"):
        check_directory(tmp_path, options, 2)


def test_a_replica_that_has_lost_something_is_not_brought_back(tmp_path):
    """Where others vote, too. Where nobody does it begins anew in the term after all that it knows of."""
    node_directory(tmp_path, joined=True)
    identity = IdentityFile(tmp_path).read()
    me, other = Voter(NodeId(identity.node), identity.incarnation), Voter(NodeId(9), 9)

    def found(name, *configs, known=True):
        key = TopicPartition(TopicId(uuid.UUID(int=1)), PartitionIndex(len(configs)))
        notes = {
            term: encode_entry(MarkerEntry(group_of(key), Marker(term, 0, config)))
            for term, config in enumerate(configs, start=1)
        }
        notes |= {VOTE_NOTE: encode_entry(VoteEntry(group_of(key), len(configs), None))} if configs else {}
        offline = SimpleNamespace(key=key, checkpoint=SimpleNamespace() if known else None)
        return SimpleNamespace(label=f"{name}-0", core=0, offline=offline, notes=notes, is_open=False)

    alone, several = found("alone"), simple([me, other])
    mine = found("mine", several, simple([me]))
    groups = groups_of(tmp_path, [alone, mine])
    assert list(groups) == [mine.offline.key]
    marker = decode_entry("g", groups[mine.offline.key](7, 20)).entry.marker
    assert marker == Marker(7, 20, simple([me]))
    for replica in (
        found("kept", simple([me]), several), found("kept", several),
        found("kept", Config(several.new, simple([me]).new)),
        found("kept", simple([other])), found("kept", simple([me._replace(incarnation=1)])),
        found("kept", simple([me]), known=False), found("kept", known=False),
    ):  # fmt: skip
        with pytest.raises(StartError, match="kept-0 may have replicas on other nodes"):
            groups_of(tmp_path, [alone, mine, replica])


def test_who_votes_whatever_becomes_of_a_change():
    def voters(*incarnations: int) -> frozenset[Voter]:
        return frozenset(Voter(node, incarnation) for node, incarnation in enumerate(incarnations, start=1))

    old, new = voters(10, 20, 30), voters(10, 20, 31)
    before, joint, after = simple(old), Config(old, new), simple(new)
    emptied = registered(10, 20, 31)
    assert certain_voters([before], registered(10, 20, 30)) == {1, 2, 3}
    assert certain_voters([before], registered()) == {1, 2, 3}, "nobody is registered yet"
    assert certain_voters([before], emptied) == {1, 2}, "its vote is on a disk that is gone"
    assert certain_voters([joint], emptied) == {1, 2}
    assert certain_voters([after, joint], emptied) == {1, 2}, "what is not committed may vanish"
    assert certain_voters([after], emptied) == {1, 2, 3}
    assert certain_voters([Config(voters(10, 20), voters(10, 20, 30))], registered(10, 20, 30)) == {1, 2}
    assert certain_voters([], emptied) == set()


def test_with_an_authorizer_links_are_encrypted_or_the_node_does_not_start(tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("0123456789abcdef")
    secret.chmod(0o600)
    with_secret = {**GOOD, "cluster_secret": str(secret)}
    assert plan_cluster(with_secret, 1).encryption == "auto"
    for given in ("auto", "required"):
        assert plan_cluster(with_secret, 1, given, is_authorizing=True).encryption == "required"
    for arguments, given in ((with_secret, "off"), ({**GOOD, "cluster": "127.0.0.1:9000"}, "auto")):
        with pytest.raises(StartError, match=r"authorizer\.class\.name: in a cluster nodes tell each other who asks"):
            plan_cluster(arguments, 1, given, is_authorizing=True)


def test_what_is_required_and_cannot_be_is_refused():
    with pytest.raises(StartError, match=r"cluster\.links\.encryption=required: the key comes from --cluster-secret"):
        plan_cluster(GOOD, 1, "required")
