"""Logins of one core's connections: what clients of SASL listeners do before they are served, and now and then after.

A connection of such a listener has a `SaslSession`, which says what may come next; the dispatcher asks it before each
request (`Authentication.gate`), and serves nothing else before the client is let in. Users are those of the image, of
the moment: with a user its open logins end, and its sessions at their next renewal.

A login that fails is answered, and its connection closed, `connection.failed.authentication.delay.ms` after the message
came, whatever was wrong with it and however long that took to find out. The answer says nothing of who there is.

Derivations of PLAIN's passwords are done by threads, `DERIVATIONS_MAX` at once, and at most `DERIVATIONS_WAITING_MAX`
wait: a connection above that is closed, and its client comes again.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast

import trio

from tpc_broker.auth.credentials import ScramMechanism
from tpc_broker.auth.exchange import Done, Failed, Mechanism, Work
from tpc_broker.auth.oauthbearer import OAuthBearerExchange
from tpc_broker.auth.plain import PlainExchange, RecentLogins, usual_verifier
from tpc_broker.auth.principals import Subject
from tpc_broker.auth.scram import ScramExchange, stand_in, usual_shape
from tpc_broker.auth.session import Asked, SaslSession, Verdict
from tpc_broker.error_codes import ErrorCode
from tpc_broker.kafka import messages
from tpc_broker.kafka.api_keys import ApiKey
from tpc_broker.kafka.message import Message
from tpc_broker.metadata.sasl_settings import mechanisms_of, session_ms_max_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from tpc_broker.auth.credentials import ScramCredential
    from tpc_broker.auth.exchange import Challenge, Exchange
    from tpc_broker.auth.scram import Shape
    from tpc_broker.auth.session import Session
    from tpc_broker.broker.dispatch import ConnectionState, CoreWithClients
    from tpc_broker.broker.handled import Request
    from tpc_broker.metadata.listeners import Listener

log = logging.getLogger(__name__)

RAW_TOKEN: Final = -1
"""In place of an API's key: the frame is a mechanism's message, without a header."""
DERIVATIONS_MAX: Final = 2
DERIVATIONS_WAITING_MAX: Final = 256
FAILED: Final = "Authentication failed during {} due to invalid credentials with SASL mechanism {}"
"""Kafka's words."""
MECHANISM_SHOWN_MAX: Final = 32
LIFETIME_VERSION: Final = 1
"""SaslAuthenticate tells how long a session is from here on."""
_ASKED: Final = {
    int(ApiKey.API_VERSIONS): Asked.API_VERSIONS,
    int(ApiKey.SASL_HANDSHAKE): Asked.HANDSHAKE,
    int(ApiKey.SASL_AUTHENTICATE): Asked.AUTHENTICATE,
    RAW_TOKEN: Asked.RAW_TOKEN,
}


class NotLoggedInError(Exception):
    """A request that comes before its client has logged in: the connection is closed without an answer."""


@dataclass(frozen=True, slots=True)
class AuthenticationStatistics:
    """Since the core started."""

    succeeded: int
    failed: int
    renewed: int
    """Of those that succeeded: by clients that had logged in on their connection before."""
    renewals_failed: int
    """Of those that failed."""


