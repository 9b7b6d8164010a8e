"""A driver of the coordinator for tests: a log in memory, a clock that is told, and a transcript of what happened.

`log` holds what is durable. Writes become durable at once unless `hold` is set; `settle` then lets them.
"""

from typing import NamedTuple

from tests.support.stored_records import stored_records
from tpc_broker.coordinator import Fate, GroupCoordinator, GroupLimits, Producer, Record, TransactionEnd
from tpc_broker.coordinator.messages import (
    HeartbeatRequest,
    JoinRequest,
    JoinResponse,
    LeaveResponse,
    LeavingMember,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetToCommit,
    SyncRequest,
    SyncResponse,
    TxnOffsetCommitRequest,
)
from tpc_broker.error_codes import ErrorCode
from tpc_broker.model import NO_TOPIC_ID


def subscription(*topics):
    """A consumer's subscription as clients encode it."""
    data = (0).to_bytes(2, "big") + len(topics).to_bytes(4, "big")
    for topic in topics:
        data += len(topic).to_bytes(2, "big") + topic.encode()
    return data + b"\xff\xff\xff\xff"


PROTOCOLS = (("range", subscription("t")),)


class Opened(NamedTuple):
    """A record of a transaction, in the log."""

    producer: Producer
    record: Record


def logged(write):
    """What a write leaves in the log."""
    if write.end is not None:
        return [write.end]
    return write.records if write.producer is None else [Opened(write.producer, one) for one in write.records]


def replay(machine, entry):
    if isinstance(entry, TransactionEnd):
        machine.replay_end(entry.producer.producer_id, commit=entry.commit)
    elif isinstance(entry, Opened):
        machine.replay_open(entry.producer, *entry.record)
    else:
        machine.replay(*entry)


