"""What a client of a SASL listener may send, and in which order: the login of one connection, and its renewals.

    START ──ApiVersions──▶ TOLD ──SaslHandshake──▶ LOGIN ──SaslAuthenticate (or raw tokens)──▶ OPEN
      └──────────SaslHandshake─────────────────────▲                                          │
                                                   └───────────SaslHandshake (KIP-368)────────┘

ApiVersions counts when it was answered without an error, and a second one ends the connection, as does whatever else
comes in a wrong place. What Kafka answers first (ILLEGAL_SASL_STATE) is answered first.

After version 0 of SaslHandshake the mechanism's messages are frames without a header of Kafka's (`has_raw_tokens`), and
such a client cannot renew its login. A renewal has to be by the same mechanism, and of the same principal; what else
the client asks meanwhile is served as before, in its old session.

The machine says what to do; a connection that has FAILED is closed when its last answer was sent.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING, Final

from tpc_broker.auth.exchange import Failed, Mechanism
from tpc_broker.error_codes import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tpc_broker.auth.exchange import Done, Exchange, Step
    from tpc_broker.auth.principals import Principal

RENEWAL_PAUSE_MS: Final = 1000
"""Of two renewals the second begins no sooner: its SaslHandshake is answered ILLEGAL_SASL_STATE, as in Kafka."""
RAW_TOKENS_VERSION: Final = 0
"""Of SaslHandshake."""


class Stage(Enum):
    START = auto()
    TOLD = auto()
    """What this broker speaks, and nothing else yet."""
    LOGIN = auto()
    OPEN = auto()
    WRONG_MECHANISM = auto()
    """A renewal by another mechanism was begun; it is refused with its next message."""
    FAILED = auto()


class Verdict(Enum):
    """Of a request, before it is handled."""

    SERVE = auto()
    ILLEGAL = auto()
    """Answered with ILLEGAL_SASL_STATE, and the connection is closed."""
    CLOSE = auto()
    """Without an answer."""


class Asked(Enum):
    """The kinds of request that make a difference."""

    API_VERSIONS = auto()
    HANDSHAKE = auto()
    AUTHENTICATE = auto()
    RAW_TOKEN = auto()
    OTHER = auto()


_BEFORE_LOGIN: Final = {
    Stage.START: {Asked.API_VERSIONS: Verdict.SERVE, Asked.HANDSHAKE: Verdict.SERVE},
    Stage.TOLD: {Asked.HANDSHAKE: Verdict.SERVE},
    Stage.LOGIN: {Asked.API_VERSIONS: Verdict.ILLEGAL, Asked.HANDSHAKE: Verdict.ILLEGAL},
}


@dataclass(frozen=True, slots=True)
class Session:
    """A login that succeeded. `lifetime_ms`: until it has to be renewed; 0: it needs not be."""

    principal: Principal
    lifetime_ms: int
    is_renewal: bool


class SaslSession:
    """Of one connection."""

    def __init__(
        self, mechanisms: Sequence[Mechanism], begin: Callable[[Mechanism], Exchange], lifetime_ms_max: int
    ) -> None:
        """`mechanisms` are offered, in this order; `begin` makes a login's machine. `lifetime_ms_max`: of a session,
        0 for no end.
        """
        self.mechanisms = tuple(mechanisms)
        self._begin = begin
        self._lifetime_ms_max = lifetime_ms_max
        self._stage = Stage.START
        self._exchange: Exchange | None = None
        self._mechanism: Mechanism | None = None
        self._principal: Principal | None = None
        self._renewed_ms: int | None = None
        self.has_raw_tokens = False
        """The frames that come are a mechanism's messages."""

    @property
    def stage(self) -> Stage:
        return self._stage

    @property
    def is_open(self) -> bool:
        """Whether the client is let in, and does not renew that just now."""
        return self._stage is Stage.OPEN

    @property
    def is_served(self) -> bool:
        """Whether it has been let in."""
        return self._principal is not None and self._stage is not Stage.FAILED

    @property
    def mechanism(self) -> Mechanism | None:
        """That the client has chosen."""
        return self._mechanism

    @property
    def principal(self) -> Principal | None:
        """Who it is, once it was let in."""
        return self._principal

    def verdict(self, asked: Asked) -> Verdict:
        """What becomes of a request that comes now. Anything but SERVE is the end: nothing more is served."""
        stage = self._stage
        token = Asked.RAW_TOKEN if self.has_raw_tokens else Asked.AUTHENTICATE
        if stage is Stage.OPEN:
            verdict = Verdict.CLOSE if asked is Asked.RAW_TOKEN else Verdict.SERVE
        elif (stage is Stage.LOGIN and asked is token) or (
            self.is_served and asked in (Asked.API_VERSIONS, Asked.OTHER)
        ):
            verdict = Verdict.SERVE
        else:
            verdict = _BEFORE_LOGIN.get(stage, {}).get(asked, Verdict.CLOSE)
        if verdict is not Verdict.SERVE:
            self.fail()
        return verdict

    def told_versions(self) -> None:
        """ApiVersions was answered without an error."""
        if self._stage is Stage.START:
            self._stage = Stage.TOLD

    def shake_hands(self, name: str, version: int, now_ms: int) -> ErrorCode:
        """SaslHandshake for a mechanism. `now_ms`: of the monotonic clock."""
        assert self._stage in (Stage.START, Stage.TOLD, Stage.OPEN), self._stage
        if self._stage is Stage.OPEN:
            return self._shake_hands_again(name, version, now_ms)
        if name not in self.mechanisms:
            self.fail()
            return ErrorCode.UNSUPPORTED_SASL_MECHANISM
        self._mechanism = Mechanism(name)
        self.has_raw_tokens = version == RAW_TOKENS_VERSION
        self._log_in(self._mechanism)
        return ErrorCode.NONE

    def _shake_hands_again(self, name: str, version: int, now_ms: int) -> ErrorCode:
        assert self._mechanism is not None
        if self._renewed_ms is not None and now_ms - self._renewed_ms < RENEWAL_PAUSE_MS:
            return ErrorCode.ILLEGAL_SASL_STATE
        self._renewed_ms = now_ms
        if name not in self.mechanisms:
            self.fail()
            return ErrorCode.UNSUPPORTED_SASL_MECHANISM
        if name != self._mechanism or version == RAW_TOKENS_VERSION:
            self._stage = Stage.WRONG_MECHANISM
        else:
            self._log_in(self._mechanism)
        return ErrorCode.NONE

    def _log_in(self, mechanism: Mechanism) -> None:
        self._exchange = self._begin(mechanism)
        self._stage = Stage.LOGIN

    def step(self, message: bytes) -> Step:
        """A message of the mechanism's; what comes of it is handed to `let_in` or `fail` by the driver."""
        assert self._stage is Stage.LOGIN, self._stage
        assert self._exchange is not None
        return self._exchange.step(message)

    def let_in(self, done: Done, wall_ms: int) -> Session | Failed:
        """The client has proved who it is: its session, or why there is none all the same."""
        assert self._stage is Stage.LOGIN, self._stage
        lifetimes = [self._lifetime_ms_max] if self._lifetime_ms_max > 0 else []
        if done.expires_ms is not None:
            lifetimes.append(done.expires_ms - wall_ms)
        is_renewal = self._principal is not None
        if self._principal not in (None, done.principal):
            self.fail()
            before, now = (f"{each.kind}.{each.name}" for each in (self._principal or done.principal, done.principal))
            changed = f"Cannot change principals during re-authentication from {before}: {now}"
            return Failed(changed, changed)
        if lifetimes and min(lifetimes) <= 0:
            self.fail()
            return Failed(f"what proves {done.principal} has expired")
        self._principal = done.principal
        self._stage, self._exchange, self.has_raw_tokens = Stage.OPEN, None, False
        return Session(done.principal, min(lifetimes, default=0), is_renewal)

    def fail(self) -> None:
        """Nothing is served any more."""
        self._stage, self._exchange, self.has_raw_tokens = Stage.FAILED, None, False
