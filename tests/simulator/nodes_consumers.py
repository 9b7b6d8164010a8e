"""Members of consumer groups of KIP-848, as client libraries are them, and what such a group promises them.

A member says by heartbeats that it lives, what it has, and that it gave back what it is to lose. It asks where each new
partition stands, and commits offsets that rise. It leaves, or falls silent, dies, comes back as another one, as members
of classic groups do (`nodes_groups`). What fails a run at once is in `Told`: a partition with two owners, an epoch that
falls, a commit of a former owner that counts; and a committed offset that falls.

Left alone, the members that live come to one epoch, in which the group is Stable and has all partitions given out.
"""

from __future__ import annotations

import uuid
from collections import defaultdict

import trio

from tests.simulator.nodes_clients import AGAIN_S, NONE
from tests.simulator.nodes_groups import BEAT_S, SESSION_S, GroupClient
from tests.support.consumer_members import FENCED, Told
from tpc_broker.error_codes import ErrorCode
from tpc_broker.kafka import messages

REBALANCE_S = 6.0
GROUPS = {"consumers0": 4, "consumers1": 3}
"""How many members each has; the second one's subscribe by an expression, and two of them are static."""
STATIC = {("consumers1", 0), ("consumers1", 1)}
MORE = "more.*"
"""Topics that come while it runs."""
Pair = tuple[uuid.UUID, int]


class Truth(Told):
    """What members of one group were told, put together."""

    def __init__(self, cluster, group):
        def fails(what):
            cluster.fails(f"at {trio.current_time():.3f} s: {group}: {what}")

        super().__init__(min(SESSION_S, REBALANCE_S), fails)
        self.committed: dict[Pair, int] = defaultdict(lambda: -1)
        """The largest offset that was acknowledged, or shown."""
        self.sent: dict[Pair, int] = defaultdict(lambda: -1)


class Consumer(GroupClient):
    """`has`: its partitions, by topic id, as it believes. Epoch 0: it is no member now."""

    def __init__(self, cluster, truth, group, number, topic):
        super().__init__(cluster, f"{group} {number}", group)
        self.topic, self.truth, self._number = topic, truth, number
        self.instance = f"static{number}" if (group, number) in STATIC else None
        self.by_expression = group != "consumers0"
        self._silent_until_s, self._forgets, self._leaves = 0.0, False, False
        self.has_ended = self.is_dead = False
        self._lives = 0
        self._begin_anew()

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
        while not self.has_ended:
            if self.is_dead:
                return
            if self._leaves:
                await self._leave()
            while trio.current_time() < self._silent_until_s and not is_over():
                await trio.sleep(0.1)
            if self._forgets:
                self._begin_anew()
            await self._go_on()

    def _begin_anew(self):
        """As another process, whose client makes another id."""
        self._lives += 1
        self._forgets = False
        self.member_id = f"{self.group}-{self._number}-life{self._lives}"
        self._forget()

    def _forget(self):
        self.epoch, self.has, self._said = 0, {}, None
        self._at: dict[Pair, int] = {}
        self.truth.forget(self._name)

    @property
    def _name(self):
        """Who believes: the next process of a member knows nothing of what the one before had."""
        return f"{self.instance or ''}{self.member_id}"

    def pairs(self):
        return {(topic_id, index) for topic_id, indexes in self.has.items() for index in indexes}

    async def _go_on(self):
        """What a member does every second; after a silence first what it had in mind before."""
        if self._at and self.chance.random() < 0.7:
            await self._commit()
        await self._beat()
        if self.epoch:
            await self._look()
        await trio.sleep(BEAT_S * self.chance.uniform(0.3, 1))

    async def _beat(self):
        kind = messages.ConsumerGroupHeartbeatRequest
        truth, is_join, saying, sent_s = self.truth, self.epoch == 0, dict(self.has), trio.current_time()
        behind = truth.newest_epoch if is_join else None
        asked = kind(
            group_id=self.group, member_id=self.member_id, member_epoch=self.epoch, instance_id=self.instance
        )
        if is_join:
            asked.rebalance_timeout_ms, asked.topic_partitions = int(REBALANCE_S * 1000), []
            asked.subscribed_topic_names = [] if self.by_expression else [self.topic]
            asked.subscribed_topic_regex = f"{self.topic}|{MORE}" if self.by_expression else None
        elif saying != self._said:
            asked.topic_partitions = [
                kind.TopicPartitions(topic_id=topic_id.bytes, partitions=sorted(indexes))
                for topic_id, indexes in sorted(saying.items())
            ]
        name, answer = self._name, await self.ask_coordinator(asked, 1)
        code = None if answer is None else ErrorCode(answer.error_code)
        if code is not NONE:
            self._said = None  # whether it was heard is not known
            await self._hear(code)
            return
        self.epoch, self._said = answer.member_epoch, saying
        if answer.assignment is not None:
            self.has = {
                uuid.UUID(bytes=bytes(one.topic_id)): set(one.partitions) for one in answer.assignment.topic_partitions
            }
            self._at = {pair: offset for pair, offset in self._at.items() if pair in self.pairs()}
        truth.answered(name, self.pairs(), self.epoch, sent_s, joined_behind=behind)

    async def _hear(self, code):
        if code in FENCED:
            self._forget()
        elif code is ErrorCode.UNRELEASED_INSTANCE_ID:
            await trio.sleep(AGAIN_S * self.chance.uniform(0, 1))  # of its process before, until its session is over
        else:
            await self.lost()

    async def _look(self):
        """Where those stand that are new to it."""
        truth, new = self.truth, sorted(self.pairs() - self._at.keys())
        if not new:
            return
        promised = {pair: truth.committed[pair] for pair in new}
        kind = messages.OffsetFetchRequest
        by_topic = defaultdict(list)
        for topic_id, index in new:
            by_topic[topic_id].append(index)
        topics = [
            kind.OffsetFetchRequestTopics(topic_id=topic_id.bytes, partition_indexes=indexes)
            for topic_id, indexes in by_topic.items()
        ]
        group = kind.OffsetFetchRequestGroup(
            group_id=self.group, member_id=self.member_id, member_epoch=self.epoch, topics=topics
        )
        answer = await self.ask_coordinator(kind(groups=[group], require_stable=False), 10)
        if answer is None or answer.groups[0].error_code:
            await self._hear(None if answer is None else ErrorCode(answer.groups[0].error_code))
            return
        for topic in answer.groups[0].topics:
            for one in topic.partitions:
                pair, offset = (uuid.UUID(bytes=bytes(topic.topic_id)), one.partition_index), one.committed_offset
                if one.error_code:
                    continue
                if not promised[pair] <= offset <= truth.sent[pair]:
                    truth.fails(
                        f"{self._name} is told {offset} of {pair}; {promised[pair]} was known, {truth.sent[pair]} sent"
                    )
                truth.committed[pair] = max(truth.committed[pair], offset)
                if pair in self.pairs():
                    self._at[pair] = offset

    async def _commit(self):
        """Once; offsets rise whether it was acknowledged or not."""
        truth, pair = self.truth, self.chance.choice(sorted(self._at))
        offset = self._at[pair] = self._at[pair] + 1
        truth.sent[pair] = max(truth.sent[pair], offset)
        kind = messages.OffsetCommitRequest
        part = kind.OffsetCommitRequestPartition(partition_index=pair[1], committed_offset=offset)
        asked = kind(
            group_id=self.group, generation_id_or_member_epoch=self.epoch, member_id=self.member_id,
            group_instance_id=self.instance,
            topics=[kind.OffsetCommitRequestTopic(topic_id=pair[0].bytes, partitions=[part])],
        )  # fmt: skip
        others_have = truth.others_have(self._name, pair)
        answer = await self.ask_coordinator(asked, 10)
        code = None if answer is None else ErrorCode(answer.topics[0].partitions[0].error_code)
        if code is NONE:
            if others_have:
                truth.fails(f"{self._name} commits {offset} of {pair} in epoch {self.epoch}, which another has")
            truth.committed[pair] = max(truth.committed[pair], offset)
        elif code is ErrorCode.STALE_MEMBER_EPOCH:
            truth.stale_commits += 1  # it hears of it with its next heartbeat
        else:
            truth.stale_commits += code in FENCED
            await self._hear(code)

    async def _leave(self):
        """A static member for a while, mostly."""
        self._leaves = False
        is_back_soon = self.instance is not None and self.chance.random() < 0.7
        asked = messages.ConsumerGroupHeartbeatRequest(
            group_id=self.group, member_id=self.member_id, member_epoch=-2 if is_back_soon else -1,
            instance_id=self.instance,
        )  # fmt: skip
        self._forget()  # it uses nothing of what it had from before it says so
        await self.ask_coordinator(asked, 1)
        self._begin_anew()


