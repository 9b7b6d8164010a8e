"""What a core does of partitions at rest, which C carries: nothing that need not be done."""

import uuid
from collections import Counter
from types import SimpleNamespace

from tests.raft.cluster import Cluster as RaftCluster
from tpc_broker.metadata.image import ClusterImage
from tpc_broker.model import CoreId, NodeId, PartitionIndex, TopicId, TopicPartition
from tpc_broker.node.replicas.core_replicas import CoreReplicas, group_of
from tpc_broker.node.replicas.followers import ReplicaFollowers
from tpc_broker.node.replicas.log_starts import LOOKS_AT_ONCE, LogStarts
from tpc_broker.node.replicas.replica_counters import replica_counters
from tpc_broker.node.replicas.steady_carrier import LOOKS_A_TURN, AwakeGroups, SteadyCarrier
from tpc_broker.node.replicas.voter_changes import VoterChanges
from tpc_broker.raft.items import Voter, simple

KEY = TopicPartition(TopicId(uuid.UUID(int=5)), PartitionIndex(0))
VOTERS = frozenset(Voter(NodeId(number), 1) for number in range(3))


def replicas_with(groups: dict, *keys: TopicPartition) -> CoreReplicas:
    made = CoreReplicas(CoreId(0), SimpleNamespace(), SimpleNamespace(), SimpleNamespace(monotonic_ms=lambda: 0))
    made.groups = groups
    for handle, key in enumerate(keys):
        made.add(key, handle)
    return made


def machine_of(asked: list, *, carried: bool = True) -> SimpleNamespace:
    def in_touch():
        asked.append("in touch")
        return [Voter(NodeId(1), 1)]

    return SimpleNamespace(
        is_leader=True, carried=carried, carries=1, term=4, in_touch=in_touch, config=simple(VOTERS), target=None,
        learners=frozenset(), group=group_of(KEY),
    )  # fmt: skip


def followers_of(replicas: CoreReplicas, core: SimpleNamespace, led: list) -> ReplicaFollowers:
    made = ReplicaFollowers(replicas, led)
    made.begin(SimpleNamespace(core=core, carrier=SimpleNamespace(watch_awake=lambda: AwakeGroups(core))))
    return made


def test_who_is_in_sync_of_a_carried_leader_is_found_again_when_links_or_the_group_have_changed():
    asked: list = []
    machine = machine_of(asked)
    core = SimpleNamespace(groups={group_of(KEY): machine}, links_changed=0)
    made = followers_of(replicas_with(core.groups), core, [KEY])

    def change(what):
        asked.clear()
        what()
        assert made.in_sync(KEY) == (NodeId(1),)
        return len(asked)

    assert change(lambda: None) == 1
    assert change(lambda: None) == 0
    assert change(lambda: setattr(core, "links_changed", 1)) == 1
    assert change(lambda: setattr(machine, "carries", 2)) == 1
    assert change(lambda: setattr(machine, "term", 5)) == 1
    assert change(lambda: None) == 0
    assert change(lambda: setattr(machine, "carried", False)) == 1
    assert change(lambda: setattr(machine, "carried", True)) == 1


def test_who_is_in_sync_is_asked_where_machines_were_awake_or_after_a_change_of_links():
    keys = [TopicPartition(KEY.topic_id, PartitionIndex(number)) for number in range(3)]
    machines = [machine_of([]) for _ in keys]
    core = SimpleNamespace(groups=dict(zip(map(group_of, keys), machines, strict=True)), links_changed=0)
    replicas = replicas_with(core.groups, *keys)
    made = followers_of(replicas, core, keys)

    def change(what):
        what()
        return list(made.perhaps_in_sync())

    def wake(number):
        machines[number].carried = False
        made._awake.add(group_of(keys[number]))

    assert change(lambda: None) == keys, "nobody has looked before"
    assert change(lambda: None) == []
    assert change(lambda: wake(1)) == [keys[1]]
    assert change(lambda: None) == [keys[1]], "it is awake still"
    assert change(lambda: setattr(machines[1], "carried", True)) == [keys[1]], "it was awake since"
    assert change(lambda: None) == []
    assert change(lambda: setattr(core, "links_changed", 1)) == keys
    assert change(lambda: None) == []
    wake(2)
    assert change(lambda: replicas.remove(keys[2])) == [], "it is here no more"


