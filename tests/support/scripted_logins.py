"""Logins for scripted brokers: `Logins` is a script before another one, as a listener with SASL is before an API.

    logins = Logins({"alice": "secret"})
    async with scripted_client(logins.script(script), auth=SaslSettings(Mechanism.PLAIN, "alice", "secret")) as …:

Who has not logged in on a line gets nothing but ApiVersions: anything else is an AssertionError of the test, and so is
whatever is asked within a login. `logins.lifetime_ms` is told to clients, and not kept to: how soon they are to log in
again says nothing of how fast the machine is.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, Final

from tests.support.scripted_broker import Asked, Script, as_usual
from tests.support.tls_proxy import Proxy
from tpc_broker.kafka import ApiKey, ErrorCode, messages

TOKENS: Final = "OAUTHBEARER"
SCRAM: Final = ("SCRAM-SHA-256", "SCRAM-SHA-512")


class Logins:
    """``users`` are names and passwords; with OAUTHBEARER tokens, and "" or why the token is refused."""

    def __init__(self, users: dict[str, str], mechanisms: tuple[str, ...] = ("PLAIN", *SCRAM, TOKENS)) -> None:
        self.users, self.mechanisms = users, mechanisms
        self.lifetime_ms = 0
        self.lies = False
        self.done: list[tuple[int, str]] = []
        """Line and mechanism of each login that was let in."""
        self.before_answer: Callable[[Asked], Awaitable[Any]] | None = None
        self._sessions: set[int] = set()
        self._machines: dict[int, Any] = {}

    def script(self, behind: Script = as_usual) -> Script:
        async def script(asked: Asked) -> Any:
            if asked.key == ApiKey.API_VERSIONS:
                return await behind(asked)
            if asked.key in (ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE):
                if self.before_answer is not None:
                    await self.before_answer(asked)
                return self._login(asked)
            assert asked.line not in self._machines, f"{asked} within a login"
            assert asked.line in self._sessions, f"{asked} without a login"
            return await behind(asked)

        return script

    def _login(self, asked: Asked) -> Any:
        if asked.key == ApiKey.SASL_HANDSHAKE:
            mechanism = asked.message.mechanism
            if mechanism not in self.mechanisms:
                code = ErrorCode.UNSUPPORTED_SASL_MECHANISM
                return messages.SaslHandshakeResponse(error_code=code, mechanisms=list(self.mechanisms))
            self._machines[asked.line] = (mechanism, self._machine(mechanism))
            next(self._machines[asked.line][1])
            return messages.SaslHandshakeResponse(mechanisms=list(self.mechanisms))
        mechanism, machine = self._machines[asked.line]
        reply, is_done = machine.send(bytes(asked.message.auth_bytes))
        if reply is None:
            code = ErrorCode.SASL_AUTHENTICATION_FAILED
            return messages.SaslAuthenticateResponse(error_code=code, error_message="wrong name or password")
        if is_done:
            del self._machines[asked.line]
            self._sessions.add(asked.line)
            self.done.append((asked.line, mechanism))
        lifetime_ms = self.lifetime_ms if is_done else 0
        return messages.SaslAuthenticateResponse(auth_bytes=reply, session_lifetime_ms=lifetime_ms)

    def _machine(self, mechanism: str) -> Any:
        if mechanism == TOKENS:
            return self._token()
        surroundings: Any = SimpleNamespace(users=self.users, lies=self.lies)
        return Proxy._scram(surroundings, mechanism) if mechanism in SCRAM else Proxy._plain(surroundings, mechanism)

    def _token(self) -> Any:
        first = yield
        fields = first.decode().split("\x01")
        assert fields[0] == "n,,"
        assert fields[-2:] == ["", ""]
        token = fields[1].removeprefix("auth=Bearer ")
        why = self.users.get(token, '{"status":"invalid_token"}')
        if not why:
            yield b"", True
            return
        last = yield why.encode(), False
        assert last == b"\x01"
        yield None, True
