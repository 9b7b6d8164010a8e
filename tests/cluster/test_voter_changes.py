"""Leaders that change the voters of their groups as the metadata want it, with machines in one process."""

from __future__ import annotations

import uuid
from types import SimpleNamespace

from tests.raft.cluster import GROUP, Cluster
from tpc_broker.broker.pace import rest_after
from tpc_broker.metadata.image import ClusterImage
from tpc_broker.metadata.records import ASKED, CANCELLED, NodeRegistered, ReplicasMoving, TopicCreated
from tpc_broker.metadata.replica_moves import BALANCED, move_done, moving
from tpc_broker.model import CoreId, MetadataVersion, NodeId, PartitionIndex, Replica, TopicId, TopicPartition
from tpc_broker.node.replicas import voter_changes
from tpc_broker.node.replicas.core_replicas import group_of
from tpc_broker.node.replicas.voter_changes import ELECTING_MAX, ELECTING_MS_MAX, VoterChanges
from tpc_broker.raft.items import Voter, simple

KEY = TopicPartition(TopicId(uuid.UUID(int=5)), PartitionIndex(0))
PLACES = [Replica(NodeId(number), CoreId(0)) for number in range(3)]


def voters_of(*numbers: int):
    return simple([Voter(NodeId(number), 0) for number in numbers])