class Authentication:
    """Of a core."""

    def __init__(self, core: CoreWithClients, listeners: Sequence[Listener], secret: bytes) -> None:
        """`secret`: of the broker, for users who are not there (`auth.scram`)."""
        self._core, self._secret = core, secret
        self._recent: RecentLogins | None = None
        self._seen: Mapping[tuple[str, ScramMechanism], ScramCredential] | None = None
        self._shapes: dict[ScramMechanism, Shape] = {}
        self._usual_verifier: ScramMechanism | None = None
        """Of the users that were seen last, both."""
        self._listeners = {
            number: listener for number, listener in enumerate(listeners) if listener.security.authenticates
        }
        self.makers: dict[Mechanism, Callable[[], Exchange]] = {
            Mechanism.PLAIN: self._plain,
            Mechanism.SCRAM_SHA_256: lambda: self._scram(ScramMechanism.SCRAM_SHA_256),
            Mechanism.SCRAM_SHA_512: lambda: self._scram(ScramMechanism.SCRAM_SHA_512),
            Mechanism.OAUTHBEARER: self._token,
        }
        """A login's machine, by mechanism."""
        self._deriving = trio.CapacityLimiter(DERIVATIONS_MAX)
        self._succeeded = self._failed = self._renewed = self._renewals_failed = 0

    def statistics(self) -> AuthenticationStatistics:
        return AuthenticationStatistics(self._succeeded, self._failed, self._renewed, self._renewals_failed)

    def session_of(self, listener: int) -> SaslSession | None:
        """For a new connection of a listener; None where nobody logs in."""
        found = self._listeners.get(listener)
        if found is None:
            return None
        settings = self._core.settings
        offered, lifetime_ms_max = mechanisms_of(found, settings), session_ms_max_of(found, settings)
        return SaslSession(offered, lambda mechanism: self.makers[mechanism](), lifetime_ms_max)

    def credential(self, user: str, mechanism: ScramMechanism) -> ScramCredential | None:
        return self._core.view.image.scram_users.get((user, mechanism))

    def stand_in(self, user: str, mechanism: ScramMechanism) -> ScramCredential:
        known = self._users_seen()
        shape = self._shapes.get(mechanism)
        if shape is None:
            shape = usual_shape(credential for (_user, kind), credential in known.items() if kind is mechanism)
            self._shapes[mechanism] = shape
        return stand_in(mechanism, user, self._secret, shape)

    def usual_verifier(self) -> ScramMechanism:
        known = self._users_seen()
        if self._usual_verifier is None:
            self._usual_verifier = usual_verifier(known)
        return self._usual_verifier

    def _users_seen(self) -> Mapping[tuple[str, ScramMechanism], ScramCredential]:
        """What was counted of others is forgotten."""
        known = self._core.view.image.scram_users
        if known is not self._seen:
            self._seen, self._shapes, self._usual_verifier = known, {}, None
        return known

    # -- what may come next --------------------------------------------------------------------------------------------

    # Rule: On a SASL listener nothing is handled before its client has logged in but what a login consists of, in its
    # order, and nothing at all while the metadata are not loaded. See also tpc_broker/auth/session.py,
    # tpc_broker/broker/dispatch.py. Held by tests/auth/test_session.py, tests/integration/test_sasl.py.
    def gate(self, session: SaslSession, request: Request) -> Awaitable[None] | None:
        """None: the request may be handled. Else what answers it and closes the connection. NotLoggedInError."""
        asked = _ASKED.get(request.api_key, Asked.OTHER)
        stage = session.stage
        if self._core.view.image.version == 0:
            session.fail()
            raise NotLoggedInError("the metadata are not loaded")
        verdict = session.verdict(asked)
        if verdict is Verdict.SERVE:
            return None
        if verdict is Verdict.ILLEGAL:
            return self._illegal(request)
        what = "a token" if asked is Asked.RAW_TOKEN else f"API {request.api_key}"
        raise NotLoggedInError(f"{what} does not come here in a login ({stage.name.lower()})")

    async def _illegal(self, request: Request) -> None:
        code = int(ErrorCode.ILLEGAL_SASL_STATE)
        is_handshake = request.api_key == ApiKey.SASL_HANDSHAKE
        kind = messages.SaslHandshakeResponse if is_handshake else messages.ApiVersionsResponse
        await self._end(request, kind(error_code=code))

    async def _end(self, request: Request, answer: Message | None) -> None:
        """The answer to a login that failed, if there is one, and the end of its connection."""
        passed_ms = self._core.clock.monotonic_ms() - request.received_ns // 1_000_000
        left_ms = self._core.settings.connection_failed_authentication_delay_ms - passed_ms
        with self._core.dispatcher.while_open(request.connection):
            await trio.sleep(max(0, left_ms) / 1000)
        self._core.dispatcher.answer_last(request, answer)

    def _refuse(self, session: SaslSession, request: Request, failed: Failed) -> Awaitable[None]:
        self._note_failure(session, request, failed.reason)
        if request.api_key == RAW_TOKEN:
            return self._end(request, None)
        during = "re-authentication" if session.principal is not None else "authentication"
        text = failed.told or FAILED.format(during, session.mechanism)
        code = int(ErrorCode.SASL_AUTHENTICATION_FAILED)
        return self._end(request, messages.SaslAuthenticateResponse(error_code=code, error_message=text))

    def _note_failure(self, session: SaslSession, request: Request, reason: str) -> None:
        session.fail()
        self._failed += 1
        self._renewals_failed += session.principal is not None
        dispatcher = self._core.dispatcher
        dispatcher.complain(dispatcher.peer_of(request.connection), "authentication failed", f": {reason}")

    # -- the requests of a login ---------------------------------------------------------------------------------------

    def shake_hands(
        self, session: SaslSession | None, request: Request, message: messages.SaslHandshakeRequest
    ) -> messages.SaslHandshakeResponse | Awaitable[None]:
        code = ErrorCode.ILLEGAL_SASL_STATE
        if session is not None:
            code = session.shake_hands(message.mechanism, request.api_version, self._core.clock.monotonic_ms())
        if session is None or code is ErrorCode.ILLEGAL_SASL_STATE:
            return messages.SaslHandshakeResponse(error_code=int(code))
        answer = messages.SaslHandshakeResponse(error_code=int(code), mechanisms=list(map(str, session.mechanisms)))
        if code is ErrorCode.UNSUPPORTED_SASL_MECHANISM:
            shown = message.mechanism[:MECHANISM_SHOWN_MAX]
            self._note_failure(session, request, f"mechanism {shown!r} is not enabled")
            return self._end(request, None if session.principal is not None else answer)  # as Kafka, a renewal's not
        if session.has_raw_tokens:
            self._core.connections.expect_tokens(request.connection, on=True)
        return answer

    def take(
        self, state: ConnectionState, session: SaslSession, request: Request, message: bytes
    ) -> messages.SaslAuthenticateResponse | Awaitable[None] | None:
        """A mechanism's message, in a SaslAuthenticate or as it is (then it is answered when this returns None)."""
        if len(message) > self._core.settings.sasl_server_max_receive_size:
            return self._refuse(session, request, Failed("a message above sasl.server.max.receive.size"))
        step = session.step(message)
        if isinstance(step, Work):
            return self._work(state, session, request, step)
        return self._outcome(state, session, request, step)

    async def _work(self, state: ConnectionState, session: SaslSession, request: Request, work: Work) -> None:
        with self._core.dispatcher.while_open(request.connection) as waiting:
            step = work.then(await self._done(work))
        if waiting.cancelled_caught:
            self._core.connections.answer_none(request)
            return
        assert not isinstance(step, Work), "one piece of work a message"
        outcome = self._outcome(state, session, request, step)
        if isinstance(outcome, Message):
            self._core.dispatcher.respond(request, outcome)
        elif outcome is not None:
            await outcome

    async def _done(self, work: Work) -> Any:
        if work.is_async:
            return await cast("Awaitable[Any]", work.run())
        if self._deriving.statistics().tasks_waiting >= DERIVATIONS_WAITING_MAX:
            raise NotLoggedInError("too many logins by password wait")
        async with self._deriving:
            return await self._core.in_thread(work.run)

    def _outcome(
        self, state: ConnectionState, session: SaslSession, request: Request, step: Challenge | Done | Failed
    ) -> messages.SaslAuthenticateResponse | Awaitable[None] | None:
        lifetime_ms = 0
        if isinstance(step, Done):
            let_in = session.let_in(step, self._core.clock.wall_ms())
            if isinstance(let_in, Failed):
                return self._refuse(session, request, let_in)
            lifetime_ms = let_in.lifetime_ms
            self._let_in(state, request, let_in)
        if isinstance(step, Failed):
            return self._refuse(session, request, step)
        if request.api_key == RAW_TOKEN:
            self._core.connections.answer(request, [step.message])
            return None
        answer = messages.SaslAuthenticateResponse(auth_bytes=step.message, error_message="")
        if request.api_version >= LIFETIME_VERSION:
            answer.session_lifetime_ms = lifetime_ms
        return answer

    def _let_in(self, state: ConnectionState, request: Request, session: Session) -> None:
        self._succeeded += 1
        self._renewed += session.is_renewal
        deadline_ns = 0
        if session.lifetime_ms:
            deadline_ns = self._core.clock.monotonic_ns() + session.lifetime_ms * 1_000_000
        self._core.dispatcher.let_in(request.connection, Subject(session.principal, state.host), deadline_ns)

    # -- mechanisms ----------------------------------------------------------------------------------------------------

    def _scram(self, mechanism: ScramMechanism) -> Exchange:
        chance = self._core.chance
        return ScramExchange(mechanism, self, chance.uuid().hex + chance.uuid().hex)

    def _plain(self) -> Exchange:
        if self._recent is None:
            chance = self._core.chance
            self._recent = RecentLogins(chance.uuid().bytes + chance.uuid().bytes)
        return PlainExchange(self, self._recent, self._core.clock.monotonic_ms)

    def _token(self) -> Exchange:
        assert self._core.tokens is not None, "it is offered where tokens can be checked"
        return OAuthBearerExchange(self._core.tokens)
