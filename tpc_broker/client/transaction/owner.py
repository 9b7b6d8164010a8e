"""Who writes under a transactional id, from one transaction to the next, and how each one ends."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final

import anyio

from tpc_broker.client import transacting
from tpc_broker.client.cluster import is_retriable
from tpc_broker.client.errors import (
    ClientError,
    FencedError,
    RefusedError,
    TransactionAbortedError,
    TransactionError,
    TransactionInDoubtError,
)
from tpc_broker.client.transaction.coordination import FORGOTTEN, LOST, Coordination
from tpc_broker.kafka import ErrorCode

if TYPE_CHECKING:
    from tpc_broker.client.net.fleet import Fleet
    from tpc_broker.client.transacting import OpenTransaction

END_SECONDS: Final = 10.0
"""How long a cancelled block waits for its end to be known, and an aborted one for its abort."""
_NOT_THERE: Final = frozenset({ErrorCode.INVALID_TXN_STATE, *LOST, *FORGOTTEN})
"""The coordinator has not this transaction, or not any more."""


class Outcome(Enum):
    """What became of a transaction."""

    OPEN = "open"
    COMMITTED = "committed"
    ABORTED = "aborted"
    """Nothing of it is seen by who reads committed records, now or later."""
    UNKNOWN = "unknown"
    """The time was over before it was known whether a commit was carried out: it is committed or aborted as a whole."""


class Owner:
    """`begin`, then one of `commit`, `abort` and `leave_unused`; one transaction at a time."""

    def __init__(self, fleet: Fleet, transactional_id: str) -> None:
        self.transactional_id = transactional_id
        self.coordination = Coordination(fleet, transactional_id)
        self._identity: OpenTransaction | None = None
        """Of the transaction that is open, else of the next one."""
        self._is_doubtful = True
        self._timeout_ms = 0
        self._fenced: FencedError | None = None
        self._cancellation: BaseException | None = None

    @property
    def is_announcing(self) -> bool:
        """Whether partitions have to be announced to the coordinator."""
        return self.coordination.level < transacting.FEATURE_LEVEL

    async def begin(self, timeout_ms: int) -> OpenTransaction:
        """Its identity; nothing is asked where the end before has given it. `FencedError`."""
        if self._fenced is not None:
            raise FencedError(self.transactional_id, "another client has taken it over; make a new client to go on")
        if self._identity is None or self._is_doubtful or self._timeout_ms != timeout_ms:
            await self._renew(timeout_ms)
        assert self._identity is not None
        self._is_doubtful = True
        return self._identity

    async def _renew(self, timeout_ms: int) -> None:
        before = self._identity
        try:
            self._identity = await self.coordination.begin(timeout_ms, before)
        except RefusedError as error:
            if error.code in LOST:
                before = None if before is None else await self._after_its_time(before)
                if before is None:
                    raise self._fence(error) from error
            elif error.code not in FORGOTTEN or before is None:
                raise
            else:
                before = None
            self._identity = await self.coordination.begin(timeout_ms, before)
        self._timeout_ms = timeout_ms
        self._is_doubtful = False

    async def _after_its_time(self, before: OpenTransaction) -> OpenTransaction | None:
        try:
            return await self.coordination.after_its_time(before)
        except ClientError:  # it is older than the question, say
            return None

    def _fence(self, error: ClientError) -> FencedError:
        self._fenced = FencedError(self.transactional_id, f"another client has taken it over ({error})")
        return self._fenced

    def doubt(self) -> None:
        """The next transaction asks for an identity anew."""
        self._is_doubtful = True

    def leave_unused(self) -> None:
        """Nothing was sent in it: there is nothing to end."""
        self._is_doubtful = False

    async def commit(self) -> tuple[Outcome, TransactionError | RefusedError | None]:
        """Whether it is committed, and if not, why. Cancelled, it waits `END_SECONDS` more for that, and the caller is
        to raise the cancellation then (`raise_cancellation`).
        """
        self._cancellation = None
        ending = _Ending(self)
        try:
            return await ending.commit()
        except anyio.get_cancelled_exc_class() as cancellation:
            self._cancellation = cancellation
            ending.is_unanswered = True
        with anyio.move_on_after(END_SECONDS, shield=True):
            return await ending.commit()
        return ending.in_doubt(f"no answer within {END_SECONDS:g} s after the cancellation")

    def raise_cancellation(self) -> None:
        """That the last `commit` has put off. asyncio's own `Task.cancel` comes once: no later await would raise it."""
        cancellation, self._cancellation = self._cancellation, None
        if cancellation is not None:
            raise cancellation

    async def abort(self) -> TransactionError | None:
        """Within `END_SECONDS`, whatever is cancelled. What is not aborted then is when its time is over. Given is what
        the coordinator says of it: another client has the id, or its time was over before.
        """
        with anyio.move_on_after(END_SECONDS, shield=True):
            try:
                return await _Ending(self).abort()
            except ClientError:
                return None
        return None

    async def ended(self, *, commits: bool, ending: _Ending) -> None:
        """Asked until it is known."""
        assert self._identity is not None

        def on_unanswered() -> None:
            ending.is_unanswered = True

        self._identity = await self.coordination.end(self._identity, on_unanswered, commits=commits)
        # Below level 2 the epoch is the same, and what is late of an aborted transaction would get into the next one.
        self._is_doubtful = self.is_announcing and not commits

    async def why(self, error: RefusedError) -> TransactionError:
        """Of an end that the coordinator does not take: its own doing (TransactionAbortedError) or another client's."""
        try:
            await self._renew(self._timeout_ms)
        except FencedError as fenced:
            return fenced
        except ClientError as trouble:
            return TransactionError(self.transactional_id, f"{error}, and who has the id is not known: {trouble}")
        seconds = self._timeout_ms / 1000
        text = f"the coordinator aborted it, which it does after timeout_seconds={seconds:g} ({error})"
        return TransactionAbortedError(self.transactional_id, text)


class _Ending:
    """One end; asked for once more after a cancellation."""

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self.is_unanswered = False
        """A commit may have been carried out without an answer."""

    async def commit(self) -> tuple[Outcome, TransactionError | RefusedError | None]:
        owner = self._owner
        try:
            await owner.ended(commits=True, ending=self)
        except RefusedError as error:
            if error.code in _NOT_THERE:
                why = await owner.why(error)
                # A commit that was carried out is told again as long as nobody else has the id.
                is_known = not self.is_unanswered or isinstance(why, TransactionAbortedError)
                return (Outcome.ABORTED if is_known else Outcome.UNKNOWN), why
            if is_retriable(error) or self.is_unanswered:
                return self.in_doubt(str(error))
            found = await owner.abort()
            if error.code == ErrorCode.TRANSACTION_ABORTABLE:
                return Outcome.ABORTED, found or TransactionAbortedError(owner.transactional_id, str(error))
            return Outcome.ABORTED, found or error
        except ClientError as error:
            return self.in_doubt(str(error))
        return Outcome.COMMITTED, None

    def in_doubt(self, why: str) -> tuple[Outcome, TransactionInDoubtError]:
        text = f"whether it is committed is not known: {why}"
        return Outcome.UNKNOWN, TransactionInDoubtError(self._owner.transactional_id, text)

    async def abort(self) -> TransactionError | None:
        owner = self._owner
        try:
            await owner.ended(commits=False, ending=self)
        except RefusedError as error:
            if error.code not in _NOT_THERE:
                raise
            why = await owner.why(error)
            return why if error.code in LOST or isinstance(why, FencedError) else None
        return None
