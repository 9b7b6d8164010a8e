"""Writes whose rows are there once, or not at all: what tasks prepare, and how the driver commits it.

A task writes its rows in a transaction of its own and leaves that open. The transactional id has the write's name, the
task's partition and its attempt, so attempts of one partition never disturb each other: the driver commits the one that
Spark took, and the others are aborted. Then nothing depends on how a repeated write is cut into tasks. A stream's has
its run as well: a task would abort what another driver, which was taken for dead, has just decided to commit.

A write that has a number (a stream's epoch; a batch write with `txnAppId` and `txnVersion`) is committed in three
steps, and a driver may die before, in and after each:

1. The list of its transactions is written to the ledger (`tpc_broker.spark.epochs`).
2. It is *decided*: a transaction of the driver's own id commits an offset of the group that is named like the write:
   the number, with the list's place as metadata. Whoever begins that id afterwards sees the offset, or has made the
   other driver's decision impossible, so a write is decided once.
3. Its transactions are committed, and the ledger notes the number.

A write that is repeated asks first. Is its number noted or decided, then tasks write nothing, and the driver does what
is left of step 3; is it not, then all that was prepared is begun anew or aborted. A decided transaction that the
coordinator aborted all the same (`transaction.timeout.ms` went by before the driver came back) is a loss, which is told
and never passed over, unless `failOnDataLoss` is false.

A batch write without a number has nobody who asks for it again, so it is step 3 alone: if that ends half way, the write
is there in part, and its error says so.
"""

import logging
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Final

from tpc_broker.client import transacting
from tpc_broker.client.cluster import Cluster
from tpc_broker.client.errors import ClientError, RefusedError
from tpc_broker.client.transacting import OpenTransaction
from tpc_broker.client.transactions import ONGOING, describe_transactions, list_transactions
from tpc_broker.kafka import ErrorCode
from tpc_broker.spark.epochs import EpochLedger
from tpc_broker.spark.given import OptionError
from tpc_broker.spark.options import TransactionOptions

DECISION_TIMEOUT_MS: Final = 60_000
DECISION_WAIT_SECONDS: Final = 3.0
"""After which a decision that is under way is taken for one of a driver that has died."""
NAMED_MAX: Final = 5
"""Of lost transactions in one message."""
logger = logging.getLogger("tpc.spark")


class LostTransactionsError(RuntimeError):
    """Rows that a task wrote were aborted by the coordinator before, or although, their commit was decided."""


class NoTransactionsError(RuntimeError):
    """`exactlyOnce` was asked for, and the cluster has not the transactions for it."""


@dataclass(frozen=True, slots=True)
class WriteName:
    """What is written. ``version`` counts up; None: nobody will ask for this write again."""

    name: str
    version: int | None

    def __str__(self) -> str:
        return self.name if self.version is None else f"{self.name}, number {self.version}"


@dataclass(frozen=True, slots=True)
class _Decision:
    version: int
    list_offset: int


def uses_transactions(cluster: Cluster, options: TransactionOptions) -> bool:
    """`NoTransactionsError`: they are asked for, and not there."""
    if options.mode == "false":
        return False
    level = transacting.level_spoken_by(cluster)
    if level >= transacting.FEATURE_LEVEL:
        return True
    if options.mode == "auto":
        return False
    raise NoTransactionsError(
        f"exactlyOnce is true, and the cluster at {cluster.settings.bootstrap} has {transacting.FEATURE} {level}; "
        f"{transacting.FEATURE_LEVEL} is needed (tpc-broker at feature level 5 or above, Kafka 4.0 or newer). Nothing "
        "has been written yet; exactlyOnce=false writes at least once"
    )


