"""What the broker tells its connections of who they are (`native/net/connection_identity.c`)."""

from __future__ import annotations

from typing import Protocol


class IdentityPort(Protocol):
    """A part of `Connections`."""

    def needs_authentication(self, listener: int) -> bool:
        """Whether its connections begin as strangers: of them only SaslHandshake, SaslAuthenticate and ApiVersions
        come, one at a time, until they are let in.
        """
        ...

    def let_in(self, connection: int, subject_number: int, deadline_ns: int) -> None:
        """Serve a connection from now on, as that subject (`AccessControl.number_of`). Past `deadline_ns` (monotonic; 0
        is never) all but SaslHandshake and SaslAuthenticate ends it; a renewal calls this again. Before the answer that
        tells the client. Nothing happens when it is gone.
        """
        ...

    def expect_tokens(self, connection: int, *, on: bool) -> None:
        """Of a stranger: whether its frames are tokens, without a header, from now on. They come as requests of API -1,
        one at a time, and what they are answered with is sent as it is.
        """
        ...

    def require_subject(self, *, on: bool) -> None:
        """Whether nobody is served, here or for another core, of whom it is not known who it is."""
        ...