def test_voters_are_looked_at_until_they_are_as_wanted_and_when_machines_were_awake_or_metadata_are_others():
    other = TopicPartition(KEY.topic_id, PartitionIndex(1))
    wanted: dict = {KEY: VOTERS, other: None}

    class Told(VoterChanges):
        def wanted_voters(self, key):
            return wanted[key]

    made, machines = Told(SimpleNamespace()), {KEY: machine_of([]), other: machine_of([])}

    def change(what, *awake):
        what()
        due = made.due(machines, awake)
        made.look([(key, machines[key]) for key in due], 0)
        return due

    assert change(lambda: None) == [KEY, other]
    assert change(lambda: None) == [other], "nobody knows who is to vote"
    assert change(lambda: wanted.update({other: VOTERS})) == [other]
    assert change(lambda: None) == []
    assert change(lambda: None, KEY) == [KEY]
    assert change(lambda: machines[KEY].__setattr__("carried", False), KEY) == [KEY]
    assert change(lambda: None) == [], "it is as it should be, carried or not"
    assert change(lambda: machines.pop(KEY)) == [], "it is led here no more"
    assert change(lambda: setattr(made, "image", ClusterImage())) == [], "nothing of it is another"
    topics = {other.topic_id: SimpleNamespace(name="of both", topic_id=other.topic_id, partitions_count=2)}
    assert change(lambda: setattr(made, "image", ClusterImage(topics=topics))) == [other]
    assert change(lambda: setattr(made, "image", ClusterImage(topics=dict(topics)))) == []
    nodes = {NodeId(4): SimpleNamespace(incarnation=1)}
    assert change(lambda: setattr(made, "image", ClusterImage(topics=topics, nodes=nodes))) == [other]


def test_voters_that_are_as_wanted_are_looked_at_again_when_the_metadata_or_the_group_have_changed():
    looks: list = []

    class Counted(VoterChanges):
        def wanted_voters(self, key):
            looks.append(key)
            return VOTERS

    made, machine = Counted(SimpleNamespace()), machine_of([])

    def change(what):
        looks.clear()
        what()
        made.look([(KEY, machine)], 0)
        return len(looks)

    assert change(lambda: None) >= 1
    assert change(lambda: None) == 0
    assert change(lambda: setattr(made, "image", ClusterImage())) == 0, "nothing of it is another"
    nodes = {NodeId(4): SimpleNamespace(incarnation=1)}
    assert change(lambda: setattr(made, "image", ClusterImage(nodes=nodes))) >= 1
    assert change(lambda: None) == 0
    assert change(lambda: setattr(made, "image", ClusterImage(nodes=dict(nodes)))) == 0
    topics = {KEY.topic_id: SimpleNamespace(name="another")}
    assert change(lambda: setattr(made, "image", ClusterImage(nodes=nodes, topics=topics))) >= 1
    assert change(lambda: setattr(machine, "config", simple(VOTERS))) >= 1
    assert change(lambda: setattr(machine, "carried", False)) == 0, "it is as it should be, carried or not"


def test_starts_of_logs_are_looked_at_in_turn():
    keys = [TopicPartition(TopicId(uuid.UUID(int=7)), PartitionIndex(number)) for number in range(LOOKS_AT_ONCE + 5)]
    looked: list = []
    replicas = replicas_with({})
    replicas.bounds_of = looked.append
    starts = LogStarts(replicas)

    def look():
        looked.clear()
        _finish(starts.tell(keys))
        return len(looked)

    assert [look(), look(), look()] == [LOOKS_AT_ONCE, 5, LOOKS_AT_ONCE]


def _finish(coroutine) -> None:
    """Of one that waits for nothing."""
    try:
        coroutine.send(None)
    except StopIteration:
        return
    raise AssertionError("it waits")


def test_of_many_groups_that_become_quiet_together_each_turn_gives_some_away():
    names = [f"group {number}" for number in range(LOOKS_A_TURN + 10)]
    given: list = []
    made = object.__new__(SteadyCarrier)
    machine = SimpleNamespace(carried=False, steady=object(), may_be_carried=lambda: True)
    made._core = SimpleNamespace(groups=dict.fromkeys(names, machine))
    made._candidates = dict.fromkeys(names, 0)
    made._give = lambda group, _machine: given.append(group) or True
    assert made.carry(lambda _group: True, 1_000) == 0, "others are due"
    assert given == names[:LOOKS_A_TURN]
    assert made.carry(lambda _group: True, 1_000) is None
    assert given == names


def test_who_counts_replicas_asks_nobody_who_carries_them():
    cluster = RaftCluster(groups=2)
    for group, number in enumerate((0, 1)):
        cluster.hand_to(number, group)
    cluster.run(2_000)
    core, looked = cluster.nodes[0].core, []
    core.observer = looked.append
    for group in range(2):
        core.group(group).carry()
    driver = SimpleNamespace(
        core=core, ended=Counter(), refusing=0, commits=0, uncommitted=lambda machine: 5 + machine.group,
        carrier=SimpleNamespace(statistics=lambda: {"sent_bytes": 0, "taken_bytes": 0, "commits": 0}),
    )  # fmt: skip
    links = SimpleNamespace(numbers=lambda: {"sent_bytes": 0, "received_bytes": 0})
    found = replica_counters(driver, links, cluster.now_ms)
    assert (found["leader"], found["follower"], found["leaderless"], found["under_replicated"]) == (1, 1, 0, 0)
    assert found["uncommitted_records"] == 5, "of what is led here"
    assert looked == []
