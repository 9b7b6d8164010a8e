"""What a SASL mechanism is on the server's side: a machine for one login, made anew for each (RFC 4422).

A mechanism takes a message of the client and says what comes of it. What needs long computation, or a wait, is given
back as `Work`, which its driver does elsewhere; a mechanism itself never waits.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tpc_broker.auth.principals import Principal


class Mechanism(StrEnum):
    """Those that a listener may offer."""

    PLAIN = "PLAIN"
    SCRAM_SHA_256 = "SCRAM-SHA-256"
    SCRAM_SHA_512 = "SCRAM-SHA-512"
    OAUTHBEARER = "OAUTHBEARER"


@dataclass(frozen=True, slots=True)
class Challenge:
    """The client is to say more."""

    message: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Done:
    """It is who it says. `expires_ms`: when that ends, of the wall clock, as a token says; None: not by itself."""

    principal: Principal
    message: bytes = field(default=b"", repr=False)
    expires_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    """`reason` is for the log, and has no secret in it. `told` is for the client, and must say nothing of who there is;
    "": that it failed, and no more.
    """

    reason: str
    told: str = ""


@dataclass(frozen=True, slots=True)
class Work:
    """To be done before it is known what comes of a message.

    `run` is a plain function for a thread, or with `is_async` an async one; `then` takes its result, in the core's own
    thread. What `run` raises ends the login.
    """

    run: Callable[[], Any] | Callable[[], Awaitable[Any]]
    then: Callable[[Any], Step]
    is_async: bool = False


Step = Challenge | Done | Failed | Work


class Exchange(Protocol):
    """One login by one mechanism."""

    def step(self, message: bytes) -> Step:
        """After `Done` or `Failed` it is not called again."""
        ...

