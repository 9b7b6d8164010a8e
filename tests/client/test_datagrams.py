"""The producer of datagrams, on asyncio and on trio: against a broker made by hand that loses and refuses."""

from __future__ import annotations

import re
import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import anyio
import pytest

from tests.support.waiting import PATIENCE_S
from tpc_broker.client import datagrams
from tpc_broker.client.datagrams import (
    Answer,
    DatagramProducer,
    DatagramSettings,
    TooLargeError,
    _Waiting,
    decode_answer,
    encode_datagram,
    topic_hash,
)
from tpc_broker.client.errors import RefusedError, UnreachableError

DOCUMENT = Path(__file__).parent.parent.parent / "docs" / "datagrams.md"
HEADER = struct.Struct(">BBHIII")
QUICK = DatagramSettings(retry_seconds=0.02, retry_seconds_max=0.1, give_up_seconds=60)
PATIENT = DatagramSettings(retry_seconds=60, retry_seconds_max=60, give_up_seconds=60)
"""An answer is waited for, however late a busy machine has it come."""


class HandMadeBroker:
    """Answers as it is told: `judge(request id, times seen)` gives an error code, or None for silence."""

    def __init__(self) -> None:
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind(("127.0.0.1", 0))
        self.host, self.port = self.socket.getsockname()
        self.judge: Callable[[int, int], int | None] = lambda _request, _times: 0
        self.seen: Counter[int] = Counter()
        self.values: dict[int, bytes] = {}
        self.senders: set[tuple[str, int]] = set()
        self.thread = threading.Thread(target=self.serve, daemon=True)
        self.thread.start()

    def serve(self) -> None:
        while True:
            data, sender = self.socket.recvfrom(65536)
            if data == b"end":
                return
            version, flags, key_bytes, topic, partition, request_id = HEADER.unpack_from(data)
            self.senders.add(sender)
            self.values[request_id] = data[HEADER.size + key_bytes :]
            self.seen[request_id] += 1
            code = self.judge(request_id, self.seen[request_id])
            if code is not None and flags & 1:
                self.socket.sendto(HEADER.pack(version, 128, code, topic, partition, request_id), sender)

    def end(self) -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as last:
            last.sendto(b"end", self.socket.getsockname())
        self.thread.join()
        self.socket.close()


@pytest.fixture
def broker() -> Iterator[HandMadeBroker]:
    made = HandMadeBroker()
    yield made
    made.end()


@pytest.fixture(params=["asyncio", "trio"])
def run(request):
    return lambda function: anyio.run(function, backend=request.param)


def test_datagrams_are_as_documented():
    text = DOCUMENT.read_text(encoding="utf-8").partition("<!-- vectors -->")[2]
    vectors = [bytes.fromhex(each) for each in re.findall(r"`([0-9a-f]{32,})`", text)]
    assert vectors[:4] == [
        encode_datagram("metrics", 3, b"hi", request_id=7),
        encode_datagram("metrics", 3, b"hi", key=b"k", request_id=7),
        encode_datagram("metrics", 3, b"hi", key=b"k", timestamp_ms=1_700_000_000_000, request_id=7),
        encode_datagram("metrics", 0, b"", acknowledge=False),
    ]
    assert [decode_answer(each) for each in vectors] == [None] * 4 + [
        (topic_hash("metrics"), 3, 7, 0), (topic_hash("metrics"), 3, 7, 6),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"partition": -1}, ValueError),
        ({"partition": 2**32}, ValueError),
        ({"timestamp_ms": -1}, ValueError),
        ({"value": bytes(16_369)}, TooLargeError),
        ({"key": bytes(70_000)}, TooLargeError),
    ],
)
def test_what_the_format_has_no_place_for(arguments, error):
    with pytest.raises(error):
        encode_datagram(**{"topic": "t", "partition": 0, "value": b"", **arguments})
    assert len(encode_datagram("t", 0, bytes(16_368))) == 16_384


def test_settings_are_above_0():
    with pytest.raises(ValueError, match="in_flight_max: 0 is not above 0"):
        DatagramSettings(in_flight_max=0)


def test_many_tasks_send_at_once(run, broker):
    async def main():
        async with DatagramProducer(broker.host, broker.port, QUICK) as producer:
            async with anyio.create_task_group() as tasks:
                for number in range(300):
                    tasks.start_soon(producer.send, "t", number, b"%d" % number)
            assert producer.in_flight == 0

    run(main)
    assert sorted(broker.values.values()) == sorted(b"%d" % number for number in range(300))
    assert len(broker.senders) == 1


