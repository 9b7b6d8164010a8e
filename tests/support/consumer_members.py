"""Members of consumer groups by KIP-848 on cores in memory (`memory_node`), as a client library is one."""

from __future__ import annotations

import uuid

import trio

from tests.support.memory_clients import Member
from tpc_broker.error_codes import ErrorCode
from tpc_broker.kafka import messages

NONE = ErrorCode.NONE
REBALANCE_MS = 5_000
FENCED = {ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID}


class Told:
    """What the members of one group were told, put together. Each of these would be a broken promise:

    * two members have a partition, of whom neither has been silent for `silent_s`, the shorter one of the times after
      which a member is out: it says nothing, or does not say that it gave back what it was to;
    * an epoch falls: of a member, or of one that joins, below what anybody was told before it asked;
    * a commit of a member is taken for a partition that another had been told to have, when it was sent.
    """

    def __init__(self, silent_s, fails):
        self.silent_s, self.fails = silent_s, fails
        self.has: dict[str, set] = {}
        self.heard_s: dict[str, float] = {}
        """When what a member said last, and was answered well, was sent."""
        self.epochs: dict[str, int] = {}
        self.newest_epoch = 0
        self.stale_commits = self.handed_over = 0

    def forget(self, name):
        """It has nothing any more, and knows it."""
        self.has.pop(name, None)
        self.epochs.pop(name, None)

    def answered(self, name, partitions, epoch, sent_s, *, joined_behind=None):
        """It was told that it is a member in this epoch, and has these. `joined_behind`: of a join, the newest epoch
        that anybody had been told when it was sent.
        """
        if epoch < (self.epochs.get(name, 0) if joined_behind is None else joined_behind):
            self.fails(f"{name} is told epoch {epoch} behind {self.epochs.get(name)}, of a join {joined_behind}")
        self.epochs[name], self.newest_epoch = epoch, max(self.newest_epoch, epoch)
        new = partitions - self.has.get(name, set())
        self.has[name], self.heard_s[name] = set(partitions), sent_s
        if not self._may_be_over(name):
            for other in [one for one, theirs in self.has.items() if one != name and theirs & partitions]:
                if not self._may_be_over(other):
                    self.fails(f"{name} has {self.has[name]} in epoch {epoch}, and {other} {self.has[other]}")
        self.handed_over += len(new)

    def others_have(self, name, partition):
        """Whether another member has that one for sure. To be asked before a commit is sent."""
        return any(partition in self.has[one] and not self._may_be_over(one) for one in self.has if one != name)

    def _may_be_over(self, name):
        return trio.current_time() - self.heard_s[name] >= self.silent_s


class ConsumerMember(Member):
    """One connection to its coordinator. `owned`: partitions by topic id, as far as it has been told and has not given
    them back. It gives back at once, and says so with its next heartbeat.
    """

    def __init__(self, node, group, connection, topics=("t",), *, regex=None, instance=None, version=1):
        super().__init__(node, group, connection)
        self.topics, self.regex, self.instance, self.version = list(topics), regex, instance, version
        self.member_id = f"member-{group}-{connection}" if version else ""
        self.epoch, self.owned, self.said = 0, {}, None
        self.assignor, self.rack, self.answer, self.told = None, None, None, None
        """`told`: of its group, where that is looked at."""

    async def ask_heartbeat(self, **what):
        """The answer as it is."""
        kind = messages.ConsumerGroupHeartbeatRequest
        said = {
            "group_id": self.group, "member_id": self.member_id, "member_epoch": self.epoch,
            "instance_id": self.instance, **what,
        }  # fmt: skip
        return await self.ask(kind(**said), self.version)

    async def beat(self):
        """Error. All that it asks for at a join, else what it has when that is another than it said."""
        kind = messages.ConsumerGroupHeartbeatRequest
        told = {}
        if self.epoch == 0:
            told = {
                "rebalance_timeout_ms": REBALANCE_MS, "subscribed_topic_names": self.topics, "topic_partitions": [],
                "server_assignor": self.assignor, "rack_id": self.rack,
            }  # fmt: skip
            if self.regex is not None:
                told["subscribed_topic_regex"] = self.regex
        elif self.owned != self.said:
            told = {
                "topic_partitions": [
                    kind.TopicPartitions(topic_id=topic_id.bytes, partitions=sorted(partitions))
                    for topic_id, partitions in self.owned.items()
                ]
            }
        saying, is_join, sent_s = dict(self.owned), self.epoch == 0, trio.current_time()
        behind = None if self.told is None or not is_join else self.told.newest_epoch
        self.answer = answer = await self.ask_heartbeat(**told)
        code = ErrorCode(answer.error_code)
        if code is NONE:
            self.member_id, self.epoch, self.said = answer.member_id, answer.member_epoch, saying
            if answer.assignment is not None:
                self.owned = {
                    uuid.UUID(bytes=bytes(each.topic_id)): set(each.partitions)
                    for each in answer.assignment.topic_partitions
                }
            if self.told is not None:
                self.told.answered(str(self), self.pairs(), self.epoch, sent_s, joined_behind=behind)
        elif code in FENCED:
            self.forget()
        return code

    def forget(self):
        """It begins anew."""
        self.epoch, self.owned, self.said = 0, {}, None
        if self.told is not None:
            self.told.forget(str(self))

    def pairs(self):
        return {(topic_id, index) for topic_id, partitions in self.owned.items() for index in partitions}

    def __str__(self):
        return f"{self.group} {self.connection}"

    async def leave(self, epoch=-1):
        self.forget()  # it uses nothing from before it says so
        answer = await self.ask_heartbeat(member_epoch=epoch)
        return ErrorCode(answer.error_code)

    def partitions(self, topic="t"):
        """What it has of a topic."""
        image = next(iter(self.node.lives.values())).core.view.topic(topic)
        return set() if image is None else self.owned.get(image.topic_id, set())

    async def describe(self):
        """Its group, as ConsumerGroupDescribe has it."""
        asked = messages.ConsumerGroupDescribeRequest(group_ids=[self.group], include_authorized_operations=True)
        (group,) = (await self.ask(asked, 1)).groups
        return group

    async def commit(self, topic, offsets, epoch=None):
        """Errors by partition; in its epoch, unless another is named."""
        kind = messages.OffsetCommitRequest
        partitions = [
            kind.OffsetCommitRequestPartition(partition_index=index, committed_offset=offset)
            for index, offset in offsets.items()
        ]
        asked = kind(
            group_id=self.group, generation_id_or_member_epoch=self.epoch if epoch is None else epoch,
            member_id=self.member_id, group_instance_id=self.instance,
            topics=[kind.OffsetCommitRequestTopic(name=topic, partitions=partitions)],
        )  # fmt: skip
        answer = await self.ask(asked, 9)
        return {one.partition_index: ErrorCode(one.error_code) for one in answer.topics[0].partitions}

    async def committed_as_member(self, topic, indexes, epoch=None):
        """Error of the group, offsets by partition; asked in its epoch, unless another is named."""
        kind = messages.OffsetFetchRequest
        group = kind.OffsetFetchRequestGroup(
            group_id=self.group, member_id=self.member_id, member_epoch=self.epoch if epoch is None else epoch,
            topics=[kind.OffsetFetchRequestTopics(name=topic, partition_indexes=list(indexes))],
        )  # fmt: skip
        (told,) = (await self.ask(kind(groups=[group]), 9)).groups
        found = {one.partition_index: one.committed_offset for each in told.topics for one in each.partitions}
        return ErrorCode(told.error_code), found
