"""Keys by which tokens are signed: asked for at the start, again and again, and when a token names one that is unknown.

One source for each core. What is asked is one URL of the settings and nothing else: no redirect is followed, no proxy
used, no name or password sent. https with the system's certificates (or those of SSL_CERT_FILE), http on loopback, or a
file. Each attempt is bounded in time and bytes.

A failure keeps the keys that are there, `KEPT_S` at most: who can make the endpoint fail must not make a key last for
ever that was taken back. A token with a key that is not known asks again, but not within `PAUSE_S` of the last time, so
a flood of them is no flood for the endpoint.
"""

from __future__ import annotations

import logging
import ssl
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Final

import h11
import trio

from tpc_broker.auth.tokens import (
    KEY_SET_BYTES_MAX,
    Believed,
    Demands,
    KeySet,
    TokenError,
    UnknownKeyError,
    check_token,
)
from tpc_broker.broker.helper_thread import InThread, in_thread
from tpc_broker.metadata.oauth_settings import check_oauth

if TYPE_CHECKING:
    from collections.abc import Callable

    from tpc_broker.metadata.oauth_settings import KeysPlace, OAuthSettings

log = logging.getLogger(__name__)

FETCH_S: Final = 10.0
PAUSE_S: Final = 30.0
KEPT_S: Final = 24 * 3600.0
RETRY_S_FIRST: Final = 1.0
RETRY_S_MAX: Final = 60.0
HEADERS_BYTES_MAX: Final = 16 * 1024
RECEIVE_BYTES: Final = 16 * 1024
_OK: Final = 200


class FetchError(Exception):
    """Why there are no keys."""


