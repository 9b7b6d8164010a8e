"""How a core's broker leaves answers that are alike for everybody to the data plane."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from tpc_broker.broker.handled import Request


class PreparedAnswers(Protocol):
    """Answers that are alike for everybody, made once and given by the data plane."""

    def prepare_answer(self, request: Request, answer: bytes, mark: int = 0) -> None:
        """Whoever sends the same request gets this answer, from behind the correlation id, until it is forgotten. From
        then on `Connections.mark_of` says `mark` of who got it, and of who sent this one, unless that is 0.
        """
        ...

    def forget_answers(self, api_key: int) -> None: ...
