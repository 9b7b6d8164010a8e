"""What the data plane keeps of rights that were decided here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from tpc_broker.broker.handled import Request
    from tpc_broker.model import TopicId


class GrantsPort(Protocol):
    """A generation is that of the rules: each is above every earlier one, and what was decided in another is void."""

    def begin_grants(self, generation: int) -> None:
        """Subjects are asked about from now on. MemoryError: nothing has changed."""
        ...

    def end_grants(self) -> None: ...

    def forget_grants(self, generation: int) -> None:
        """The rules are others from now on: whoever waits for records is asked about again, in this call."""
        ...

    def grant(self, generation: int, subject: int, topic_id: TopicId, *, writes: bool, is_allowed: bool) -> None:
        """A subject, by its number, may write to the topic, else read it, or may not. Of an older generation it is
        nothing.
        """
        ...

    def grant_transactional(self, generation: int, subject: int, transactional_id: str, *, is_allowed: bool) -> None:
        """The same of writing by a transactional id."""
        ...

    def name_subject(self, request: Request, subject: int) -> None:
        """Who has sent it, which may not have been known when it came."""
        ...

    def set_datagrams_subject(self, subject: int) -> None:
        """Whose all datagrams are; 0: nobody's."""
        ...

    def on_grant_wanted(self, callback: Callable[[TopicId, int], None]) -> None:
        """Called when datagrams' subject wants to write to a topic, and it was not decided whether it may; once in a
        generation for each partition.
        """
        ...
