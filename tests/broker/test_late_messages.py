"""Produces, ends, markers and answers that come late, or twice: each batch is in the transaction of which its client
thinks that it is, or in none.

What nothing defends against is left out, as in Kafka: before transaction.version 2 an end or a marker that comes a
second time, in the midst of the next transaction, names what that one names, too.
"""

from __future__ import annotations

import random
from collections import defaultdict

import pytest
import trio

from tests.support.transaction_clients import Producer, node_with_transactions, produced
from tpc_broker.broker import marker_sender
from tpc_broker.broker.additions import Additions
from tpc_broker.error_codes import ErrorCode as E
from tpc_broker.kafka.records import read_batches, read_control

HELD_S = 3.0
TO_BE_SENT_AGAIN = (E.NOT_ENOUGH_REPLICAS, E.NOT_LEADER_OR_FOLLOWER)


class Network:
    """It holds what it likes for up to `HELD_S`, and may deliver a copy of it later still."""

    def __init__(self, node, seed, nursery):
        self.node, self.chance, self._nursery = node, random.Random(seed), nursery
        self.under_way = 0

    async def hold(self):
        if self.chance.random() < 0.4:
            await trio.sleep(self.chance.uniform(0, HELD_S))

    def later(self, deliver):
        """Whatever comes of it: nobody waits for it."""
        self.under_way += 1

        async def late():
            await trio.sleep(self.chance.uniform(0, 2 * HELD_S))
            await deliver()
            self.under_way -= 1

        self._nursery.start_soon(late)

    def take_markers(self, monkeypatch, *, twice):
        write = marker_sender.write_markers

        async def held(core, markers):
            await self.hold()
            if twice and self.chance.random() < 0.3:
                self.later(lambda: write(core, markers))
            return await write(core, markers)

        monkeypatch.setattr(marker_sender, "write_markers", held)

    def take_answers(self, monkeypatch):
        """Of coordinators that were asked about batches."""
        answered = Additions.until_answered

        async def held(additions, within_s):
            answers = await answered(additions, within_s)
            await self.hold()
            return answers

        monkeypatch.setattr(Additions, "until_answered", held)


class Client:
    """One producer, transaction by transaction; what it thinks of each is in `commits` and `acknowledged`."""

    def __init__(self, network, name, version):
        self.network, self.chance = network, network.chance
        self.producer = Producer(network.node, name, version=version)
        self.commits: dict[str, bool] = {}
        self.acknowledged: set[bytes] = set()

    async def run(self, count):
        await self.producer.until(self.producer.init)
        for number in range(count):
            await self._transaction(f"{self.producer.name}-{number}")

    async def _transaction(self, label):
        producer, is_whole = self.producer, True
        if producer.version < 2:
            await producer.until(lambda: producer.add("data", 0, 1, 2, 3))
        for number in range(self.chance.randint(1, 4)):
            is_whole = is_whole and await self._batch(f"{label}/{number}".encode())
        self.commits[label] = is_whole and self.chance.random() < 0.7
        await self._end(commit=self.commits[label])
        if not is_whole and producer.version < 2:  # it cannot know which sequences were taken
            named = {"producer_id": producer.producer_id, "epoch": producer.epoch}
            await producer.until(lambda: producer.init(**named))

    async def _batch(self, value):
        """Whether it was acknowledged; if not its client gives it up, and the network still has it."""
        index, producer = self.chance.randrange(4), self.producer
        sequence = producer.sequences.get(("data", index), 0)
        producer.sequences["data", index] = sequence + 1
        epoch, what = producer.epoch, self.chance.random()

        async def deliver():
            how = {"sequence": sequence, "epoch": epoch, "connection": self._connection()}
            return await produced(producer.send("data", index, [value], **how))

        if what < 0.2:
            self.network.later(deliver)
            return False
        if what < 0.5:
            self.network.later(deliver)
        await self.network.hold()
        while (told := (await deliver())[0]) in TO_BE_SENT_AGAIN:
            await trio.sleep(0.05)
        assert told is E.NONE, (value, told)
        self.acknowledged.add(value)
        return True

    def _connection(self):
        return self.chance.randrange(100, 1 << 30)

    async def _end(self, *, commit):
        producer, epoch = self.producer, self.producer.epoch

        async def end():
            """The end as it was asked for first, whatever has become of the producer."""
            again = Producer(producer.node, producer.name, self._connection(), version=producer.version)
            again.producer_id, again.epoch = producer.producer_id, epoch
            return await again.end(commit=commit)

        if producer.version >= 2 and self.chance.random() < 0.5:
            self.network.later(end)
        await self.network.hold()
        await producer.until(lambda: producer.end(commit=commit))


def transactions_in(log):
    """Of each that has ended: its values and how it ended; of those that have not, the values."""
    open_values, ended = defaultdict(list), []
    for data in log.batches:
        for batch in read_batches(data):
            records = list(batch.records())
            if batch.is_control:
                values = open_values.pop(batch.producer_id, [])
                ended += [(values, bool(read_control(records[0])[0]))] if values else []
            else:
                open_values[batch.producer_id] += [record.value for record in records]
    return ended, open_values


def logs_of(node):
    keys = [(key, files) for storage in node.files.values() for key, files in storage.items() if files.topic == "data"]
    return [files.log for _key, files in sorted(keys, key=lambda one: one[0].partition)]


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("seed", [0, 18])
async def test_a_batch_is_in_the_transaction_of_which_its_client_thinks_or_in_none(
    autojump_clock, monkeypatch, version, seed
):
    async with node_with_transactions(seed=seed) as node, trio.open_nursery() as nursery:
        node.delay_s_max = 0.02
        network = Network(node, seed, nursery)
        network.take_markers(monkeypatch, twice=version >= 2)
        network.take_answers(monkeypatch)
        clients = [Client(network, name, version) for name in ("a", "b", "c")]
        async with trio.open_nursery() as running:
            for client in clients:
                running.start_soon(client.run, 8)
        while network.under_way:
            await trio.sleep(1)
        for client in clients:
            while not (await client.producer.state()).startswith(("Complete", "Empty")):
                await trio.sleep(0.1)
        commits = {label: commit for client in clients for label, commit in client.commits.items()}
        seen = []
        for log in logs_of(node):
            ended, left_open = transactions_in(log)
            assert not left_open
            assert log.bounds.last_stable_offset == log.log_end_offset
            for values, commit in ended:
                (label,) = {value.decode().split("/")[0] for value in values}
                assert commit == commits[label], values
                seen += values
        assert len(seen) == len(set(seen)), "nothing is there twice"
        acknowledged = set().union(*(client.acknowledged for client in clients))
        assert acknowledged <= set(seen)
        given_up = set(seen) - acknowledged
        assert not any(commits[value.decode().split("/")[0]] for value in given_up)
