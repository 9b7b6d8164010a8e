"""Members of groups, as client libraries are them, and what a group promises them.

A member joins, is told its partitions, asks where each of them stands, commits offsets that rise, and says that it
lives. It leaves, or falls silent: a process that stood still and believes itself a member, one that died and comes back
as another member (with a static membership under its old name), or never. What no answer may show fails the run at
once:

* a partition has one member in a generation, and a member the same partitions whenever it asks;
* whoever was told its partitions begins a generation: commits of an older one are refused from then on, and members of
  it are told of the new one by the coordinator that is the newest;
* a committed offset never falls, also not where partitions change hands.

Left alone, the members that live come to one generation, which is Stable and has all partitions given out.
"""

from __future__ import annotations

from collections import defaultdict
from weakref import WeakKeyDictionary

import trio

from tests.simulator.nodes_clients import AGAIN_S, ANSWER_S, NONE, Client
from tpc_broker.broker.group_service import LoadedCoordinator
from tpc_broker.error_codes import ErrorCode
from tpc_broker.kafka import messages

SESSION_S, REBALANCE_S = 6.0, 4.0
WAITED_FOR_S = 12.0
"""For answers to JoinGroup and SyncGroup, which come when others have joined."""
IMPATIENT_S = 1.0
BEAT_S = 1.0
GROUPS = {"members0": 4, "members1": 3}
"""How many members each has; of the second one two are static."""
STATIC = {("members1", 0), ("members1", 1)}
PROTOCOL_TYPE, PROTOCOL = "consumer", "range"


class Truth:
    """What members of one group were told, put together."""

    def __init__(self):
        self.parts: dict[int, dict[str, list[int]]] = defaultdict(dict)
        """By generation and member: partitions."""
        self.newest = -1
        """The newest generation that anybody was told partitions in."""
        self.told: WeakKeyDictionary[LoadedCoordinator, int] = WeakKeyDictionary()
        """The newest generation that a coordinator has told anybody of."""
        self.committed: dict[int, int] = defaultdict(lambda: -1)
        """By partition: the largest offset that was acknowledged, or shown."""
        self.sent: dict[int, int] = defaultdict(lambda: -1)
        self.stale_commits = 0
        """Commits of an older generation that were refused."""


class GroupClient(Client):
    """One that asks the coordinator of a group."""

    def __init__(self, cluster, name, group):
        super().__init__(cluster, name)
        self.group = group
        self._broker = None

    async def ask_coordinator(self, message, version, **how):
        self._broker = self._broker or await self._coordinator()
        return await self.ask(self._broker, message, version, **how)

    async def _coordinator(self):
        asked = messages.FindCoordinatorRequest(key_type=0, coordinator_keys=[self.group])
        answer = await self.ask(self.any_broker(), asked, 4, answer_s=IMPATIENT_S)
        if answer is None or answer.coordinators[0].error_code:
            return None
        return self.cluster.broker(answer.coordinators[0].node_id)

    async def lost(self):
        """Its coordinator: somebody knows another one, soon."""
        self._broker = None
        await self.again()

    async def offsets(self, topic, indexes, **how):
        """What is committed, by partition; None: not answered."""
        kind = messages.OffsetFetchRequest
        topics = [kind.OffsetFetchRequestTopics(name=topic, partition_indexes=list(indexes))]
        asked = kind(groups=[kind.OffsetFetchRequestGroup(group_id=self.group, topics=topics)], require_stable=False)
        answer = await self.ask_coordinator(asked, 8, **how)
        if answer is None or answer.groups[0].error_code:
            return None
        found = answer.groups[0].topics[0].partitions
        if any(one.error_code for one in found):
            return None
        return {one.partition_index: one.committed_offset for one in found}

    async def describe(self):
        """State and number of members; None: not answered."""
        answer = await self.ask_coordinator(messages.DescribeGroupsRequest(groups=[self.group]), 5)
        if answer is None or answer.groups[0].error_code:
            await self.lost()
            return None
        return answer.groups[0].group_state, len(answer.groups[0].members)