class Consumers:
    """All groups of a run, in place of classic ones (`nodes_groups.Groups`)."""

    def __init__(self, cluster, topic):
        self._cluster, self._topic = cluster, topic
        self.truths = {group: Truth(cluster, group) for group in GROUPS}
        self.members = [
            Consumer(cluster, self.truths[group], group, number, topic)
            for group, count in GROUPS.items()
            for number in range(count)
        ]
        self._describers = {group: GroupClient(cluster, f"describer of {group}", group) for group in GROUPS}

    def _living(self, group):
        return [member for member in self.members if member.group == group and not member.is_dead]

    def die(self, number):
        """A member, unless it is the last one of its group."""
        member = self.members[number]
        if len(self._living(member.group)) > 1:
            member.die()

    def _wanted(self, group):
        image = max((node.first.core.view.image for node in self._cluster.ready()), key=lambda image: image.version)
        names = [name for name in image.ids if name == self._topic or (group != "consumers0" and name[:4] == MORE[:4])]
        topics = [image.topic(name) for name in names]
        return sorted((topic.topic_id, index) for topic in topics for index in range(topic.partitions_count))

    async def why_unsettled(self):
        """Nothing: each group is Stable, it has the members that live, and each partition is given out."""
        for group, describer in self._describers.items():
            answer = await describer.ask_coordinator(messages.ConsumerGroupDescribeRequest(group_ids=[group]), 1)
            if answer is None or answer.groups[0].error_code:
                await describer.lost()
                return f"{group} is not described"
            found, members = answer.groups[0], self._living(group)
            told = {member.instance or member.member_id: (member.epoch, member.has) for member in members}
            epochs = {found.group_epoch, *(member.epoch for member in members)}
            if found.group_state != "Stable" or len(found.members) != len(members) or len(epochs) > 1:
                return f"{group} is {found}, its members have {told}"
            if sorted(pair for member in members for pair in member.pairs()) != self._wanted(group):
                return f"of {group} not all partitions are given out, or some that are not there: {told}"
        return ""

    def end(self):
        for member in self.members:
            member.has_ended = True
