"""What is done when a handler raises: values that a program writes, and what they decide. No I/O.

    Stop()                          the error surfaces, the record is not finished
    Skip()                          the record counts as finished
    dead_letter("orders.dlq")       the record is written there, and is finished when it is delivered
    Retry(5, then=…)                the handler is called again, up to 5 times more, and then one of the above

A dead letter has the record's key, value and headers, and behind these its own, each name beginning with
`DEAD_LETTER_PREFIX`, all values UTF-8 text:

    dead_letter.topic  dead_letter.partition  dead_letter.offset  dead_letter.timestamp    of the record; ms since 1970
    dead_letter.error  dead_letter.text       class and text of what the handler raised last
    dead_letter.attempts                      how often the handler was called
    dead_letter.time                          when it was given up, ms since 1970

A record that becomes a dead letter a second time has these names twice; the last ones tell of the second time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from tpc_broker.client.codecs.codec import CodecError

if TYPE_CHECKING:
    from collections.abc import Awaitable
    from random import Random

    from tpc_broker.client.values import Headers, Record

DEAD_LETTER_PREFIX: Final = "dead_letter."
TEXT_CHARACTERS_MAX: Final = 1000
"""Of an error's text in a header: a dead letter has to fit where the record did."""


class Send(Protocol):
    """`Client.send`, as far as a dead letter needs it: it returns when the record is delivered."""

    def __call__(
        self, topic: str, value: bytes | None, /, *, key: bytes | None, headers: Headers
    ) -> Awaitable[object]: ...


@dataclass(frozen=True, slots=True)
class Stop:
    """The error surfaces as a `HandlerError`; the record and those behind it are read again."""


@dataclass(frozen=True, slots=True)
class Skip:
    """The record counts as finished. Nothing tells of it but `HandledStatistics.skipped`."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """Made by `dead_letter`."""

    topic: str


LastResort: TypeAlias = Stop | Skip | DeadLetter


@dataclass(frozen=True, slots=True)
class Retry:
    """Call the handler again, up to ``times`` times more, then do what ``then`` says.

    The first pause is ``delay_seconds``, each later one ``backoff`` times as long, at most ``delay_seconds_max``; each
    is made longer or shorter by up to the fraction ``jitter``. Errors that are none of ``errors``, and a
    `CodecError`, go to ``then`` at once. Records of the same key (or partition, as the order says) wait behind it;
    others do not.
    """

    times: int
    delay_seconds: float = 0.5
    backoff: float = 2.0
    delay_seconds_max: float = 60.0
    jitter: float = 0.2
    then: LastResort = Stop()
    errors: tuple[type[Exception], ...] = (Exception,)

    def __post_init__(self) -> None:
        if self.times < 0 or self.delay_seconds < 0 or self.delay_seconds_max < 0 or self.backoff < 1:
            raise ValueError(f"{self}: times and delays are not negative, and backoff is at least 1")
        if not 0 <= self.jitter <= 1:
            raise ValueError(f"{self}: jitter is a fraction of the pause, from 0 to 1")

    def pause_seconds(self, attempts: int, chance: Random) -> float:
        """Before the next attempt, when ``attempts`` (at least 1) have failed."""
        try:
            longer = self.delay_seconds * self.backoff ** (attempts - 1)
        except OverflowError:
            longer = self.delay_seconds_max
        return min(longer, self.delay_seconds_max) * (1 + self.jitter * (2 * chance.random() - 1))


OnError: TypeAlias = LastResort | Retry


def dead_letter(topic: str) -> DeadLetter:
    """What cannot be handled goes to this topic, with headers that say where it came from and why
    (`tpc_broker.client.work.policies`). It is finished when its dead letter is delivered; if that fails, the error
    surfaces as a `DeadLetterError` and the record is not finished.
    """
    if not topic:
        raise ValueError("a dead letter needs a topic")
    return DeadLetter(topic)


def decide(policy: OnError, error: Exception, attempts: int, chance: Random) -> float | LastResort:
    """Seconds until the next attempt, or what is done instead of one. ``attempts`` have been made."""
    if not isinstance(policy, Retry):
        return policy
    if attempts > policy.times or not isinstance(error, policy.errors) or isinstance(error, CodecError):
        return policy.then
    return policy.pause_seconds(attempts, chance)


def dead_letter_headers(record: Record, error: Exception, attempts: int, now_ms: int) -> Headers:
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    told = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "error": name,
        "text": str(error)[:TEXT_CHARACTERS_MAX],
        "attempts": attempts,
        "time": now_ms,
    }
    own = ((DEAD_LETTER_PREFIX + name, str(value).encode(errors="replace")) for name, value in told.items())
    return (*record.headers, *own)
