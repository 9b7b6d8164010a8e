"""Random histories: replay gives the same state, every request is answered once, no group breaks its rules.

Clients mostly do what is sensible and sometimes anything; the log is slow, fails, or is cut off by a restart. A history
is its seed: a failure names it.
"""

import random
import uuid
from collections import Counter

import pytest

from tests.coordinator.scenario import PROTOCOLS, Scenario, subscription
from tests.support.stored_records import stored_records
from tpc_broker.coordinator import Fate
from tpc_broker.coordinator.messages import JoinResponse
from tpc_broker.error_codes import ErrorCode
from tpc_broker.limits import GROUP_MEMBER_BYTES
from tpc_broker.model import TopicId

PROTOCOL_SETS = [
    PROTOCOLS,
    (("sticky", b""), *PROTOCOLS),
    (("range", subscription("u")), ("sticky", b"")),
    (("sticky", b""),),
]
STATIC = {"c": "i-c", "d": "i-d"}
STEPS = 150


class History:
    def __init__(self, seed):
        self.random = random.Random(seed)
        self.s = Scenario(initial_rebalance_delay_ms=100, group_size_max=3, offsets_retention_ms=3_600_000)
        self.s.hold = True
        self.ids = {name: TopicId(uuid.UUID(int=number)) for number, name in enumerate("tu", 1)}
        self.members = {}
        self.waiting = {}
        self.seen = Counter()
        self.failed = False

    def step(self):
        operations = {
            self.join: 8,
            self.sync: 8,
            self.heartbeat: 2,
            self.leave: 2,
            self.commit: 3,
            self.delete_group: 1,
            self.delete_topic: 1,
            self.wait: 5,
            self.settle: 5,
            self.fail: 0.5,
            self.crash: 0.4,
        }
        self.group, self.who = self.random.choice("gggh"), self.random.choice("abcd")
        self.member_id, self.generation = self.members.get((self.group, self.who), ("", 0))
        self.random.choices(list(operations), list(operations.values()))[0]()
        self.harvest()
        self.check()

    def harvest(self):
        """Clients read their answers: member ids and generations."""
        for token in [token for token in self.waiting if token in self.s.replies]:
            key, response = self.waiting.pop(token), self.s.replies[token]
            if isinstance(response, JoinResponse) and response.error_code in {0, ErrorCode.MEMBER_ID_REQUIRED}:
                self.members[key] = (response.member_id, max(response.generation_id, 0))
            elif isinstance(response, JoinResponse):
                self.members.pop(key, None)

    def note(self, token):
        self.waiting[token] = (self.group, self.who)

    def join(self):
        protocols = PROTOCOL_SETS[0] if self.random.random() < 0.8 else self.random.choice(PROTOCOL_SETS)
        member_id = self.member_id if self.random.random() < 0.8 else ""
        instance = STATIC.get(self.who)
        skips = self.random.random() < 0.5
        self.note(
            self.s.join(
                self.who,
                member_id,
                group=self.group,
                protocols=protocols,
                group_instance_id=instance,
                supports_skipping_assignment=skips,
            )
        )

    def sync(self):
        described = self.s.machine.describe_group(self.group).members
        parts = [(member.member_id, self.random.choice([b"x", b"y", b""])) for member in described]
        self.note(self.s.sync(self.who, self.member_id, self.generation, parts, group=self.group))

    def heartbeat(self):
        self.s.heartbeat(self.member_id, self.generation, group=self.group)

    def leave(self):
        who = ("", STATIC[self.who]) if self.who in STATIC else (self.member_id,)
        self.s.leave(who, group=self.group)

    def commit(self):
        member = ("", -1) if self.random.random() < 0.4 else (self.member_id, self.generation)
        details = {"member_id": member[0], "generation_id": member[1]}
        name, offset = self.random.choice("tu"), self.random.randrange(100)
        token = self.s.commit(offset, name, group=self.group, topic_id=self.ids[name], **details)
        self.note(token)

    def delete_group(self):
        token = self.s.token("delete")
        self.s.run(self.s.machine.delete_groups([self.group], token, self.s.now))
        self.note(token)

    def delete_topic(self):
        name = self.random.choice("tu")
        self.s.fates[self.ids[name]], self.ids[name] = Fate.GONE, TopicId(uuid.UUID(int=self.random.getrandbits(128)))
        if self.random.random() < 0.5:  # else nobody hears of it
            self.s.run(self.s.machine.topics_changed(self.s.now, {name}))

    def wait(self):
        self.s.wait(self.random.choice([1, 100, 100, 5_000, 12_000, 4_000_000]))

    def settle(self):
        self.s.settle()

    def fail(self):
        self.s.fail_with = ErrorCode.KAFKA_STORAGE_ERROR
        self.failed = self.failed or bool(self.s.held)
        self.s.settle()
        self.s.fail_with = None

    def crash(self):
        self.s.start()
        self.waiting.clear()

    def check(self):
        self.check_rules()
        other = Scenario()
        other.fates = self.s.fates
        other.log = self.s.log
        other.start()
        assert committed(other.machine) == committed(self.s.machine)
        if self.s.held:
            return
        assert sorted(map(repr, stored_records(other.machine))) == sorted(map(repr, stored_records(self.s.machine)))
        if self.failed:
            return  # a group whose emptiness could not be written lives on after a restart, until its sessions end
        mine, theirs = (
            {g.group_id: g for g in map(machine.describe_group, "gh")} for machine in (self.s.machine, other.machine)
        )
        for group_id, group in mine.items():
            if group.group_state == "Empty" and not self.s.machine._is_remembered(group_id):
                assert theirs[group_id].group_state == "Dead", "nothing is stored of it since its offsets were deleted"
            elif group.group_state in {"Stable", "Empty", "Dead"} and not self.is_pending(group_id):
                assert theirs[group_id] == group

    def is_pending(self, group_id):
        group = self.s.machine._groups.get(group_id)
        return group is not None and bool(group.pending_members)

    def check_bytes(self):
        """What is counted of the groups is what they hold."""
        groups = self.s.machine._groups.values()
        for group in groups:
            pending = sum(GROUP_MEMBER_BYTES + len(member_id) for member_id in group.pending_members)
            assert group.size_bytes == pending + sum(member.size_bytes for member in group.members.values())
        assert self.s.machine.size_bytes == sum(group.size_bytes for group in groups)

    def check_rules(self):
        self.check_bytes()
        for group in self.s.machine._groups.values():
            state = group.state.value
            self.seen[state] += 1
            assert group.members or state in {"Empty", "PreparingRebalance"}
            assert not (group.members and state == "Empty")
            assert (group.leader in group.members) if group.members else (group.leader is None)
            assert set(group.static_members.values()) <= group.members.keys()
            assert not group.pending_members & group.members.keys()
            assert group.pending_sync <= group.members.keys()
            assert state == "CompletingRebalance" or not any(member.syncing for member in group.members.values())
            assert state == "PreparingRebalance" or not any(member.joining for member in group.members.values())
            assert len(group.members) <= 3 or state == "PreparingRebalance"

    def finish(self):
        """Whatever still waits is answered when time and the log go on."""
        self.s.hold = False
        self.s.settle()
        self.s.wait(7_200_000)
        self.harvest()
        assert not self.waiting
        assert self.s.machine.list_groups() == []


def committed(machine):
    return {group: sorted(machine.offset_fetch(group).offsets, key=str) for group in "gh"}


def run(seed):
    history = History(seed)
    for _ in range(STEPS):
        history.step()
    history.finish()
    return history.seen


@pytest.mark.parametrize("seed", range(60))
def test_a_random_history_keeps_every_rule(seed):
    run(seed)


def test_the_histories_go_everywhere():
    seen = sum((run(seed) for seed in range(20)), Counter())
    assert all(seen[state] > 50 for state in ("Empty", "PreparingRebalance", "CompletingRebalance", "Stable")), seen
