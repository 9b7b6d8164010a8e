"""Random Fetches, right and wrong, to C and to the broker's handler in Python, on two planes with the same content: the
same bytes come back, and the same sessions are left. Sessions are also held against a model of their own.

`--seed` replays a failure.
"""

import uuid
from random import Random

import pytest

from tests.support.definitions import decode_response, encode_request
from tests.support.fetch_bench import FetchBench, raw_fetch
from tests.support.fetch_sessions_model import FetchOutcome, FetchPartition, FetchSessions
from tests.support.plane_bench import topic_id_of
from tpc_broker._ring import lib

STEPS = 400
TOPICS = ["a", "b", "wide", "nowhere"]
PLACES = [("a", 0), ("a", 1), ("b", 0), ("wide", 0), ("wide", 1), ("wide", 2)]
SESSIONS_MAX = 4


class Two:
    """The same things done to both."""

    def __init__(self, tmp_path, seed):
        self.random = Random(seed)
        self.benches = [
            FetchBench(tmp_path / f"{in_c}.journal", in_c=in_c, seed=seed | 1, region_blocks=4096)
            for in_c in (True, False)
        ]
        for bench in self.benches:
            lib.tpc_plane_set_fetch_limits(bench.plane.pointer, 50_000, SESSIONS_MAX, 0)
            for topic, index in PLACES:
                bench.make(topic, index, leader_epoch=2)
        self.clients = [bench.connect() for bench in self.benches]
        self.correlation_id = 0
        self.sessions, self.versions = {}, {}
        self.model = FetchSessions(SESSIONS_MAX, 0)

    def each(self, action):
        return [action(bench, client) for bench, client in zip(self.benches, self.clients, strict=True)]

    def append(self):
        (topic, index), count = self.random.choice(PLACES), self.random.choice([1, 1, 3])
        value = bytes(self.random.choice([5, 100, 5_000]))
        self.each(lambda bench, client: bench.fill(client, topic, index, [count] * self.random_batches, value))

    def trim(self):
        place = self.random.choice(PLACES)
        fraction = self.random.random()
        for bench in self.benches:
            handle = bench.partitions[place].handle
            state = bench.plane.state(handle)
            start = state.log_start_offset
            lib.tpc_partition_set_log_start(
                bench.plane.pointer, handle, start + int((state.high_watermark - start) * fraction)
            )

    def make_again(self):
        topic, index = self.random.choice(PLACES)
        for bench in self.benches:
            bench.delete(topic, index)
            bench.make(topic, index, leader_epoch=2)

    def reconnect(self):
        self.clients = [bench.connect() for bench in self.benches]

    # -- requests ----------------------------------------------------------------------------------------------------

    def part(self, index, topic):
        random = self.random
        bench = self.benches[0]
        known = bench.partitions.get((topic, index))
        end = bench.plane.state(known.handle).log_end_offset if known else 0
        return {
            "Partition": index,
            "FetchOffset": random.choice([0, end, end, random.randrange(-1, end + 2), random.randrange(end + 1)]),
            "PartitionMaxBytes": random.choice([0, 1, 200, 20_000, 1 << 20, 1 << 20, -5]),
            "CurrentLeaderEpoch": random.choice([-1, -1, 2, 2, 2, 1, 3] if random.random() < 0.2 else [-1, 2]),
            "LastFetchedEpoch": random.choice([-1] * 30 + [0, 1, 2, 3]),
            "LogStartOffset": -1,
        }

    def named(self, topic, version):
        return {"TopicId": uuid.UUID(bytes=topic_id_of(topic))} if version >= 13 else {"Topic": topic}

    def request(self, version):
        random = self.random
        by_topic = {}
        for _ in range(random.choice([0, 1, 1, 1, 2, 4])):
            topic, index = random.choice(PLACES)
            if random.random() < 0.05:
                topic, index = random.choice(TOPICS), random.choice([0, 2, 7])
            by_topic.setdefault(topic, []).append(self.part(index, topic))
        session_id, session_epoch = random.choice([(0, 0), (0, -1)])
        if self.sessions and random.random() < 0.75:
            session_id = random.choice(list(self.sessions))
            session_epoch = random.choice([self.sessions[session_id]] * 8 + [0, -1, 7, 1])
            if random.random() < 0.5:
                by_topic = {}
            # Of topics named the other way an answer does not say which it means.
            if random.random() < 0.9 or not by_topic:
                version = self.versions[session_id]
        if random.random() < 0.03:
            session_id = 99
        forgotten = []
        if random.random() < 0.15:
            topic = random.choice(TOPICS)
            forgotten = [{**self.named(topic, version), "Partitions": [random.randrange(3), 0]}]
        values = {
            "MaxWaitMs": 0,
            "MinBytes": random.choice([0, 1, 1, 100, 1 << 20]),
            "MaxBytes": random.choice([-3, 0, 1, 500, 20_000, 1 << 20, 1 << 30]),
            "IsolationLevel": random.choice([0, 1, 1, 2]),
            "Topics": [{**self.named(topic, version), "Partitions": parts} for topic, parts in by_topic.items()],
        }
        if version >= 7:
            values |= {"SessionId": session_id, "SessionEpoch": session_epoch, "ForgottenTopicsData": forgotten}
        if version < 15 and random.random() < 0.02:
            values["ReplicaId"] = 1
        return version, values

    def fetch(self):
        version, values = self.request(self.random.randrange(4, 19))
        self.correlation_id += 1
        payload = encode_request("Fetch", version, values, self.correlation_id)

        def ask(bench, client):
            client.sendall(len(payload).to_bytes(4) + payload)
            return bench.read_frame(client)

        in_c, in_python = self.each(ask)
        assert in_c == in_python, (version, values, *(decode_response("Fetch", version, a) for a in (in_c, in_python)))
        answer = decode_response("Fetch", version, in_c)[1]
        if version >= 7:
            self.compare_with_model(version, values, answer)
            self.note_session(version, values, answer)

    def note_session(self, version, values, answer):
        session_id = answer["SessionId"]
        if session_id:
            new = session_id not in self.sessions
            self.sessions[session_id] = 1 if new else self.sessions[session_id] + 1
            self.versions.setdefault(session_id, version)
        gone = [id_ for id_ in self.sessions if self.benches[0].session(id_) is None]
        for id_ in gone:
            del self.sessions[id_]
        for id_ in self.sessions:
            first, second = (bench.session(id_) for bench in self.benches)
            assert first == second
            self.sessions[id_] = first[0]

    def end_sessions(self):
        limits = {"MaxWaitMs": 0, "MinBytes": 0, "MaxBytes": 0, "Topics": [], "SessionEpoch": -1}
        for id_ in self.sessions:
            self.each(lambda bench, client, id_=id_: bench.fetch(client, 12, limits | {"SessionId": id_}))

    # -- the model of sessions -----------------------------------------------------------------------------------------

    def compare_with_model(self, version, values, answer):
        by_id = version >= 13

        def key(topic):
            return topic["TopicId"] if by_id else topic["Topic"]

        asked = [
            FetchPartition(key(t), p["Partition"], p["FetchOffset"], p["PartitionMaxBytes"])
            for t in values["Topics"]
            for p in t["Partitions"]
        ]
        forgotten = [(key(t), index) for t in values["ForgottenTopicsData"] for index in t["Partitions"]]
        context = self.model.context(
            values["SessionId"], values["SessionEpoch"], uses_topic_ids=by_id, asked=asked, forgotten=forgotten,
            now_ms=self.correlation_id, new_session_id=answer["SessionId"] or -self.correlation_id,
        )  # fmt: skip
        assert (context.error_code, context.session_id) == (answer["ErrorCode"], answer["SessionId"])
        told = {}  # a partition may be named twice
        for topic in answer["Responses"]:
            for part in topic["Partitions"]:
                told.setdefault((key(topic) or None, part["PartitionIndex"]), []).append(part)
        outcomes = []
        for one in context.partitions:
            parts = told.get((one.topic, one.partition))
            part = parts.pop(0) if parts else None
            if part is None:  # left out: nothing new
                outcomes.append(
                    FetchOutcome(one.key, 0, one.sent_high_watermark, one.sent_log_start_offset, has_records=False)
                )
            else:
                outcomes.append(
                    FetchOutcome(
                        one.key, part["ErrorCode"], part["HighWatermark"], part["LogStartOffset"],
                        has_records=bool(part["Records"]),
                    )
                )
        context.select(outcomes)
        found = self.benches[0].session(answer["SessionId"])
        if context.session is None or context.session.uses_topic_ids != by_id:
            return
        order = [(one.topic.bytes if by_id else one.topic.encode(), one.partition, one.fetch_offset)
                 for one in context.session.partitions.values()]  # fmt: skip
        assert (found[0], [part[:3] for part in found[1]]) == (context.session.expected_epoch, order)

    def malformed(self):
        random = self.random
        version, values = self.request(random.randrange(4, 19))
        payload = encode_request("Fetch", version, values, 1)[len("referee") + 10 + (version >= 12) :]
        body = bytearray(payload[: random.randrange(len(payload))])
        data = raw_fetch(version, bytes(body))
        before = [bench.connections.statistics().closed for bench in self.benches]
        self.each(lambda _bench, client: client.sendall(data))
        for bench, closed in zip(self.benches, before, strict=True):
            bench.until(lambda bench=bench, closed=closed: bench.connections.statistics().closed > closed)
        self.reconnect()

    def step(self):
        draw = self.random.random()
        if draw < 0.15:
            self.random_batches = self.random.choice([1, 1, 4])
            self.append()
        elif draw < 0.18:
            self.trim()
        elif draw < 0.19:
            self.make_again()
        elif draw < 0.20:
            self.malformed()
        else:
            self.fetch()


@pytest.mark.parametrize("round_number", range(2))
def test_c_and_python_answer_alike(tmp_path, round_number, request, seed):
    two = Two(tmp_path, seed + round_number)
    for bench in two.benches:
        request.addfinalizer(bench.shut)
    for _ in range(STEPS):
        two.step()
    in_c, in_python = (bench.fetch_counts() for bench in two.benches)
    assert in_c.taken > STEPS / 4, in_c
    assert in_python.taken == 0
    assert (in_c.sessions, in_c.session_partitions) == (in_python.sessions, in_python.session_partitions)
    assert in_c.session_bytes == in_python.session_bytes
    two.end_sessions()
    assert [bench.fetch_counts().session_bytes for bench in two.benches] == [0, 0]