class MovedPartition:
    """Nodes 0 and 1 have a partition. `versions` are the metadata, each node sees one of them."""

    def __init__(self) -> None:
        self.cluster = Cluster(3, groups=0)
        self.cluster.create(GROUP, [0, 1], learners=[2])
        members = [
            NodeRegistered(NodeId(number), 0, 1, "", "1", (f"host{number}", 1), ()) for number in range(3)
        ]  # fmt: skip
        created = TopicCreated(
            "t", KEY.topic_id, (CoreId(0),), 1, replicas=(tuple(PLACES[:2]),), voters=(((0, 0), (1, 0)),)
        )
        self.versions = [ClusterImage().apply([*members, created], MetadataVersion(1))]
        self.changes = [VoterChanges(node.core) for node in self.cluster.nodes]
        for number in range(3):
            self.see(number)

    def write(self, *records) -> None:
        newest = self.versions[-1]
        self.versions.append(newest.apply(records, MetadataVersion(newest.version + 1)))

    def move(self, reason: str, *wanted: int) -> None:
        topic = self.versions[-1].topic_by_id(KEY.topic_id)
        places, version = tuple(PLACES[number] for number in wanted), len(self.versions)
        if reason == ASKED:
            self.write(moving(topic, 0, places, reason, version, version))
        else:
            self.write(
                ReplicasMoving(topic.topic_id, KEY.partition, places, topic.places(0), reason, version, version)
            )

    def see(self, number: int, version: int = -1) -> None:
        self.changes[number].image = self.versions[version]
        self.changes[number].allowed = frozenset({KEY})

    def look(self) -> None:
        for node, changes in zip(self.cluster.nodes, self.changes, strict=True):
            if node.up and node.group().is_leader:
                changes.look([(KEY, node.group())], self.cluster.now_ms)

    def run(self, milliseconds: int = 3_000) -> None:
        for _look in range(milliseconds // 100):
            self.look()
            self.cluster.run(100)

    def confirm(self, number: int) -> None:
        """The controller is asked, and has the newest version."""
        changes = self.changes[number]
        changes.confirm(changes.to_confirm(), self.versions[-1].version)

    def commits(self) -> bool:
        node = self.cluster.elect()
        position = self.cluster.propose(node).position
        self.cluster.run(1_000)
        return node.group().is_leader and node.group().commit >= position


def test_a_move_goes_on_when_the_metadata_are_known_to_be_no_older_than_the_leadership():
    world = MovedPartition()
    world.move(ASKED, 1, 2)
    world.cluster.hand_to(0)
    world.see(0)
    world.see(1)
    world.run()
    assert world.cluster.elect().group().config == voters_of(0, 1), "nobody was asked yet"
    assert world.cluster.nodes[2].group().log.end_offset == world.cluster.nodes[0].group().log.end_offset, "it learns"
    world.confirm(0)
    world.run()
    assert world.cluster.elect().group().config == voters_of(1, 2)
    assert world.commits()


def test_who_has_led_until_others_vote_hears_nothing_of_the_next_leader_but_has_nothing_of_its_epoch_either():
    """So one that says that it leads is known for one that is not heard, and not for one that was lost."""
    world = MovedPartition()
    world.move(ASKED, 1, 2)
    before = world.cluster.hand_to(0).group()
    for number in range(3):
        world.see(number)
    world.look()
    world.confirm(0)
    world.run()
    after = world.cluster.elect().group()
    assert (after.config, before.is_leader) == (voters_of(1, 2), False)
    assert before.fresh_leader(world.cluster.now_ms) is None
    assert before.log.last.epoch < after.term
    world.cluster.nodes[1].crash()
    world.cluster.nodes[2].crash()
    world.cluster.run(5_000)
    assert before.log.last.epoch < after.term


def test_a_confirmation_is_of_one_term():
    world = MovedPartition()
    world.move(ASKED, 1, 2)
    world.cluster.hand_to(0)
    world.see(0)
    world.look()
    terms = world.changes[0].to_confirm()
    world.cluster.hand_to(1)
    world.changes[0].forget(KEY)
    world.cluster.hand_to(0)
    world.look()
    world.changes[0].confirm(terms, world.versions[-1].version)
    world.run()
    assert world.cluster.elect().group().config == voters_of(0, 1)


def test_a_leader_that_has_not_read_that_a_move_was_cancelled_does_not_go_on_with_it():
    """The end of the cancelled move lets node 2 give its files up. When that core starts again it has no replica."""
    world = MovedPartition()
    world.move(ASKED, 1, 2)
    world.see(1)
    world.move(CANCELLED, 0, 1)
    world.see(0)
    leader = world.cluster.hand_to(0)
    world.run(500)
    term = world.changes[0].settled_term(KEY, leader.group())
    assert term is not None
    move = world.versions[-1].topic_by_id(KEY.topic_id).moves[KEY.partition]
    world.cluster.hand_to(1)
    world.run()
    world.confirm(1)
    world.run()
    world.write(*move_done(world.versions[-1], KEY, move.move_id, term))
    assert world.versions[-1].topic_by_id(KEY.topic_id).lives
    world.cluster.nodes[2].crash()
    world.see(0)
    world.see(1)
    world.run()
    assert world.commits()
    assert world.cluster.elect().group().config == voters_of(0, 1)


def six_moves(reason: str = ASKED):
    """Six partitions of nodes 0 and 1, which node 0 leads, get a replica on node 2 as well."""
    cluster, keys = Cluster(3, groups=0), [TopicPartition(KEY.topic_id, PartitionIndex(index)) for index in range(6)]
    members = [NodeRegistered(NodeId(number), 0, 1, "", "1", (f"host{number}", 1), ()) for number in range(3)]
    created = TopicCreated(
        "t", KEY.topic_id, (CoreId(0),) * 6, 1, replicas=(tuple(PLACES[:2]),) * 6, voters=(((0, 0), (1, 0)),) * 6
    )
    image = ClusterImage().apply([*members, created], MetadataVersion(1))
    topic = image.topic_by_id(KEY.topic_id)
    assert topic is not None
    image = image.apply([moving(topic, index, tuple(PLACES), reason, index, index) for index in range(6)], 2)
    for key in keys:
        cluster.create(group_of(key), [0, 1], learners=[2])
        cluster.hand_to(0, group_of(key))
    changes = VoterChanges(cluster.nodes[0].core)
    changes.image, changes.allowed = image, frozenset(keys)
    return cluster, changes, [(key, cluster.nodes[0].group(group_of(key))) for key in keys]


def test_few_groups_of_a_core_elect_for_a_change_at_a_time_and_the_others_are_looked_at_soon():
    cluster, changes, machines = six_moves()
    looks = 0
    while not all(machine.is_leader and machine.config == voters_of(0, 1, 2) for _key, machine in machines):
        changes.look(machines, cluster.now_ms)
        electing = [machine for _key, machine in machines if machine.target is not None]
        assert len(electing) <= ELECTING_MAX
        waiting = [machine for _key, machine in machines if machine.config == voters_of(0, 1)]
        assert changes.waits_for_turn == (len(electing) == ELECTING_MAX and len(waiting) > len(electing))
        changes.confirm(changes.to_confirm(), changes.image.version)
        cluster.run(20 if looks else 500)
        looks += 1
        assert looks < 100
    changes.look(machines, cluster.now_ms)
    assert not changes.waits_for_turn


def test_groups_that_are_carried_while_others_learn_are_among_those_that_change(monkeypatch):
    monkeypatch.setattr(voter_changes, "CHANGES_MAX", 2)
    cluster, changes, machines = six_moves()
    changes.look(machines, cluster.now_ms)
    learning = [machine for _key, machine in machines if machine.learners]
    assert len(learning) == 2
    cluster.run(500)
    for machine in learning:
        assert machine.may_be_carried()
        machine.carry()
    changes.look(machines, cluster.now_ms)
    assert [machine for _key, machine in machines if machine.learners] == learning


def test_what_is_as_it_should_be_is_worked_out_once_also_before_it_is_carried(monkeypatch):
    """Thousands of new groups are led for a while before they are carried, and there is a look twice a second."""
    cluster, changes, machines = six_moves()
    topic = changes.image.topic_by_id(KEY.topic_id)
    moved, still = machines[0], machines[1:]
    changes.image = changes.image.apply(
        [moving(topic, key.partition, tuple(PLACES[:2]), CANCELLED, 9, 9) for key, _machine in still],
        MetadataVersion(3),
    )
    asked = []
    find = changes.wanted_voters
    monkeypatch.setattr(changes, "wanted_voters", lambda key: asked.append(key) or find(key))
    changes.look(still, cluster.now_ms)
    assert sorted(set(asked)) == [key for key, _machine in still]
    assert not any(machine.carried for _key, machine in machines)
    asked.clear()
    changes.look(machines, cluster.now_ms)
    assert set(asked) == {moved[0]}, "it alone changes"
    key, machine = still[0]
    topic = changes.image.topic_by_id(KEY.topic_id)
    changes.image = changes.image.apply(
        [moving(topic, key.partition, tuple(PLACES), ASKED, 10, 10)], MetadataVersion(4)
    )
    changes.look([(key, machine)], cluster.now_ms)
    assert machine.learners, "its topic is another"


def test_a_change_that_comes_to_nothing_holds_up_the_others_for_a_while_only():
    """Whoever is asked for these terms answers nothing."""
    cluster, changes, machines = six_moves()
    for _look in range(2):
        changes.look(machines, cluster.now_ms)
        changes.confirm(changes.to_confirm(), changes.image.version)
        cluster.run(500)
    begun: list[object] = []
    changes._core = SimpleNamespace(
        change_voters=lambda group, _voters, _now_ms: begun.append(group),
        set_learners=lambda *_: None, abort_change=lambda *_: None,
    )  # fmt: skip
    changes.look(machines, cluster.now_ms)
    assert len(begun) == ELECTING_MAX
    for _key, machine in machines:
        machine.target = frozenset() if machine.group in begun else None
    for waited_ms, count, waits in ((ELECTING_MS_MAX - 100, ELECTING_MAX, True), (100, 2 * ELECTING_MAX, False)):
        cluster.run(waited_ms)
        changes.look(machines, cluster.now_ms)
        assert (len(begun), changes.waits_for_turn) == (count, waits)


def test_moves_that_can_wait_elect_one_at_a_time_and_rest_in_between():
    """For a small share of the time a core holds up what is produced to it."""
    cluster, changes, machines = six_moves(reason=BALANCED)
    begun_ms: list[int] = []
    ended_ms: list[int] = []
    electing: list[object] = []
    give_up_ms = cluster.now_ms + 60_000
    while not all(machine.is_leader and machine.config == voters_of(0, 1, 2) for _key, machine in machines):
        changes.look(machines, cluster.now_ms)
        now = [key for key, machine in machines if machine.target is not None or machine.config.is_joint]
        begun_ms += [cluster.now_ms] * len(set(now) - set(electing))
        ended_ms += [cluster.now_ms] * len(set(electing) - set(now))
        electing = now
        assert len(electing) <= 1
        changes.confirm(changes.to_confirm(), changes.image.version)
        wait_s = changes.look_again_s(cluster.now_ms)
        cluster.run(500 if wait_s is None else max(int(wait_s * 1000), 1))
        assert cluster.now_ms < give_up_ms
    assert len(begun_ms) == 6
    for began, ended, following in zip(begun_ms, ended_ms, begun_ms[1:], strict=False):
        assert following - ended >= rest_after((ended - began) / 1000) * 1000 - 1
    changes.look(machines, cluster.now_ms)
    changes.look(machines, cluster.now_ms)
    assert changes.look_again_s(cluster.now_ms) is None


def test_what_is_urgent_waits_for_no_rest():
    cluster, changes, machines = six_moves(reason=BALANCED)
    while not changes._rests_until_ms > cluster.now_ms:
        changes.look(machines, cluster.now_ms)
        changes.confirm(changes.to_confirm(), changes.image.version)
        cluster.run(20)
    waiting = next(key for key, machine in machines if machine.config == voters_of(0, 1))
    topic = changes.image.topic_by_id(KEY.topic_id)
    assert topic is not None
    changes.look(machines, cluster.now_ms)
    assert dict(machines)[waiting].target is None
    changes.image = changes.image.apply([moving(topic, waiting.partition, tuple(PLACES), ASKED, 99, 99)], 3)
    changes.look(machines, cluster.now_ms)
    assert dict(machines)[waiting].target is not None


ABSENT, HEALTHY = 2, 3


def moves_to(*wanted: tuple[int, ...], present: tuple[int, ...] = (0, 1)):
    """Partitions of these nodes, which node 0 leads, get replicas on other nodes, where nothing is yet."""
    cluster, count = Cluster(4, groups=0), len(wanted)
    keys = [TopicPartition(KEY.topic_id, PartitionIndex(index)) for index in range(count)]
    places = [Replica(NodeId(number), CoreId(0)) for number in range(4)]
    members = [NodeRegistered(NodeId(number), 0, 1, "", "1", (f"host{number}", 1), ()) for number in range(4)]
    created = TopicCreated(
        "t", KEY.topic_id, (CoreId(0),) * count, 1, replicas=(tuple(places[node] for node in present),) * count,
        voters=(tuple((node, 0) for node in present),) * count,
    )  # fmt: skip
    image = ClusterImage().apply([*members, created], MetadataVersion(1))
    topic = image.topic_by_id(KEY.topic_id)
    assert topic is not None
    moves = [moving(topic, index, tuple(places[node] for node in nodes), ASKED, index, index)
             for index, nodes in enumerate(wanted)]  # fmt: skip
    for key, nodes in zip(keys, wanted, strict=True):
        cluster.create(group_of(key), present, learners=set(nodes) - set(present))
        cluster.hand_to(0, group_of(key))
    changes = VoterChanges(cluster.nodes[0].core)
    changes.image, changes.allowed = image.apply(moves, MetadataVersion(2)), frozenset(keys)
    return cluster, changes, [(key, cluster.nodes[0].group(group_of(key))) for key in keys]


def go_on(cluster, changes, machines, milliseconds: int = 5_000) -> int:
    """The most groups whose learners were heard at one time."""
    most = 0
    for _look in range(milliseconds // 100):
        changes.look(machines, cluster.now_ms)
        learning = [machine for _key, machine in machines if machine.is_leader and machine.learners
                    and any(machine.is_heard(voter, cluster.now_ms) for voter in machine.learners)]  # fmt: skip
        most = max(most, len(learning))
        changes.confirm(changes.to_confirm(), changes.image.version)
        cluster.run(100)
    return most


def done(machines) -> list[bool]:
    return [not machine.is_leader or (not machine.config.is_joint and len(machine.config.voters) == 3)
            for _key, machine in machines]  # fmt: skip


def test_replicas_that_come_to_a_node_that_is_away_take_no_place_and_get_theirs_when_it_is_back(monkeypatch):
    monkeypatch.setattr(voter_changes, "CHANGES_MAX", 2)
    cluster, changes, machines = moves_to(*[(0, 1, ABSENT)] * 5, *[(0, 1, HEALTHY)] * 5)
    cluster.nodes[ABSENT].crash()
    cluster.run(5_000)
    assert go_on(cluster, changes, machines) == 2
    assert done(machines) == [False] * 5 + [True] * 5
    assert not any(machine.learners for _key, machine in machines), "nobody is there who could learn"
    cluster.nodes[ABSENT].restart()
    assert go_on(cluster, changes, machines) == 2
    assert done(machines) == [True] * 10


def test_learners_whose_node_goes_away_give_their_places_to_others_and_go_on_when_it_is_back(monkeypatch):
    monkeypatch.setattr(voter_changes, "CHANGES_MAX", 2)
    cluster, changes, machines = moves_to(*[(0, 1, ABSENT)] * 3, *[(0, 1, HEALTHY)] * 3)
    changes.look(machines, cluster.now_ms)
    learning = [machine for _key, machine in machines if machine.learners]
    assert learning == [machine for _key, machine in machines[:2]]
    cluster.nodes[ABSENT].crash()
    cluster.run(5_000)
    assert go_on(cluster, changes, machines) == 2
    assert done(machines) == [False] * 3 + [True] * 3
    assert [machine for _key, machine in machines if machine.learners] == learning
    cluster.nodes[ABSENT].restart()
    assert go_on(cluster, changes, machines) <= 2
    assert done(machines) == [True] * 6


def test_who_has_everything_and_waits_for_one_that_is_away_takes_no_place(monkeypatch):
    monkeypatch.setattr(voter_changes, "CHANGES_MAX", 1)
    cluster, changes, machines = moves_to((0, ABSENT, HEALTHY), (0, 1, HEALTHY))
    cluster.nodes[ABSENT].crash()
    cluster.run(5_000)
    changes.look(machines, cluster.now_ms)
    assert [bool(machine.learners) for _key, machine in machines] == [True, False], "one of the two learns"
    go_on(cluster, changes, machines)
    assert done(machines) == [False, True]
    cluster.nodes[ABSENT].restart()
    go_on(cluster, changes, machines)
    assert done(machines) == [True, True]


def test_who_has_everything_and_waits_for_one_that_votes_already_and_is_away_takes_no_place(monkeypatch):
    monkeypatch.setattr(voter_changes, "CHANGES_MAX", 1)
    cluster, changes, machines = moves_to((0, 1, ABSENT, HEALTHY), (0, 1, HEALTHY), present=(0, 1, ABSENT))
    cluster.nodes[ABSENT].crash()
    cluster.run(5_000)
    go_on(cluster, changes, machines)
    assert [len(machine.config.voters) for _key, machine in machines] == [3, 3]
    assert machines[0][1].learners == {Voter(NodeId(HEALTHY), 0)}
    assert machines[1][1].config == voters_of(0, 1, HEALTHY)
    cluster.nodes[ABSENT].restart()
    go_on(cluster, changes, machines)
    assert machines[0][1].config == voters_of(0, 1, ABSENT, HEALTHY)


def test_a_change_that_nobody_comes_by_takes_no_place_while_one_that_stays_is_away(monkeypatch):
    monkeypatch.setattr(voter_changes, "CHANGES_MAX", 1)
    cluster, changes, machines = moves_to((0, 1, HEALTHY), (0, 1, HEALTHY))
    go_on(cluster, changes, machines)
    assert done(machines) == [True, True]
    topic = changes.image.topic_by_id(KEY.topic_id)
    ended = [one for index in range(2) for one in move_done(changes.image, machines[index][0], index, 9)]
    changes.image = changes.image.apply(ended, MetadataVersion(3))
    topic = changes.image.topic_by_id(KEY.topic_id)
    places = [Replica(NodeId(number), CoreId(0)) for number in (0, 1, HEALTHY)]
    changes.image = changes.image.apply(
        [moving(topic, 0, (places[0], places[1]), ASKED, 7, 7), moving(topic, 1, (places[0], places[2]), ASKED, 8, 8)],
        MetadataVersion(4),
    )
    cluster.nodes[1].crash()
    cluster.run(5_000)
    go_on(cluster, changes, machines)
    assert [len(machine.config.voters) for _key, machine in machines] == [3, 2]


def test_a_move_that_goes_elsewhere_takes_a_place_like_any_other(monkeypatch):
    monkeypatch.setattr(voter_changes, "CHANGES_MAX", 1)
    cluster, changes, machines = moves_to((0, 1, ABSENT), (0, 1, HEALTHY))
    changes.look(machines, cluster.now_ms)
    cluster.nodes[ABSENT].crash()
    cluster.run(5_000)
    changes.look(machines, cluster.now_ms)
    assert [len(machine.learners) for _key, machine in machines] == [1, 1]
    topic = changes.image.topic_by_id(KEY.topic_id)
    elsewhere = tuple(Replica(NodeId(number), CoreId(0)) for number in (0, 1, HEALTHY))
    changes.image = changes.image.apply([moving(topic, 0, elsewhere, ASKED, 7, 7)], MetadataVersion(3))
    changes.look(machines, cluster.now_ms)
    assert [len(machine.learners) for _key, machine in machines] == [0, 1], "it learns no more there"
    key = machines[0][0]
    cluster.nodes[HEALTHY].create(group_of(key), Voter(NodeId(HEALTHY), 0), voters_of(0, 1))
    assert go_on(cluster, changes, machines) == 1
    assert done(machines) == [True, True]
