"""Random rules, requests, waits and topics that are made again, against a model: C never says yes without the right,
and never no with it.
"""

import random
import uuid

import pytest

from tests.engine.test_plane_fetch import LONG_MS, asks, parts_of, read_answer, values_of
from tests.support.grant_bench import READ, WRITE, GrantBench
from tests.support.plane_bench import records_of
from tpc_broker.error_codes import ErrorCode as E

SUBJECTS, TOPICS, RIGHTS = range(1, 5), "abc", (READ, WRITE)
ALL_RULES = [(subject, right, topic) for subject in SUBJECTS for right in RIGHTS for topic in TOPICS]
STEPS = 150


class Story:
    """`logs` are the values that each topic has; `waits` what each waiting client waits for: (topic, offset)."""

    def __init__(self, bench, seed):
        self.bench, self.chance = bench, random.Random(seed)
        self.handles = {topic: bench.make(topic) for topic in TOPICS}
        self.logs = {topic: [] for topic in TOPICS}
        self.clients = {subject: bench.connect_as(subject) for subject in SUBJECTS}
        self.sessions, self.waits, self.written = {}, {}, 0
        self.waiters = {subject: bench.connect_as(subject) for subject in SUBJECTS}

    def may(self, subject, right, topic):
        return (subject, right, topic) in self.bench.rules

    def step(self):
        often, seldom = (self.produce, self.fetch, self.fetch_by_session), (self.make_again, self.fill_up)
        self.chance.choice((*often, *often, *often, self.wait, self.change, self.wait, self.change, *seldom))()
        self.bench.until(lambda: self.bench.fetch_counts().parked_now == len(self.waits))

    def produce(self):
        subject, topics = self.chance.choice(SUBJECTS), self.chance.sample(TOPICS, self.chance.randint(1, 3))
        self.written += 1
        value = b"%d" % self.written * self.chance.choice((1, 20_000))
        told = self.bench.produce(self.clients[subject], *[(topic, 0, records_of(1, value=value)) for topic in topics])
        for topic, (error, offset) in zip(topics, told, strict=True):
            if self.may(subject, WRITE, topic):
                assert (error, offset) == (E.NONE, len(self.logs[topic]))
                self.logs[topic].append(value + b"0")
            else:
                assert (error, offset) == (E.TOPIC_AUTHORIZATION_FAILED, -1)
            assert self.bench.plane.state(self.handles[topic]).log_end_offset == len(self.logs[topic])
        self.look_at_waits()

    def fetch(self):
        subject, topics = self.chance.choice(SUBJECTS), self.chance.sample(TOPICS, self.chance.randint(1, 3))
        version = self.chance.choice((12, 13))
        asked = asks(*[(topic, 0, 0) for topic in topics], version=version) | {"MaxBytes": 1 << 28}
        parts = parts_of(self.bench.fetch(self.clients[subject], version, asked))
        for topic, part in zip(topics, parts, strict=True):
            self.is_right(subject, topic, part, 0)

    def is_right(self, subject, topic, part, offset):
        values = values_of(part) if part["Records"] else []
        if self.may(subject, READ, topic):
            assert (part["ErrorCode"], values) == (E.NONE, self.logs[topic][offset : offset + len(values)])
            assert values or offset == len(self.logs[topic])
        else:
            assert (part["ErrorCode"], part["HighWatermark"], values) == (E.TOPIC_AUTHORIZATION_FAILED, -1, [])

    def fetch_by_session(self):
        """Of whoever has made it; a stranger is told that there is none."""
        subject, owner = self.chance.choice(SUBJECTS), self.chance.choice(SUBJECTS)
        if owner not in self.sessions:
            answer = self.bench.fetch(self.clients[owner], 12, asks(("a", 0, 0), ("b", 0, 0)) | {"SessionEpoch": 0})
            self.sessions[owner] = [answer["SessionId"], 1]
        session, epoch = self.sessions[owner]
        asked = asks() | {"SessionId": session, "SessionEpoch": epoch, "MaxBytes": 1 << 28}
        answer = self.bench.fetch(self.clients[subject], 12, asked)
        if subject != owner:
            assert (answer["ErrorCode"], parts_of(answer)) == (E.FETCH_SESSION_ID_NOT_FOUND, [])
            return
        self.sessions[owner][1] += 1
        assert answer["ErrorCode"] == E.NONE
        for told in answer["Responses"]:
            self.is_right(subject, told["Topic"], told["Partitions"][0], 0)

    def wait(self):
        free = [subject for subject in SUBJECTS if subject not in self.waits]
        if not free:
            return
        subject, topic = self.chance.choice(free), self.chance.choice(TOPICS)
        offset = len(self.logs[topic])
        self.bench.send_fetch(self.waiters[subject], 12, asks((topic, 0, offset), wait_ms=LONG_MS))
        self.waits[subject] = topic, offset
        if not self.may(subject, READ, topic):
            self.look_at_waits()
        else:
            self.bench.until(lambda: self.bench.fetch_counts().parked_now == len(self.waits))

    def look_at_waits(self):
        """Who has lost the right is answered, and whoever waits for what is there."""
        for subject, (topic, offset) in list(self.waits.items()):
            if not self.may(subject, READ, topic) or len(self.logs[topic]) > offset:
                del self.waits[subject]
                (part,) = parts_of(read_answer(self.bench, self.waiters[subject]))
                self.is_right(subject, topic, part, offset)

    def change(self):
        changed = self.chance.sample(ALL_RULES, self.chance.randint(0, 6))
        self.bench.change(add=changed[::2], remove=changed[1::2])
        self.look_at_waits()

    def make_again(self):
        topic = self.chance.choice(TOPICS)
        if any(topic == waited for waited, _offset in self.waits.values()):
            return
        self.bench.settle()
        self.bench.delete(topic)
        self.handles[topic], self.logs[topic] = self.bench.make(topic), []
        self.sessions.clear()

    def fill_up(self):
        """So that what stands in the table goes."""
        for number in range(1000):
            topic_id = uuid.UUID(int=self.chance.getrandbits(128))
            self.bench.face.grant(self.bench.generation, 99, topic_id, writes=True, is_allowed=bool(number % 2))


@pytest.mark.parametrize("seed", range(6))
def test_c_says_yes_when_and_only_when_the_rules_do(tmp_path, seed):
    bench = GrantBench(tmp_path / "journal", region_blocks=4096)
    story = Story(bench, seed)
    for _ in range(STEPS):
        story.step()
    counts = bench.counts()
    assert min(counts.refused_produces, counts.refused_fetches, counts.unknown) > 0
    bench.change(remove=ALL_RULES)
    story.look_at_waits()
    bench.shut()
