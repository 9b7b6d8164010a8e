"""A bank on simulated nodes: tellers that move money in transactions, auditors that read what is committed meanwhile.

A teller is a producer with a transactional id, of the first or the second protocol of transactions. It commits, aborts,
gives up a batch that is still under way and aborts, stands still for longer than its transaction may last, comes again
under its id as a process that knows nothing, and tries to commit as one that was fenced. It notes in a `Ledger` what it
was told, auditors note what they were shown. What no answer may show fails the run at once: a fenced producer that has
committed, a producer's epoch that went back.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from contextlib import suppress
from functools import partial

import trio

from tests.log.log_batches import batch
from tests.simulator.nodes_clients import Client
from tests.support.bank import Ledger, Told, View, committed_legs, transfer_between
from tests.support.raw_transactions import ABORTABLE, AGAIN, COMMITTED_ONLY, TRANSACTION
from tpc_broker.error_codes import ErrorCode
from tpc_broker.kafka import messages
from tpc_broker.kafka.records import ControlType, read_batches

TIMEOUT_MS = 3_000
IMPATIENT_S = 1.5
SECOND_PROTOCOL = 2
VERSIONS = {1: (11, 4), 2: (12, 5)}
"""Versions of Produce and EndTxn, by that of the protocol."""
GIVEN_UP, ABORTED, ZOMBIES = 0.15, 0.15, 0.05
"""So often each of these ends a transaction."""
_CONTROL_KEY = struct.Struct(">hh")


class AbortError(Exception):
    """The transaction can only be aborted."""


class GoneError(Exception):
    """This producer is of no more use."""


class TransactionClient(Client):
    """One that asks the coordinator of a transactional id."""

    def __init__(self, cluster, name, transactional_id):
        super().__init__(cluster, name)
        self.transactional_id = transactional_id
        self._coordinator = None

    async def ask_coordinator(self, message, version):
        """None: there was no answer, or it is nobody's coordinator that was asked."""
        self._coordinator = self._coordinator or await self._find()
        answer = await self.ask(self._coordinator, message, version, answer_s=IMPATIENT_S)
        if answer is None:
            self._coordinator = None
        return answer

    async def _find(self):
        asked = messages.FindCoordinatorRequest(key_type=TRANSACTION, coordinator_keys=[self.transactional_id])
        answer = await self.ask(self.any_broker(), asked, 4, answer_s=IMPATIENT_S)
        if answer is None or answer.coordinators[0].error_code:
            return None
        return self.cluster.broker(answer.coordinators[0].node_id)

    async def lost(self):
        self._coordinator = None
        await self.again()


class TransactionalProducer(TransactionClient):
    """One life of it; one thing at a time."""

    def __init__(self, bank, name, transactional_id, protocol):
        super().__init__(bank.cluster, name, transactional_id)
        self._bank, self._name = bank, name
        self.protocol = protocol
        self._produce_version, self._end_version = VERSIONS[protocol]
        self._producer = -1, -1
        self._sequences = defaultdict(int)
        self._added, self._leaders = set(), {}

    async def _until(self, ask, error_of, *, can_abort=True):
        """What `ask` is answered in the end."""
        while True:
            answer = await ask()
            code = None if answer is None else ErrorCode(error_of(answer))
            if code is ErrorCode.NONE:
                return answer
            if code is not None and code not in AGAIN:
                raise (AbortError if can_abort and code in ABORTABLE else GoneError)(code.name)
            await self.lost()

    async def begin(self):
        asked = messages.InitProducerIdRequest(
            transactional_id=self.transactional_id, transaction_timeout_ms=TIMEOUT_MS, producer_id=-1, producer_epoch=-1
        )
        answer = await self._until(lambda: self.ask_coordinator(asked, 4), lambda answer: answer.error_code)
        self._is_now(answer)

    def _is_now(self, answer):
        self._producer = answer.producer_id, answer.producer_epoch
        self._bank.note_epoch(self.transactional_id, answer.producer_epoch)

    async def _add(self, account):
        """As clients of the first protocol do."""
        if self.protocol >= SECOND_PROTOCOL or account in self._added:
            return
        kind, (topic, index), (producer_id, epoch) = messages.AddPartitionsToTxnRequest, account, self._producer
        asked = kind(
            v3_and_below_transactional_id=self.transactional_id, v3_and_below_producer_id=producer_id,
            v3_and_below_producer_epoch=epoch,
            v3_and_below_topics=[kind.AddPartitionsToTxnTopic(name=topic, partitions=[index])],
        )  # fmt: skip
        await self._until(
            lambda: self.ask_coordinator(asked, 3),
            lambda answer: answer.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code,
        )
        self._added.add(account)

    def _produce(self, account, value):
        kind, (topic, index) = messages.ProduceRequest, account
        data = batch(0, [value], producer=(*self._producer, self._sequences[account]), transactional=True)
        parts = [kind.PartitionProduceData(index=index, records=data)]
        return kind(
            transactional_id=self.transactional_id, acks=-1, timeout_ms=5000,
            topic_data=[kind.TopicProduceData(name=topic, partition_data=parts)],
        )  # fmt: skip

    async def write(self, account, value):
        await self._add(account)
        asked = self._produce(account, value)
        await self._until(partial(self._send, self, account, asked), _error_of_produce)
        self._sequences[account] += 1

    async def _send(self, client, account, asked):
        """By a client, to the leader as this producer knows it. None, or refused: it is looked for the next time."""
        leader = self._leaders.pop(account, None) or await client.leader(*account)
        answer = await client.ask(leader, asked, self._produce_version)
        if answer is not None and not _error_of_produce(answer):
            self._leaders[account] = leader
        return answer

    async def write_and_leave(self, account, value):
        """It is under way by another connection, twice, when this returns."""
        await self._add(account)
        asked = self._produce(account, value)
        late = Client(self.cluster, f"late {self._name}")

        async def send():
            for _ in range(2):
                await self._send(late, account, asked)
                await late.again()

        self.cluster.nursery.start_soon(send)
        await trio.sleep(self.chance.choice([0, 0.002, 0.01, 0.1]))

    async def end(self, *, commits):
        producer_id, epoch = self._producer
        asked = messages.EndTxnRequest(
            transactional_id=self.transactional_id, producer_id=producer_id, producer_epoch=epoch, committed=commits
        )
        answer = await self._until(
            lambda: self.ask_coordinator(asked, self._end_version), lambda answer: answer.error_code, can_abort=False
        )
        self._added.clear()
        if self.protocol >= SECOND_PROTOCOL:
            self._is_now(answer)
            self._sequences.clear()