class Committer(GroupClient):
    """Commits offsets of a group without members, and asks for them."""

    def __init__(self, cluster, name, group, topic, index):
        super().__init__(cluster, name, group)
        self.topic, self.index = topic, index
        self._offset = 0

    async def commit(self):
        """Once; offsets rise whether it was acknowledged or not."""
        self._offset += 1
        kind = messages.OffsetCommitRequest
        part = kind.OffsetCommitRequestPartition(partition_index=self.index, committed_offset=self._offset)
        topic = kind.OffsetCommitRequestTopic(name=self.topic, partitions=[part])
        asked = kind(group_id=self.group, generation_id_or_member_epoch=-1, member_id="", topics=[topic])
        answer = await self.ask_coordinator(asked, 8, answer_s=self.chance.choice([IMPATIENT_S, ANSWER_S]))
        code = None if answer is None else answer.topics[0].partitions[0].error_code
        if code == NONE:
            self.cluster.promises.committed[self.group, self.topic, self.index] = self._offset
        else:
            await self.lost()

    async def look(self):
        """Whether it was answered."""
        promised = self.cluster.promises.committed.get((self.group, self.topic, self.index), -1)
        found = await self.offsets(self.topic, [self.index])
        if found is None:
            await self.lost()
            return False
        if not promised <= found[self.index] <= self._offset:
            self.cluster.fails(
                f"{self.group}: {promised} was committed, {self._offset} sent, and {found[self.index]} is told"
            )
        return True


class Looker(GroupClient):
    """Asks any core what a group has committed: also one that is its coordinator no more, and may not know."""

    def __init__(self, cluster, name, group, topic, index):
        super().__init__(cluster, name, group)
        self.topic, self.index = topic, index

    async def look(self):
        promised = self.cluster.promises.committed.get((self.group, self.topic, self.index), -1)
        self._broker = self.any_broker()
        found = await self.offsets(self.topic, [self.index], answer_s=IMPATIENT_S)
        if found is not None and found[self.index] < promised:
            self.cluster.fails(f"{self.group}: {promised} was committed, and {found[self.index]} is told")