class TransactionalWrite:
    """One write, as its tasks and its driver see it, each with a cluster of their own. It keeps nothing."""

    def __init__(self, cluster: Cluster, options: TransactionOptions, about: WriteName) -> None:
        self._cluster = cluster
        self._options = options
        self._about = about
        self._ledger = EpochLedger(cluster)
        self._group = f"{options.prefix}-{about.name}"

    def was_committed(self) -> bool:
        """Asked by every task before its first row. What an earlier write of this name left half committed is
        committed first: its transactional ids are about to be begun anew.
        """
        version = self._about.version
        if version is None:
            return False
        decision = self._settled_decision()
        if decision is None and self._ledger.is_missing():
            return False
        noted = self._ledger.newest(self._about.name)
        if version <= noted:
            return True
        if decision is None or decision.version <= noted:
            return False
        if decision.version >= version:
            return True  # what is left to do is the driver's
        self._finish(decision)
        return False

    def begin(self, partition: int, attempt: int, run: str | None = None) -> OpenTransaction:
        """A task's transaction. ``run``: what tells a driver's tasks from those of another one."""
        of_run = "" if run is None else f"/{sha256(run.encode()).hexdigest()[:8]}"
        name = f"{self._group}{of_run}-{partition}-{attempt}"
        try:
            return transacting.begin(self._cluster, name, self._options.timeout_ms)
        except RefusedError as error:
            if error.code != ErrorCode.INVALID_TRANSACTION_TIMEOUT:
                raise
            raise OptionError(
                f"kafka.transaction.timeout.ms is {self._options.timeout_ms}, more than the cluster allows "
                "(transaction.max.timeout.ms)"
            ) from None

    # Rule: What others have open is aborted only in the epoch in which it was seen, and seen before it was certain that
    # this write was not noted: so nothing of a later number is among it, which a driver that was left behind would
    # abort when its commit is decided. Held by tests/spark/test_exactly_once.py.
    def commit(self, prepared: Sequence[OpenTransaction]) -> None:
        """All of them, which are of the attempts that Spark took; and abort those of others."""
        others = self._others(prepared)
        if self._about.version is None:
            self._check_open(prepared)
            self._check_committed(transacting.end_all(self._cluster, prepared, commits=True))
        elif self._ledger.is_committed(self._about.name, self._about.version):
            others = list(prepared)
        else:
            self._finish(self._decide(self._about.version, prepared))
        self._abort(others)

    def abort(self, prepared: Sequence[OpenTransaction]) -> None:
        """Unless the write was decided: then it is committed when it is repeated. What tasks of another driver have
        open is that one's matter, where it is known whose these are.
        """
        runs = set(map(_without_task, prepared))
        others = [one for one in self._others(prepared) if not runs or _without_task(one) in runs]
        try:
            if self._about.version is not None:
                self._begin_decision()  # one that was under way is settled by this
                decision = self._decision()
                if decision is not None and decision.version >= self._about.version:
                    return
        except ClientError as error:
            logger.warning("transactions of %s stay open until they time out: %s", self._about, error)
            return
        self._abort([*prepared, *others])

    def _decide(self, version: int, prepared: Sequence[OpenTransaction]) -> _Decision:
        """The decision about this number, whoever made it."""
        where = self._ledger.make_topic()
        deciding = self._begin_decision()
        found = self._decision()
        if found is not None and found.version >= version:
            transacting.end_all(self._cluster, prepared, commits=False)
            return found
        self._check_open(prepared)
        offset = self._ledger.write_transactions(self._about.name, version, prepared)
        transacting.commit_offset(self._cluster, deciding, self._group, where, version, str(offset))
        for error in transacting.end_all(self._cluster, [deciding], commits=True).values():
            raise error
        return _Decision(version, offset)

    def _begin_decision(self) -> OpenTransaction:
        return transacting.begin(self._cluster, f"{self._group}-commit", DECISION_TIMEOUT_MS)

    def _settled_decision(self) -> _Decision | None:
        """Also where a driver died in the middle of it."""
        try:
            return self._decision(DECISION_WAIT_SECONDS)
        except RefusedError as error:
            if error.code != ErrorCode.UNSTABLE_OFFSET_COMMIT:
                raise
        self._begin_decision()
        return self._decision()

    def _decision(self, wait_seconds: float | None = None) -> _Decision | None:
        found = transacting.stable_offset(self._cluster, self._group, self._ledger.where, wait_seconds)
        return None if found is None else _Decision(found[0], int(found[1]))

    def _finish(self, decision: _Decision) -> None:
        """May be done by several at once, and again."""
        name = self._about.name
        listed = self._ledger.transactions(name, decision.version, decision.list_offset)
        refused = transacting.end_all(self._cluster, listed, commits=True)
        if refused and not self._ledger.is_committed(name, decision.version):  # else another has done it meanwhile
            self._check_committed(refused)
        self._ledger.commit(name, decision.version)

    def _check_open(self, prepared: Iterable[OpenTransaction]) -> None:
        """Before anything is decided: `LostTransactionsError`, after which the write can be repeated as a whole."""
        wanted = {one.transactional_id: one for one in prepared}
        found = describe_transactions(self._cluster, wanted)
        lost = [str(one) for name, one in wanted.items() if not one.is_open(found.get(name))]
        if lost:
            raise LostTransactionsError(
                f"{self._about}: nothing is committed, because {len(lost)} of {len(wanted)} transactions were aborted "
                f"before all tasks were done: {_some(lost)}. Either kafka.transaction.timeout.ms = "
                f"{self._options.timeout_ms} went by, or another driver writes under the same name"
            )

    def _check_committed(self, refused: dict[OpenTransaction, RefusedError]) -> None:
        if not refused:
            return
        said = (
            f"{self._about}: {len(refused)} transactions were aborted although their commit was decided, so the rows "
            f"of these tasks are lost, and those of others are there: {_some([str(one) for one in refused.values()])}"
        )
        if self._about.version is None or self._options.fails_on_data_loss:
            raise LostTransactionsError(f"{said}. failOnDataLoss=false goes on without them")
        logger.warning("%s; going on, as failOnDataLoss is false", said)

    def _others(self, prepared: Iterable[OpenTransaction]) -> list[OpenTransaction]:
        """Open ones of attempts that Spark did not take, of this driver or an earlier one: until they end, readers of
        committed records wait for them.
        """
        own = re.compile(rf"{re.escape(self._group)}(/[0-9a-f]{{8}})?-\d+-\d+")
        known = {one.transactional_id for one in prepared}
        try:
            listed = (one.transactional_id for one in list_transactions(self._cluster, [ONGOING]))
            names = [name for name in listed if own.fullmatch(name) and name not in known]
            found = describe_transactions(self._cluster, names)
        except ClientError as error:
            logger.info("what other attempts left of %s times out by itself: %s", self._about, error)
            return []
        return [
            OpenTransaction(name, one.producer_id, one.producer_epoch)
            for name, one in found.items()
            if one.is_open
        ]

    def _abort(self, transactions: Sequence[OpenTransaction]) -> None:
        """Those that are open still."""
        try:
            transacting.end_all(self._cluster, transactions, commits=False)
        except ClientError as error:
            logger.warning("transactions of %s stay open until they time out: %s", self._about, error)


def _without_task(transaction: OpenTransaction) -> str:
    """Of its id what all tasks of a write and run have in common."""
    return transaction.transactional_id.rsplit("-", 2)[0]


def _some(words: Sequence[str]) -> str:
    more = len(words) - NAMED_MAX
    return "; ".join(words[:NAMED_MAX]) + (f"; and {more} more" if more > 0 else "")