class Scenario:
    begin_ms = 0

    def __init__(self, **limits):
        self.limits = GroupLimits(**limits)
        self.now = self.begin_ms
        self.log = []
        self.ends = [0]
        """Of the writes in `log`, which are there whole or not at all."""
        self.replies = {}
        self.transcript = []
        self.hold = False
        self.held = []
        self.fail_with = None
        self.tokens = 0
        self.fates = {}
        """Of topics by their id; the others are there."""
        self.start()

    # The driver.

    def start(self):
        """A coordinator that begins with the log as it is."""
        self.machine = self.new_machine()
        self.held = []
        for record in self.log:
            replay(self.machine, record)
        self.run(self.machine.finish_loading(self.now))

    def new_machine(self):
        return GroupCoordinator(self.limits, self.fate_of)

    def fate_of(self, _name, topic_id):
        return self.fates.get(topic_id, Fate.THERE)

    def run(self, effects):
        for token, response in effects.replies:
            assert token not in self.replies, f"{token} answered twice"
            self.replies[token] = response
            self.transcript.append(f"{self.now:>6} {token} ← {shown(response)}")
        self.held.extend(effects.writes)
        if not self.hold:
            self.settle()

    def stored_records(self):
        return stored_records(self.machine)

    def settle(self):
        while self.held:
            write = self.held.pop(0)
            if self.fail_with is not None and write.runs_ahead:
                self.reload()
            elif self.fail_with is not None:
                self.run(self.machine.write_failed(write.write_id, self.fail_with, self.now))
            else:
                self.log.extend(logged(write))
                self.ends.append(len(self.log))
                self.run(self.machine.written(write.write_id, self.now))

    def reload(self):
        """What had run ahead was not written: another machine begins with the log as it is."""
        self.run(self.machine.unload())
        self.start()

    def wait(self, ms):
        """Lets time pass, and every deadline in it come when it is due."""
        end = self.now + ms
        while (deadline := self.machine.next_deadline_ms()) is not None and deadline <= end:
            self.now = max(self.now, deadline)
            self.run(self.machine.on_deadline(self.now))
        self.now = end

    def token(self, name):
        self.tokens += 1
        return f"{name}#{self.tokens}"

    # Clients. Each returns the token; the answer, when it is there, is in `replies`.

    def join(self, who, member_id="", group="g", **details):
        token = self.token(f"join {who}")
        details = {"protocols": PROTOCOLS, "client_id": who, "rebalance_timeout_ms": 10_000, **details}
        details.setdefault("session_timeout_ms", 10_000)
        request = JoinRequest(group_id=group, member_id=member_id, **details)
        self.run(self.machine.join_group(request, token, self.now, f"u{self.tokens}"))
        return token

    def sync(self, who, member_id, generation, assignments=(), group="g", **details):
        token = self.token(f"sync {who}")
        request = SyncRequest(
            group_id=group, generation_id=generation, member_id=member_id, assignments=tuple(assignments), **details
        )
        self.run(self.machine.sync_group(request, token, self.now))
        return token

    def heartbeat(self, member_id, generation, group="g", instance=None):
        request = HeartbeatRequest(
            group_id=group, generation_id=generation, member_id=member_id, group_instance_id=instance
        )
        return self.machine.heartbeat(request, self.now)

    def leave(self, *members, group="g"):
        token = self.token("leave")
        self.run(self.machine.leave_group(group, [LeavingMember(*m) for m in members], token, self.now))
        return token

    def commit(self, offset=5, topic="t", partition=0, group="g", metadata="", topic_id=NO_TOPIC_ID, **details):
        token = self.token("commit")
        offsets = (
            OffsetToCommit(topic=topic, partition=partition, offset=offset, metadata=metadata, topic_id=topic_id),
        )
        request = OffsetCommitRequest(group_id=group, offsets=offsets, **details)
        self.run(self.machine.offset_commit(request, token, self.now))
        return token

    def txn_commit(self, producer, offset=5, topic="t", partition=0, group="g", topic_id=NO_TOPIC_ID, **details):
        token = self.token("txn-commit")
        offsets = (OffsetToCommit(topic=topic, partition=partition, offset=offset, topic_id=topic_id),)
        producer = Producer(producer, 0) if isinstance(producer, int) else producer
        request = TxnOffsetCommitRequest(group_id=group, offsets=offsets, producer=producer, **details)
        self.run(self.machine.txn_offset_commit(request, token, self.now))
        return token

    def txn_commit_code(self, producer, **details):
        return self.replies[self.txn_commit(producer, **details)].partitions[0].error_code

    def end(self, producer, *, commit):
        token = self.token("marker")
        self.run(self.machine.marker(TransactionEnd(Producer(producer, 0), commit, 0), token))
        return token

    def commit_code(self, **details):
        token = self.commit(**details)
        return self.replies[token].partitions[0].error_code

    def delete(self, *groups):
        token = self.token("delete")
        self.run(self.machine.delete_groups(groups, token, self.now))
        return dict(self.replies[token].results)

    def delete_offsets(self, *partitions, group="g"):
        token = self.token("offset-delete")
        self.run(self.machine.offset_delete(group, partitions, token, self.now))
        return self.replies[token]

    # What several tests begin with.

    def member(self, who, **details):
        """A new dynamic member asks for its id and joins with it; the token of the join that waits."""
        asked = self.replies[self.join(who, **details)]
        assert asked.error_code is ErrorCode.MEMBER_ID_REQUIRED
        return self.join(who, asked.member_id, **details)

    def stable(self, *names, group="g", **details):
        """A stable group of these members: their ids by name, and the generation. The first one leads."""
        tokens = {name: self.member(name, group=group, **details) for name in names}
        self.wait(3_000 if len(names) == 1 else 6_000)
        joined = {name: self.replies[token] for name, token in tokens.items()}
        generation = joined[names[0]].generation_id
        ids = {name: response.member_id for name, response in joined.items()}
        assignments = [(member_id, name.encode()) for name, member_id in ids.items()]
        for name in reversed(names):
            self.sync(name, ids[name], generation, assignments if name == names[0] else (), group=group)
        assert self.state(group) == "Stable"
        return ids, generation

    def state(self, group="g"):
        return self.machine.describe_group(group).group_state

    def offset(self, topic="t", partition=0, group="g"):
        return self.machine.offset_fetch(group, [(topic, partition)]).offsets[0].offset


def shown(response):
    """One line for a transcript."""
    if isinstance(response, JoinResponse):
        if response.error_code:
            return response.error_code.name
        members = f", divides for {len(response.members)}" if response.members else ""
        return f"generation {response.generation_id}, leader {response.leader}{members}"
    if isinstance(response, SyncResponse):
        assigned = response.assignment.decode(errors="backslashreplace")
        return response.error_code.name if response.error_code else f"assigned {assigned}"
    if isinstance(response, LeaveResponse):
        return ", ".join(member.error_code.name for member in response.members) or response.error_code.name
    if isinstance(response, OffsetCommitResponse):
        return ", ".join(partition.error_code.name for partition in response.partitions)
    return str(response)