class Member(GroupClient):
    """`parts`: what it has, as it believes; None: it is no member now."""

    def __init__(self, cluster, truth, group, number, topic, partitions):
        super().__init__(cluster, f"{group} {number}", group)
        self.topic, self.partitions, self._number = topic, partitions, number
        self.instance = f"static{number}" if (group, number) in STATIC else None
        self.truth = truth
        self.member_id, self.generation = "", -1
        self.parts: list[int] | None = None
        self._at: dict[int, int] = {}
        self._silent_until_s, self._forgets, self._leaves = 0.0, False, False
        self.has_ended = self.is_dead = False

    # -- what a schedule does to it ------------------------------------------------------------------------------------

    def fall_silent(self, for_s, *, forgets):
        self._silent_until_s, self._forgets = trio.current_time() + for_s, forgets

    def die(self):
        """For good."""
        self.is_dead = True

    def depart(self, for_s):
        self._silent_until_s, self._leaves = trio.current_time() + for_s, True

    # -- its life ------------------------------------------------------------------------------------------------------

    async def run(self, is_over):
        """Until `is_over`, and then until the group is as it should be."""
        while not self.has_ended:
            if self.is_dead:
                return
            if self._leaves:
                await self._leave()
            while trio.current_time() < self._silent_until_s and not is_over():
                await trio.sleep(0.1)
            if self._forgets:
                self._begin_anew()
            await (self._become_member() if self.parts is None else self._go_on())
        while not await self._look(range(self.partitions)):
            await self.lost()

    def _begin_anew(self):
        self.member_id, self.parts, self._forgets = "", None, False

    async def _go_on(self):
        """What a member does every second; after a silence first what it had in mind before."""
        unknown = [index for index in self.parts if index not in self._at]
        if unknown and not await self._look(unknown):
            await self._beat()
            return
        if self._at and self.chance.random() < 0.7:
            await self._commit()
        if self.parts is not None:
            await self._beat()
            await trio.sleep(BEAT_S * self.chance.uniform(0.3, 1))

    # -- becoming one --------------------------------------------------------------------------------------------------

    async def _become_member(self):
        known = self.truth.newest
        answer = await self._join()
        if answer is None:
            return
        self.member_id, self.generation = answer.member_id, answer.generation_id
        given = []
        if answer.leader == self.member_id and not answer.skip_assignment:
            given = self._divide([one.member_id for one in answer.members])
        answer = await self._sync(given)
        if answer is not None:
            self._take(answer, known)

    async def _join(self):
        kind = messages.JoinGroupRequest
        asked = kind(
            group_id=self.group, session_timeout_ms=int(SESSION_S * 1000), rebalance_timeout_ms=int(REBALANCE_S * 1000),
            member_id=self.member_id, group_instance_id=self.instance, protocol_type=PROTOCOL_TYPE,
            protocols=[kind.JoinGroupRequestProtocol(name=PROTOCOL, metadata=b"m")],
        )  # fmt: skip
        answer = await self.ask_coordinator(asked, 9, answer_s=WAITED_FOR_S)
        code = None if answer is None else ErrorCode(answer.error_code)
        if code is NONE:
            self._note_told(answer.generation_id)
            return answer
        if code is ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = answer.member_id
        elif code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID):
            self.member_id = ""
        else:
            await self.lost()
        return None

    def _divide(self, members):
        kind = messages.SyncGroupRequest
        members = sorted(members)
        self.chance.shuffle(members)
        parts = {one: list(range(self.partitions))[place :: len(members)] for place, one in enumerate(members)}
        return [kind.SyncGroupRequestAssignment(member_id=one, assignment=bytes(got)) for one, got in parts.items()]

    async def _sync(self, given):
        asked = messages.SyncGroupRequest(
            group_id=self.group, generation_id=self.generation, member_id=self.member_id,
            group_instance_id=self.instance, protocol_type=PROTOCOL_TYPE, protocol_name=PROTOCOL, assignments=given,
        )  # fmt: skip
        answer = await self.ask_coordinator(asked, 5, answer_s=WAITED_FOR_S)
        code = None if answer is None else ErrorCode(answer.error_code)
        if code is NONE:
            return answer
        await self._hear(code)
        return None

    def _take(self, answer, known):
        """Partitions in a generation. `known` was the newest that anybody had them in when it began to join."""
        truth, parts = self.truth, list(answer.assignment)
        if self.generation < known and self._asked_newest():
            self._fails(f"is told partitions in generation {self.generation}, where there had been {known}")
        name = self.instance or self.member_id
        before = truth.parts[self.generation].setdefault(name, parts)
        if before != parts:
            self._fails(f"has {parts} in generation {self.generation}, where it had {before}")
        for other, theirs in truth.parts[self.generation].items():
            if other != name and set(theirs) & set(parts):
                self._fails(f"has {parts} in generation {self.generation}, and {other} {theirs}")
        truth.newest = max(truth.newest, self.generation)
        self._note_told(self.generation)
        self.parts, self._at = parts, {}

    # -- being one -----------------------------------------------------------------------------------------------------

    async def _beat(self):
        told, known = self._told(), self.truth.newest
        asked = messages.HeartbeatRequest(
            group_id=self.group, generation_id=self.generation, member_id=self.member_id,
            group_instance_id=self.instance,
        )  # fmt: skip
        answer = await self.ask_coordinator(asked, 4)
        code = None if answer is None else ErrorCode(answer.error_code)
        if code is NONE:
            self._must_not_be_behind(told, "heartbeat")
            if self.generation < known and self._asked_newest():
                self._fails(f"is not told that generation {known} came after its {self.generation}")
        else:
            await self._hear(code)

    async def _commit(self):
        """Once; offsets rise whether it was acknowledged or not."""
        truth, told, known = self.truth, self._told(), self.truth.newest
        index = self.chance.choice(sorted(self._at))
        offset = self._at[index] = self._at[index] + 1
        truth.sent[index] = max(truth.sent[index], offset)
        kind = messages.OffsetCommitRequest
        part = kind.OffsetCommitRequestPartition(partition_index=index, committed_offset=offset)
        asked = kind(
            group_id=self.group, generation_id_or_member_epoch=self.generation, member_id=self.member_id,
            group_instance_id=self.instance, topics=[kind.OffsetCommitRequestTopic(name=self.topic, partitions=[part])],
        )  # fmt: skip
        generation, answer = self.generation, await self.ask_coordinator(asked, 8)
        code = None if answer is None else ErrorCode(answer.topics[0].partitions[0].error_code)
        if code is NONE:
            self._must_not_be_behind(told, "commit")
            if generation < known:
                self._fails(f"committed {offset} of {index} in generation {generation}, behind {known}")
            truth.committed[index] = max(truth.committed[index], offset)
            return
        if generation < known and code is not None:
            truth.stale_commits += 1
        await self._hear(code)

    async def _look(self, indexes):
        """Whether it was answered what is committed."""
        truth = self.truth
        promised = {index: truth.committed[index] for index in indexes}
        found = await self.offsets(self.topic, indexes)
        if found is None:
            await self.lost()
            return False
        for index, offset in found.items():
            if not promised[index] <= offset <= truth.sent[index]:
                self._fails(f"is told {offset} of {index}; {promised[index]} was known, {truth.sent[index]} sent")
            truth.committed[index] = max(truth.committed[index], offset)
            if self.parts is not None and index in self.parts:
                self._at[index] = offset
        return True

    async def _leave(self):
        self._leaves = False
        kind = messages.LeaveGroupRequest
        one = kind.MemberIdentity(member_id=self.member_id, group_instance_id=self.instance)
        self.parts = None
        await self.ask_coordinator(kind(group_id=self.group, members=[one]), 5)
        self.member_id = ""

    async def _hear(self, code):
        """An error, or nothing: what a client library does then."""
        if code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID):
            self.member_id, self.parts = "", None
        elif code in (ErrorCode.ILLEGAL_GENERATION, ErrorCode.REBALANCE_IN_PROGRESS):
            self.parts = None
            await trio.sleep(AGAIN_S * self.chance.uniform(0, 0.5))
        else:
            await self.lost()

    # -- what its coordinator knows ------------------------------------------------------------------------------------

    def _loaded(self):
        """The coordinator on the core that it asks, where that has one."""
        life = None if self._broker is None else self._broker.life
        found = None if life is None or not life.is_ready else life.core.groups.coordinator_of(self.group)
        return found if isinstance(found, LoadedCoordinator) else None

    def _told(self):
        """(coordinator, the newest generation that it told anybody of)."""
        loaded = self._loaded()
        return loaded, -1 if loaded is None else self.truth.told.get(loaded, -1)

    def _note_told(self, generation):
        loaded = self._loaded()
        if loaded is not None:
            self.truth.told[loaded] = max(generation, self.truth.told.get(loaded, -1))

    def _must_not_be_behind(self, told, what):
        coordinator, generation = told
        if coordinator is not None and coordinator is self._loaded() and self.generation < generation:
            self._fails(f"{what} of generation {self.generation} goes well where {generation} was begun")

    def _asked_newest(self):
        """Whether the core that it asked leads the group's partition in a term that nobody's disk is beyond."""
        life = None if self._broker is None else self._broker.life
        if life is None or self._loaded() is None:
            return False
        key = life.core.groups._key_of(self.group)
        machine = life.replication.replicas.machine_of(key)
        return machine is not None and all(machine.term >= node.term_of(key) for node in self.cluster.nodes.values())

    def _fails(self, what):
        self.cluster.fails(f"at {trio.current_time():.3f} s: {self.group}: {self.instance or self.member_id} {what}")


