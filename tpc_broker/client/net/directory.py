"""What the cluster's metadata say: brokers, topics, leaders. One question at a time, for all who want to know.

Facts stay in use until newer ones come. What proved wrong is *doubted* from then on: who awaits it gets an answer to a
question that was asked later. Questions about what is known already leave at most ten times a second, however many
tasks have doubts; those about topics seen for the first time leave at once.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import anyio

from tpc_broker.client.errors import ClientError, ClosedError
from tpc_broker.client.requests import ClusterFacts, Node, TopicFacts

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable

    from tpc_broker.client.net.tasks import Background

QUIET_SECONDS: Final = 0.1
"""Between two questions about what is known."""
NO_FACTS: Final = TopicFacts(b"", is_internal=False, leaders={}, epochs={})


class _Round:
    """One question, while others may still join it."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.wants_all = False
        self.is_urgent = anyio.Event()
        self.is_answered = anyio.Event()
        self.answer: ClusterFacts | ClientError | None = None


class Directory:
    """``ask`` puts one question to the cluster: about these topics, or None, all. `close` ends all waiting."""

    def __init__(
        self, ask: Callable[[list[str] | None], Awaitable[ClusterFacts]], tasks: Background, max_age_seconds: float
    ) -> None:
        self.nodes: dict[int, Node] = {}
        self._topics: dict[str, TopicFacts] = {}
        self._asked_at: dict[str, float] = {}
        """When a question about a topic was put last, whatever was answered."""
        self._doubted: dict[str, float] = {}
        self._all_doubted = 0.0
        self._forgotten: set[str] = set()
        self._ask = ask
        self._tasks = tasks
        self._max_age_seconds = max_age_seconds
        self._next: _Round | None = None
        self._under_way: _Round | None = None
        self._is_running = self._is_closed = False
        self._last_asked = float("-inf")

    def known(self, name: str) -> TopicFacts | None:
        """What was heard last, doubted or not."""
        return self._topics.get(name)

    def believed(self, name: str) -> TopicFacts | None:
        """What is not doubted."""
        found = self._topics.get(name)
        if found is None or self._asked_at[name] <= max(self._all_doubted, self._doubted.get(name, 0.0)):
            return None
        return found

    def usable(self, name: str) -> TopicFacts | None:
        """What is at most doubted, and not forgotten."""
        return None if name in self._forgotten else self._topics.get(name)

    def doubt(self, names: Iterable[str] | None = None) -> None:
        """What is known of these topics (None: of all) may be wrong. It is asked for soon, also when nobody waits."""
        now = time.monotonic()
        if names is None:
            self._all_doubted = now
            doubted = list(self._topics)
        else:
            doubted = [name for name in names if name in self._topics]
            self._doubted.update(dict.fromkeys(doubted, now))
        if doubted and not self._is_closed:
            self._join(doubted)

    def forget(self, names: Iterable[str] | None = None) -> None:
        """The same, and nobody uses it any more."""
        forgotten = list(self._topics if names is None else names)
        self._forgotten.update(name for name in forgotten if name in self._topics)
        self.doubt(forgotten)

    async def ask(self, names: Collection[str] | None) -> ClusterFacts:
        """Asked anew, once: about topics, all (None) or none but the brokers. `ClientError` when nobody answers.

        The answer may tell of further topics that others wanted to know of.
        """
        if self._is_closed:
            raise ClosedError("the client is closed")
        joined = self._join(names)
        if names is None or not names or any(name not in self._asked_at for name in names):
            joined.is_urgent.set()
        await joined.is_answered.wait()
        if isinstance(joined.answer, ClusterFacts):
            return joined.answer
        assert joined.answer is not None
        raise joined.answer.again()

    def _join(self, names: Collection[str] | None) -> _Round:
        if self._next is None:
            self._next = _Round()
        self._next.names.update(names or ())
        self._next.wants_all |= names is None
        if not self._is_running:
            self._is_running = True
            self._tasks.start_soon(self._run)
        return self._next

    async def _run(self) -> None:
        """Put questions as long as somebody has any."""
        while self._next is not None and not self._is_closed:
            with anyio.move_on_after(self._last_asked + QUIET_SECONDS - time.monotonic()):
                await self._next.is_urgent.wait()
            self._under_way, self._next = self._next, None
            await self._carry_out(self._under_way)
        self._is_running = False

    async def _carry_out(self, asked: _Round) -> None:
        self._last_asked = time.monotonic()
        try:
            answer = await self._ask(None if asked.wants_all else sorted(asked.names))
            missing = asked.names - set(answer.topics) - set(answer.errors)
            asked.answer = answer._replace(missing=missing)
            self._learn(asked.answer, self._last_asked)
        except ClientError as error:
            asked.answer = error
        finally:
            asked.answer = asked.answer or ClosedError("the client was closed")
            asked.is_answered.set()

    def _learn(self, facts: ClusterFacts, asked_at: float) -> None:
        if facts.nodes:
            self.nodes = facts.nodes
        for name, found in facts.topics.items():
            self._topics[name] = _newer(self._topics.get(name, NO_FACTS), found)
            self._asked_at[name] = asked_at
            self._doubted.pop(name, None)
            self._forgotten.discard(name)
        for name in facts.missing:
            self._asked_at[name] = asked_at
            self._forgotten.discard(name)
            self._topics.pop(name, None)
            self._doubted.pop(name, None)

    async def stay_fresh(self) -> None:
        """A task: ask again for what grows old, so that new partitions are seen and leaders known in time."""
        while True:
            oldest = min(self._asked_at.values(), default=time.monotonic())
            await anyio.sleep(max(oldest + self._max_age_seconds - time.monotonic(), self._max_age_seconds / 10))
            aged = time.monotonic() - self._max_age_seconds
            aged_names = [name for name, asked_at in self._asked_at.items() if asked_at <= aged]
            names = [name for name in aged_names if name in self._topics]
            for name in aged_names:
                if name not in self._topics:
                    del self._asked_at[name]
            if names:
                try:
                    await self.ask(names)
                except ClientError:  # what is known stays in use, and is asked for again
                    continue

    def close(self) -> None:
        self._is_closed = True
        for waited_for in (self._under_way, self._next):
            if waited_for is not None and waited_for.answer is None:
                waited_for.answer = ClosedError("the client was closed")
                waited_for.is_answered.set()


def _newer(before: TopicFacts, heard: TopicFacts) -> TopicFacts:
    """A broker that is behind tells of leaders that are no more: none of an older epoch than is known is taken."""
    if before.topic_id != heard.topic_id:
        return heard
    leaders, epochs = dict(heard.leaders), dict(heard.epochs)
    for partition, epoch in heard.epochs.items():
        if 0 <= epoch < before.epochs.get(partition, -1):
            leaders[partition], epochs[partition] = before.leaders[partition], before.epochs[partition]
    return heard._replace(leaders=leaders, epochs=epochs)
