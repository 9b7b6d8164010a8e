"""Whether tokens are taken on some listener, and can be checked: what checks them is an extra of the package."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Final

from tpc_broker.auth.exchange import Mechanism
from tpc_broker.metadata.sasl_settings import mechanisms_of
from tpc_broker.options import StartError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tpc_broker.auth.oauthbearer import Tokens
    from tpc_broker.metadata.listeners import Listener
    from tpc_broker.metadata.sasl_settings import SaslSettings
    from tpc_broker.process.jwks import TokenKeys

_MODULES: Final = ("jwt", "cryptography")


def takes_tokens(listeners: Iterable[Listener], settings: SaslSettings) -> bool:
    """Whether clients may log in by OAUTHBEARER anywhere."""
    return any(Mechanism.OAUTHBEARER in mechanisms_of(listener, settings) for listener in listeners)


def check_token_support(listeners: Iterable[Listener], settings: SaslSettings) -> None:
    """StartError: tokens are to be taken, and nothing is installed that checks their signatures."""
    if takes_tokens(listeners, settings) and any(importlib.util.find_spec(name) is None for name in _MODULES):
        raise StartError("OAUTHBEARER needs the extra `oauth`: pip install 'tpc-broker[oauth]'")


def make_token_keys(
    listeners: Iterable[Listener], settings: SaslSettings, wall_ms: Callable[[], int]
) -> TokenKeys | None:
    """Where tokens are taken; to be run."""
    if not takes_tokens(listeners, settings):
        return None
    from tpc_broker.process.jwks import TokenKeys  # noqa: PLC0415 (what it imports is an extra)

    made: Tokens = TokenKeys(settings, wall_ms)
    assert isinstance(made, TokenKeys)
    return made