def test_what_is_lost_is_sent_again(run, broker):
    """The first two of each, or their answers."""
    broker.judge = lambda _request, times: 0 if times > 2 else None

    async def main():
        async with DatagramProducer(broker.host, broker.port, QUICK) as producer:
            async with anyio.create_task_group() as tasks:
                for number in range(20):
                    tasks.start_soon(producer.send, "t", 0, b"%d" % number)
            return producer.sent_again

    assert run(main) >= 40
    assert len(broker.seen) == 20


@pytest.mark.parametrize("code", [3, 6, 56])
def test_what_is_refused_for_now_is_sent_again(run, broker, code):
    broker.judge = lambda _request, times: 0 if times > 3 else code

    async def main():
        async with DatagramProducer(broker.host, broker.port, QUICK) as producer:
            await producer.send("t", 0, b"v")
            return producer.sent_again

    assert run(main) >= 3
    (times,) = broker.seen.values()
    assert times >= 4


def test_a_refusal_that_comes_as_patience_ends_is_sent_again_at_once(run, broker, monkeypatch):
    """Who waits is cancelled then, and finds the answer all the same: nothing is left of the time to wait."""

    class AnsweredLate(_Waiting):
        def __init__(self, place: tuple[int, int]) -> None:
            super().__init__(place)
            self.changed = self

        async def wait(self) -> None:
            try:
                await anyio.sleep_forever()
            finally:
                self.answer = Answer(*self.place, 0, 6)

    monkeypatch.setattr(datagrams, "_Waiting", AnsweredLate)
    broker.judge = lambda _request, times: 0 if times > 1 else None

    async def main():
        async with DatagramProducer(broker.host, broker.port, QUICK) as producer:
            await producer.send("t", 0, b"v")

    run(main)
    assert list(broker.values.values()) == [b"v"]


@pytest.mark.parametrize(
    ("code", "text"), [(10, "t-4: MESSAGE_TOO_LARGE (the topic's max.message.bytes)"), (9999, "t-4: error 9999")]
)
def test_what_is_refused_for_good_is_told(run, broker, code, text):
    broker.judge = lambda _request, _times: code

    async def main():
        async with DatagramProducer(broker.host, broker.port, PATIENT) as producer:
            with pytest.raises(RefusedError) as refusal:
                await producer.send("t", 4, b"v")
            assert producer.in_flight == 0
            return str(refusal.value)

    assert run(main) == text
    assert list(broker.seen.values()) == [1]


def test_without_an_answer_it_gives_up(run, broker):
    broker.judge = lambda _request, _times: None
    settings = DatagramSettings(retry_seconds=0.01, retry_seconds_max=0.02, give_up_seconds=0.3)

    async def main():
        async with DatagramProducer(broker.host, broker.port, settings) as producer:
            with pytest.raises(UnreachableError, match=r"t-0: no answer from 127\.0\.0\.1:\d+ within 0\.3 s"):
                await producer.send("t", 0, b"v")
        broker.judge = lambda _request, _times: 6
        refused = pytest.raises(RefusedError, match=r"t-0, tried for 0\.3 s: NOT_LEADER_OR_FOLLOWER")
        async with DatagramProducer(broker.host, broker.port, settings) as producer:
            with refused, anyio.fail_after(PATIENCE_S):
                while True:
                    with suppress(UnreachableError):  # on a busy machine no answer may come within 0.3 s
                        await producer.send("t", 0, b"v")

    run(main)


def test_nobody_there_is_like_no_answer(run):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    settings = DatagramSettings(retry_seconds=0.01, give_up_seconds=0.3)

    async def main():
        async with DatagramProducer("127.0.0.1", port, settings) as producer:
            with pytest.raises(UnreachableError):
                await producer.send("t", 0, b"v")

    run(main)


def test_who_is_cancelled_leaves_nothing_behind(run, broker):
    broker.judge = lambda _request, _times: None

    async def main():
        async with DatagramProducer(broker.host, broker.port, QUICK) as producer:
            for _ in range(3):
                async with anyio.create_task_group() as tasks:
                    for _ in range(10):
                        tasks.start_soon(producer.send, "t", 0, b"v")
                    while producer.in_flight < 10:
                        await anyio.sleep(0.001)
                    tasks.cancel_scope.cancel()
                assert producer.in_flight == 0
            broker.judge = lambda _request, _times: 0
            await producer.send("t", 0, b"afterwards")

    run(main)
    assert b"afterwards" in broker.values.values()