def _error_of_produce(answer):
    code = answer.responses[0].partition_responses[0].error_code
    return ErrorCode.NONE if code == ErrorCode.DUPLICATE_SEQUENCE_NUMBER else code


class Teller:
    """Transfers one after the other, under one transactional id, over many lives of a producer."""

    def __init__(self, bank, number):
        self._bank, self._name, self._number = bank, f"teller{number}", number
        self.chance = bank.cluster.stream(self._name)
        self._lives = self._transfers = 0
        self._silent_s, self._forgets = 0.0, False
        self._zombie = None

    def fall_silent(self, for_s, *, forgets):
        self._silent_s, self._forgets = for_s, forgets

    def depart(self, for_s):
        self.fall_silent(for_s, forgets=True)

    async def run(self, is_over):
        while not is_over():
            self._lives += 1
            protocol = 1 + (self._number + self._lives // 4) % 2
            producer = TransactionalProducer(self._bank, f"{self._name}.{self._lives}", self._name, protocol)
            with suppress(GoneError, AbortError):
                await producer.begin()
                await self._try_zombie()
                while not is_over() and self._zombie is None:
                    await self._transfer(producer)
                    await trio.sleep(self.chance.uniform(0, 0.6))

    async def _try_zombie(self):
        """Whoever had the id before must not commit any more what it had begun."""
        zombie, self._zombie = self._zombie, None
        if zombie is not None:
            with suppress(GoneError):
                await zombie.end(commits=True)
                self._bank.cluster.fails(f"{self._name}: a producer that was fenced has committed")

    async def _transfer(self, producer):
        self._transfers += 1
        name, note = f"{self._name}/{self._transfers}", self._bank.ledger.note
        note(name, Told.BEGUN)
        legs = transfer_between(name, len(self._bank.accounts), self.chance)
        ending, is_left = self.chance.random(), False
        try:
            for number, (account, leg) in enumerate(legs.items(), 1):
                await self._stand()
                is_left = number == len(legs) and ending < GIVEN_UP
                write = producer.write_and_leave if is_left else producer.write
                await write(self._bank.accounts[account], leg.encode())
            await self._stand()
            if ending < GIVEN_UP + ABORTED:
                raise AbortError("on purpose")
            if ending < GIVEN_UP + ABORTED + ZOMBIES:
                self._zombie = producer  # with its transaction
                return
            note(name, Told.ASKED)
            await producer.end(commits=True)
            note(name, Told.COMMITTED)
        except AbortError:
            await producer.end(commits=False)
            note(name, Told.ABORTED)
            if producer.protocol < SECOND_PROTOCOL:  # else a late batch is part of what comes next
                raise

    async def _stand(self):
        seconds, self._silent_s = self._silent_s, 0.0
        await trio.sleep(seconds)
        if seconds and self._forgets:
            raise GoneError("it has ended, and comes again")


class Auditor(Client):
    """Reads what is committed of an account, again and again, from where it was or from the beginning."""

    def __init__(self, bank, number):
        super().__init__(bank.cluster, f"auditor{number}")
        self._bank, self._number, self._leader = bank, number, None
        self._offset = 0
        self.is_at_end = False
        """Nothing is open, and all was read."""

    async def read(self, *, from_beginning=False):
        """Up to the last stable offset; None: not answered, or refused. Else what is committed, which a view has noted.
        An answer may end where records in memory begin.
        """
        begin = end = 0 if from_beginning else self._offset
        records, aborts, aborted = [], [], {}
        while True:
            found = await self._fetch(end)
            if found is None:
                self._leader = None
                return None
            end = self._take(found, end, records, aborts)
            aborted.update(((each.producer_id, each.first_offset), None) for each in found.aborted_transactions or ())
            if end == found.last_stable_offset:
                break
            if not found.records:
                self._fails(f"read up to {end}, and its last stable offset is {found.last_stable_offset}")
        if end > found.high_watermark:
            self._fails(f"stable up to {end}, and committed up to {found.high_watermark}")
        self._offset, self.is_at_end = end, end == found.high_watermark
        legs = committed_legs(records, list(aborted), aborts)
        self._bank.ledger.views.append(View(self._name_now(begin), self._number, begin, end, legs))
        return legs

    async def _fetch(self, offset):
        topic, index = self._bank.accounts[self._number]
        self._leader = self._leader or await self.leader(topic, index)
        kind = messages.FetchRequest
        part = kind.FetchPartition(
            partition=index, fetch_offset=offset, partition_max_bytes=1 << 24, current_leader_epoch=-1
        )
        asked = kind(
            max_wait_ms=100, min_bytes=1, max_bytes=1 << 24, isolation_level=COMMITTED_ONLY,
            topics=[kind.FetchTopic(topic=topic, partitions=[part])],
        )  # fmt: skip
        answer = await self.ask(self._leader, asked, 12)
        if answer is None or answer.error_code or not answer.responses or answer.responses[0].partitions[0].error_code:
            return None
        return answer.responses[0].partitions[0]

    @staticmethod
    def _take(found, end, records, aborts):
        """Where it ends."""
        for one in read_batches(bytes(found.records or b"")):
            end = one.last_offset + 1
            for each in one.records():
                if not one.is_control:
                    records.append((each.offset, one.producer_id, each.value))
                elif _CONTROL_KEY.unpack(each.key)[1] == ControlType.ABORT:
                    aborts.append((each.offset, one.producer_id))
        return end

    def _fails(self, what):
        self.cluster.fails(f"account {self._number}: {what}")

    def _name_now(self, begin):
        return f"auditor from {begin} at {trio.current_time():.3f} s"


class IdLooker(TransactionClient):
    """Asks what a transactional id's coordinator knows of it, who may not be that any more."""

    def __init__(self, bank, transactional_id):
        super().__init__(bank.cluster, f"looks at {transactional_id}", transactional_id)
        self._bank = bank

    async def look(self):
        known = self._bank.epochs.get(self.transactional_id, -1)
        asked = messages.DescribeTransactionsRequest(transactional_ids=[self.transactional_id])
        answer = await self.ask_coordinator(asked, 0)
        if answer is None:
            return
        (found,) = answer.transaction_states
        code = ErrorCode(found.error_code)
        if code is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND and known >= 0:
            self.cluster.fails(f"{self.transactional_id} was there, and is not known any more")
        elif code is not ErrorCode.NONE:
            self._coordinator = None
        elif found.producer_epoch < known:
            self.cluster.fails(f"{self.transactional_id} has epoch {found.producer_epoch}, and had {known} before")
        else:
            self._bank.note_epoch(self.transactional_id, found.producer_epoch)


class Bank:
    """Of one run. `accounts`: topics and partitions."""

    def __init__(self, cluster, accounts, tellers_count):
        self.cluster, self.accounts, self.ledger = cluster, accounts, Ledger()
        self.epochs: dict[str, int] = {}
        """The newest one that anybody was told, by transactional id."""
        self.members = [Teller(self, number) for number in range(tellers_count)]
        self.auditors = [Auditor(self, number) for number in range(len(accounts))]
        self.lookers = [IdLooker(self, f"teller{number}") for number in range(tellers_count)]

    def note_epoch(self, transactional_id, epoch):
        self.epochs[transactional_id] = max(epoch, self.epochs.get(transactional_id, -1))

    # -- what a run asks of all groups of clients ----------------------------------------------------------------------

    def die(self, number):
        """A process that has ended, and is started again at once."""
        self.members[number].fall_silent(0.001, forgets=True)

    async def why_unsettled(self):
        await trio.lowlevel.checkpoint()
        return ""

    def end(self):
        """Tellers look by themselves whether it is over."""

    # -- at the end ----------------------------------------------------------------------------------------------------

    async def final(self):
        """By account what is committed, when no transaction is open any more."""
        found = {}
        for number, auditor in enumerate(self.auditors):
            while (legs := await auditor.read(from_beginning=True)) is None or not auditor.is_at_end:
                await auditor.again()
            found[number] = legs
        return found