class Groups:
    """All groups of a run."""

    def __init__(self, cluster, topic, partitions):
        self.truths = {group: Truth() for group in GROUPS}
        self.members = [
            Member(cluster, self.truths[group], group, number, topic, partitions)
            for group, count in GROUPS.items()
            for number in range(count)
        ]
        self._describers = {group: GroupClient(cluster, f"describer of {group}", group) for group in GROUPS}
        self._partitions = partitions

    def _living(self, group):
        return [member for member in self.members if member.group == group and not member.is_dead]

    def die(self, number):
        """A member, unless it is the last one of its group."""
        member = self.members[number]
        if len(self._living(member.group)) > 1:
            member.die()

    async def why_unsettled(self):
        """Nothing: each group is Stable, it has the members that live, and each partition is given out."""
        for group, describer in self._describers.items():
            found = await describer.describe()
            members = self._living(group)
            told = {member.instance or member.member_id: (member.generation, member.parts) for member in members}
            if found != ("Stable", len(members)) or len({generation for generation, _parts in told.values()}) > 1:
                return f"{group} is {found}, its members have {told}"
            given = sorted(index for member in members for index in member.parts or ())
            if given != list(range(self._partitions)) or any(member.parts is None for member in members):
                return f"of {group} {given} are given out: {told}"
        return ""

    def end(self):
        for member in self.members:
            member.has_ended = True