def test_of_several_nodes_the_one_that_leads_is_found_and_remembered(run):
    others = [HandMadeBroker(), HandMadeBroker()]
    first = HandMadeBroker()
    first.judge = lambda _request, _times: 6
    others[0].judge = lambda _request, _times: None
    more = [(each.host, each.port) for each in others]

    async def main():
        settings = DatagramSettings(retry_seconds=3, give_up_seconds=60)
        async with DatagramProducer(first.host, first.port, settings, other_nodes=more) as producer:
            await producer.send("t", 0, b"found")
            while True:
                before, sent_again = seen(), producer.sent_again
                for _ in range(5):
                    await producer.send("t", 0, b"remembered")
                if producer.sent_again == sent_again:  # a machine that stops for seconds is one that does not answer
                    return before, seen()

    def seen():
        return len(first.seen), len(others[0].seen), len(others[1].seen)

    before, after = run(main)
    for each in (first, *others):
        each.end()
    assert min(before) >= 1, "who refuses and who is silent were asked before the one that leads"
    assert after == (before[0], before[1], before[2] + 5), "they are not asked again"


def test_all_nodes_that_refuse_are_asked_again(run):
    brokers = [HandMadeBroker() for _ in range(2)]
    brokers[1].judge = lambda _request, times: 19 if times < 3 else 0
    brokers[0].judge = lambda _request, _times: 6

    async def main():
        there = [(each.host, each.port) for each in brokers]
        async with DatagramProducer(*there[0], QUICK, other_nodes=there[1:]) as producer:
            await producer.send("t", 0, b"v")
            return producer.sent_again

    assert run(main) >= 5
    for each in brokers:
        each.end()
    assert list(brokers[1].values.values()) == [b"v"]


def test_what_waits_when_it_ends_is_cancelled_with_its_task(run, broker):
    broker.judge = lambda _request, _times: None

    async def main():
        async with DatagramProducer(broker.host, broker.port, QUICK) as producer:
            with anyio.move_on_after(0.05) as scope:
                await producer.send("t", 0, b"v")
            assert scope.cancelled_caught

    run(main)


def test_answers_that_are_not_for_it_mean_nothing(run, broker):
    """Of another partition, or for what nobody waits for."""
    noise = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)

    def judge(request_id: int, times: int) -> int | None:
        if times == 1:
            for sender in broker.senders:
                broker.socket.sendto(HEADER.pack(1, 128, 0, topic_hash("t"), 9, request_id), sender)
                broker.socket.sendto(HEADER.pack(1, 128, 0, topic_hash("t"), 0, request_id + 1), sender)
                broker.socket.sendto(b"noise", sender)
            return None
        return 0

    broker.judge = judge

    async def main():
        async with DatagramProducer(broker.host, broker.port, QUICK) as producer:
            await producer.send("t", 0, b"v")

    run(main)
    noise.close()
    assert all(times >= 2 for times in broker.seen.values())


def test_only_so_many_are_under_way(run, broker):
    settings = DatagramSettings(retry_seconds=0.02, in_flight_max=4)
    most = 0

    async def main():
        nonlocal most
        async with DatagramProducer(broker.host, broker.port, settings) as producer:

            async def send() -> None:
                nonlocal most
                await producer.send("t", 0, b"v")
                most = max(most, producer.in_flight)

            async with anyio.create_task_group() as tasks:
                for _ in range(40):
                    tasks.start_soon(send)

    run(main)
    assert most <= 4
    assert len(broker.seen) == 40


def test_unconfirmed_ones_are_sent_once(run, broker):
    async def main():
        async with DatagramProducer(broker.host, broker.port, QUICK) as producer:
            await producer.send_unconfirmed("t", 0, b"once", key=b"k")
            await producer.send("t", 0, b"behind it")

    run(main)
    assert broker.seen[0] >= 1
    assert broker.values[0] == b"once"


def test_a_host_that_is_none_is_named(run):
    async def main():
        for host in ("no-such-host.invalid", "no-such-host..invalid"):
            with pytest.raises(UnreachableError, match="no-such-host"):
                async with DatagramProducer(host, 9):
                    pass

    run(main)