class TokenKeys:
    """`auth.oauthbearer.Tokens` by the keys of one place."""

    def __init__(
        self, settings: OAuthSettings, wall_ms: Callable[[], int], in_thread: InThread = in_thread
    ) -> None:
        """ConfigError where the settings do not do for it."""
        self._in_thread = in_thread
        self._place = check_oauth(settings)
        self._demands = Demands(
            settings.sasl_oauthbearer_expected_issuer,
            frozenset(settings.sasl_oauthbearer_expected_audience),
            frozenset(settings.sasl_oauthbearer_algorithms),
            settings.sasl_oauthbearer_sub_claim_name,
            settings.sasl_oauthbearer_clock_skew_seconds,
        )
        self._refresh_s = settings.sasl_oauthbearer_jwks_endpoint_refresh_ms / 1000
        self._wall_ms = wall_ms
        self._keys: KeySet | None = None
        self._got_s = self._asked_s = -float("inf")
        self._asking: trio.Event | None = None
        self._failed = ""

    def check(self, token: bytes) -> Believed | str | None:
        keys = self._keys
        if keys is None:
            return None if self._may_ask() else "a token cannot be checked: there are no keys"
        try:
            return check_token(token, keys, self._demands, self._wall_ms())
        except UnknownKeyError as error:
            return None if self._may_ask() else f"a token is not believed: {error}"
        except TokenError as error:
            return f"a token is not believed: {error}"

    def _may_ask(self) -> bool:
        return self._asking is not None or trio.current_time() - self._asked_s >= PAUSE_S

    async def ask_for_keys(self) -> None:
        if self._asking is not None:
            await self._asking.wait()
        elif self._may_ask():
            await self.ask()

    async def run(self) -> None:
        """Until cancelled."""
        retry_s = RETRY_S_FIRST
        while True:
            if await self.ask():
                retry_s = RETRY_S_FIRST
                await trio.sleep(self._refresh_s)
                continue
            if self._keys is not None and trio.current_time() - self._got_s > KEPT_S:
                log.error("the keys of tokens are dropped: they could not be asked for since %d h", KEPT_S // 3600)
                self._keys = None
            await trio.sleep(min(retry_s, self._refresh_s))
            retry_s = min(2 * retry_s, RETRY_S_MAX)

    async def ask(self) -> bool:
        """Once, or as part of what is under way, however short the time since the last. Whether there are new ones."""
        if self._asking is not None:
            await self._asking.wait()
            return not self._failed
        self._asking, self._asked_s, failed = trio.Event(), trio.current_time(), ""
        try:
            data = await fetch(self._place, ssl.create_default_context)
            self._keys = await self._in_thread(KeySet.of_json, data)  # a large set would hold up the loop
            self._got_s = trio.current_time()
        except (FetchError, TokenError) as error:
            failed = str(error)
        finally:
            asking, self._asking = self._asking, None
            asking.set()
        if failed != self._failed:
            if failed:
                kept = "the keys that are known stay" if self._keys is not None else "no token can be checked"
                log.warning("no keys of tokens from %s: %s; %s", self._place, failed, kept)
            else:
                log.info("the keys of tokens from %s are there again", self._place)
        self._failed = failed
        return not failed


async def fetch(place: KeysPlace, make_tls: Callable[[], ssl.SSLContext]) -> bytes:
    """What is there. FetchError: nothing that is taken."""
    with trio.move_on_after(FETCH_S):
        try:
            if place.is_file:
                return await trio.to_thread.run_sync(_read_file, Path(place.path), abandon_on_cancel=True)
            stream = await trio.open_tcp_stream(place.host, place.port)
            try:
                return await _get(place, stream if place.scheme == "http" else await _secured(place, stream, make_tls))
            finally:
                await trio.aclose_forcefully(stream)
        except h11.RemoteProtocolError:
            raise FetchError("the answer is no HTTP, or not whole, or its headers are too long") from None
        except (OSError, trio.BrokenResourceError, ssl.SSLError) as error:
            reason = error.__cause__ if isinstance(error, trio.BrokenResourceError) and error.__cause__ else error
            raise FetchError(f"{reason}") from error
    raise FetchError(f"no answer in {FETCH_S:g} s")


def _read_file(path: Path) -> bytes:
    with path.open("rb") as file:
        if not stat.S_ISREG(path.stat().st_mode):
            raise FetchError("it is no regular file")
        content = file.read(KEY_SET_BYTES_MAX + 1)
    if len(content) > KEY_SET_BYTES_MAX:
        raise FetchError(f"it has more than {KEY_SET_BYTES_MAX} bytes")
    return content


async def _secured(
    place: KeysPlace, stream: trio.abc.Stream, make_tls: Callable[[], ssl.SSLContext]
) -> trio.abc.Stream:
    """The host has proved who it is."""
    context = make_tls()
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    secured = trio.SSLStream(stream, context, server_hostname=place.host, https_compatible=True)
    await secured.do_handshake()
    return secured


async def _get(place: KeysPlace, stream: trio.abc.Stream) -> bytes:
    connection = h11.Connection(h11.CLIENT, max_incomplete_event_size=HEADERS_BYTES_MAX)
    host = f"[{place.host}]" if ":" in place.host else place.host
    headers = [("Host", f"{host}:{place.port}"), ("Accept", "application/json"), ("Accept-Encoding", "identity"),
               ("Connection", "close"), ("User-Agent", "tpc-broker")]  # fmt: skip
    request = connection.send(h11.Request(method="GET", target=place.path, headers=headers)) or b""
    await stream.send_all(request + (connection.send(h11.EndOfMessage()) or b""))
    body = bytearray()
    while True:
        event = connection.next_event()
        if event is h11.NEED_DATA:
            connection.receive_data(bytes(await stream.receive_some(RECEIVE_BYTES)))
        elif isinstance(event, h11.Response):
            if event.status_code != _OK:
                raise FetchError(f"the answer is {event.status_code}, and redirects are not followed")
            if any(name == b"content-encoding" and value != b"identity" for name, value in event.headers):
                raise FetchError("the answer is compressed, which was not asked for")
        elif isinstance(event, h11.Data):
            body += event.data
            if len(body) > KEY_SET_BYTES_MAX:
                raise FetchError(f"the answer has more than {KEY_SET_BYTES_MAX} bytes")
        elif isinstance(event, h11.EndOfMessage):
            return bytes(body)
        elif not isinstance(event, h11.InformationalResponse):
            raise FetchError("the connection ended before the answer did")
