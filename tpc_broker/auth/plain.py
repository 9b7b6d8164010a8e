"""The server's side of PLAIN (RFC 4616): a name and a password in one message, as they are.

The password is checked against what is kept of it for SCRAM, so nothing else is kept of it, and that takes the time of
SCRAM's derivation: it is given back as work. A user who is not there costs the time of most users. Who was let in a
moment ago with the same password, by the same credential, is let in without it (`RecentLogins`).
"""

from __future__ import annotations

import hmac
from collections import Counter, OrderedDict
from typing import TYPE_CHECKING, Final

from tpc_broker.auth.credentials import ScramMechanism, credential_of_password, user_name_fault
from tpc_broker.auth.exchange import Done, Failed, Work
from tpc_broker.auth.principals import USER, Principal
from tpc_broker.auth.scram import ACTS_FOR_ANOTHER, fits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tpc_broker.auth.credentials import ScramCredential
    from tpc_broker.auth.exchange import Step
    from tpc_broker.auth.scram import Users

MESSAGE_BYTES_MAX: Final = 4096
RECENT_MS: Final = 60_000
RECENT_MAX: Final = 10_000
VERIFIERS: Final = (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512)
"""What a password is checked against: the first of these that its user has."""
TOKENS: Final = 3
_NOTHING_GIVEN: Final = "Authentication failed: {} not specified"
WRONG: Final = "Authentication failed: Invalid username or password"
"""What clients are told, in Kafka's words."""


class RecentLogins:
    """Of one core: proofs of passwords that were right not long ago. `key`: random, of this core and process only.

    An entry is of a user's credential as it is: another password, or none any more, finds nothing.
    """

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._until_ms: OrderedDict[bytes, int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._until_ms)

    def proof(self, user: str, password: bytes, credential: ScramCredential) -> bytes:
        """Of all three at once; tells nobody the password who does not know the key."""
        parts = (user.encode(), password, credential.salt, credential.stored_key)
        return hmac.digest(self._key, b"".join(len(part).to_bytes(4, "big") + part for part in parts), "sha256")

    def has(self, proof: bytes, now_ms: int) -> bool:
        return self._until_ms.get(proof, 0) > now_ms

    def add(self, proof: bytes, now_ms: int) -> None:
        self._until_ms[proof] = now_ms + RECENT_MS
        self._until_ms.move_to_end(proof)
        while len(self._until_ms) > RECENT_MAX or next(iter(self._until_ms.values())) <= now_ms:
            self._until_ms.popitem(last=False)


class PlainExchange:
    """One login."""

    def __init__(
        self,
        users: Users,
        recent: RecentLogins,
        now_ms: Callable[[], int],
    ) -> None:
        """`now_ms`: of the monotonic clock."""
        self._users, self._recent, self._now_ms = users, recent, now_ms

    def step(self, message: bytes) -> Step:
        if len(message) > MESSAGE_BYTES_MAX:
            return Failed("a PLAIN message is too long", WRONG)
        try:
            tokens = message.decode().split("\0")
        except UnicodeDecodeError:
            return Failed("a PLAIN message is no UTF-8", WRONG)
        if len(tokens) != TOKENS:
            malformed = f"Invalid SASL/PLAIN response: expected {TOKENS} tokens, got {len(tokens)}"
            return Failed(malformed, malformed)
        authzid, user, password = tokens
        refused = (
            _NOTHING_GIVEN.format("username") * (not user)
            or _NOTHING_GIVEN.format("password") * (not password)
            or ACTS_FOR_ANOTHER * (authzid not in ("", user))
        )
        if refused:
            return Failed(refused, refused)
        if user_name_fault(user) is not None:
            return Failed("the user's name is malformed", WRONG)
        return self._check(user, password)

    def _check(self, user: str, password: str) -> Step:
        mechanism, known = self._verifier(user)
        credential = known or self._users.stand_in(user, mechanism)
        proof = self._recent.proof(user, password.encode(), credential)
        if known is not None and self._recent.has(proof, self._now_ms()):
            return Done(Principal(USER, user))

        def derive() -> bytes:
            return credential_of_password(mechanism, password, credential.salt, credential.iterations).stored_key

        def judge(stored_key: bytes) -> Step:
            is_right = hmac.compare_digest(stored_key, credential.stored_key)
            if known is None:
                return Failed(f"there is no user {user!r}", WRONG)
            if self._verifier(user)[1] != known:
                return Failed(f"the credential of user {user!r} has just been changed", WRONG)
            if not is_right:
                return Failed(f"wrong password of user {user!r}", WRONG)
            self._recent.add(proof, self._now_ms())
            return Done(Principal(USER, user))

        return Work(derive, judge)

    def _verifier(self, user: str) -> tuple[ScramMechanism, ScramCredential | None]:
        for mechanism in VERIFIERS:
            credential = self._users.credential(user, mechanism)
            if credential is not None and fits(credential, mechanism):
                return mechanism, credential
        return self._users.usual_verifier(), None


def usual_verifier(credentials: Iterable[tuple[str, ScramMechanism]]) -> ScramMechanism:
    """What most users' passwords are checked against. `credentials`: of whom there are some, by which mechanism."""
    first: dict[str, ScramMechanism] = {}
    for user, mechanism in credentials:
        first[user] = min(mechanism, first.get(user, mechanism), key=VERIFIERS.index)
    counted = Counter(first.values())
    return max(VERIFIERS, key=lambda mechanism: counted[mechanism])
