"""Where the keys of tokens come from: asked for in bounds, kept through failures, asked for again with measure."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from tests.auth.token_maker import ATTACKER, AUDIENCE, ISSUER, ISSUER_OF_TESTS, NOW_S
from tests.support.own_certificate import make_own_certificate
from tpc_broker.auth.tokens import Believed
from tpc_broker.metadata.config_types import ConfigError
from tpc_broker.metadata.oauth_settings import check_oauth, keys_place
from tpc_broker.metadata.settings import load_settings
from tpc_broker.process import jwks
from tpc_broker.process.jwks import FetchError, TokenKeys, fetch

MAKER = ISSUER_OF_TESTS
TOKEN = MAKER.token("ed")


def settings(url: str = "file:///nowhere", **others: str) -> Any:
    given = {"jwks.endpoint.url": url, "expected.issuer": ISSUER, "expected.audience": AUDIENCE} | {
        name.replace("_", "."): value for name, value in others.items()
    }
    return load_settings("", [f"sasl.oauthbearer.{name}={value}" for name, value in given.items()]).settings


class Source:
    """In place of `fetch`: what it is told to give, and how often it was asked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *answers: bytes | Exception) -> None:
        self.answers, self.asked, self.gate = list(answers), 0, trio.Event()
        self.gate.set()
        monkeypatch.setattr(jwks, "fetch", self._fetch)

    async def _fetch(self, _place: Any, _make_tls: Any) -> bytes:
        self.asked += 1
        await self.gate.wait()
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


async def at_once(function: Callable[..., Any], /, *arguments: Any) -> Any:
    """In place of a thread, which a clock that jumps would not wait for."""
    return function(*arguments)


def token_keys() -> TokenKeys:
    return TokenKeys(settings(), lambda: NOW_S * 1000, at_once)


def on_a_clock_of_its_own(main: Callable[..., Any]) -> None:
    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


# -- which place may be asked ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("https://issuer.example/keys", ("https", "issuer.example", 443, "/keys")),
        ("https://issuer.example:8443", ("https", "issuer.example", 8443, "/")),
        ("HTTPS://Issuer.example/a?b=c", ("https", "issuer.example", 443, "/a?b=c")),
        ("http://127.0.0.1:8080/keys", ("http", "127.0.0.1", 8080, "/keys")),
        ("http://[::1]/keys", ("http", "::1", 80, "/keys")),
        ("http://localhost/keys", ("http", "localhost", 80, "/keys")),
        ("file:///etc/keys%20of.json", ("file", "", 0, "/etc/keys of.json")),
    ],
)
def test_a_place_that_may_be_asked(url: str, place: tuple[str, str, int, str]) -> None:
    assert keys_place(url) == place


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("http://issuer.example/keys", "http is taken on loopback only"),
        ("http://127.0.0.1.example/keys", "http is taken on loopback only"),
        ("http://169.254.169.254/latest", "http is taken on loopback only"),
        ("ftp://issuer.example/", "expected https"), ("/etc/keys.json", "expected https"),
        ("https://", "expected https"),
        ("https://a:b@issuer.example/", "a name or a password"), ("https://issuer.example:x/", "it is no URL"),
        ("https://issuer.example:99999/", "it is no URL"), ("https://[::1/", "it is no URL"),
        ("https://issuer.example/a b", "printable"), ("https://issuer.example/\r\nHost:x", "printable"),
        ("https://issuer.example/" + "a" * 3000, "at most 2048"), ("file://host/keys", "file:///PATH"),
        ("file:keys", "file:///PATH"), ("file:///a%00b", "file:///PATH"),
    ],
)  # fmt: skip
def test_a_place_that_may_not(url: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why) as raised:
        keys_place(url)
    assert "a:b" not in str(raised.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [("jwks_endpoint_url", ""), ("expected_issuer", ""), ("expected_audience", ""), ("algorithms", ""),
     ("sub_claim_name", "")],
)  # fmt: skip
def test_without_keys_an_issuer_and_an_audience_nothing_is_checked_so_nothing_starts(name: str, value: str) -> None:
    check_oauth(settings())
    given = {"url": "file:///nowhere"}
    with pytest.raises(ConfigError, match=f"sasl.oauthbearer.{name.replace('_', '.')}"):
        check_oauth(settings("") if name == "jwks_endpoint_url" else settings(given["url"], **{name: value}))


def test_an_algorithm_that_is_not_asymmetric_cannot_be_asked_for() -> None:
    for name in ("HS256", "none", "RS1"):
        with pytest.raises(ConfigError):
            settings(algorithms=f"RS256,{name}")


# -- when they are asked for -------------------------------------------------------------------------------------------


def test_43_without_keys_at_the_start_nobody_is_let_in_until_they_are_there(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    source = Source(monkeypatch, FetchError("down"), FetchError("down"), FetchError("down"), MAKER.key_set())

    async def main() -> None:
        keys = token_keys()
        assert keys.check(TOKEN) is None, "they may be asked for"
        async with trio.open_nursery() as nursery:
            nursery.start_soon(keys.run)
            await trio.testing.wait_all_tasks_blocked()
            assert keys.check(TOKEN) == "a token cannot be checked: there are no keys"
            await trio.sleep(1 + 2 + 0.5)
            assert source.asked == 3
            await trio.sleep(4)
            assert keys.check(TOKEN) == Believed("alice", (NOW_S + 600) * 1000)
            assert keys.check(ATTACKER.token("ed")) == "a token is not believed: its signature is wrong"
            nursery.cancel_scope.cancel()

    on_a_clock_of_its_own(main)
    assert [record.message for record in caplog.records if record.name == jwks.__name__] == [
        "no keys of tokens from file /nowhere: down; no token can be checked",
        "the keys of tokens from file /nowhere are there again",
    ]


def test_keys_stay_through_failures_for_a_day_and_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    source = Source(monkeypatch, MAKER.key_set(), FetchError("down"))

    async def main() -> None:
        keys = token_keys()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(keys.run)
            await trio.sleep(jwks.KEPT_S - 1)
            assert isinstance(keys.check(TOKEN), Believed)
            assert source.asked > 1_000
            await trio.sleep(2 * jwks.RETRY_S_MAX)
            assert not isinstance(keys.check(TOKEN), Believed)
            nursery.cancel_scope.cancel()

    on_a_clock_of_its_own(main)


@pytest.mark.parametrize("answer", [b"{}", b"<html>", b'{"keys":[]}', FetchError("the answer is 500")])
def test_what_is_no_set_of_keys_replaces_none(monkeypatch: pytest.MonkeyPatch, answer: bytes | Exception) -> None:
    Source(monkeypatch, MAKER.key_set(), answer)

    async def main() -> None:
        keys = token_keys()
        await keys.ask_for_keys()
        await trio.sleep(jwks.PAUSE_S)
        await keys.ask_for_keys()
        assert isinstance(keys.check(TOKEN), Believed)

    on_a_clock_of_its_own(main)


def test_a_key_that_is_taken_back_is_not_believed_after_the_next_look(monkeypatch: pytest.MonkeyPatch) -> None:
    Source(monkeypatch, MAKER.key_set(), MAKER.key_set("rsa"))

    async def main() -> None:
        keys = token_keys()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(keys.run)
            await trio.sleep(3599)
            assert isinstance(keys.check(TOKEN), Believed)
            await trio.sleep(2)
            assert keys.check(TOKEN) == "a token is not believed: it is signed by a key that is not known"
            nursery.cancel_scope.cancel()

    on_a_clock_of_its_own(main)


def test_an_unknown_key_asks_again_but_every_half_minute_at_most_and_once_for_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = Source(monkeypatch, MAKER.key_set("rsa"), MAKER.key_set())
    unknown = "a token is not believed: it is signed by a key that is not known"

    async def main() -> None:
        keys = token_keys()
        await keys.ask_for_keys()
        for _ in range(100):  # a flood right after it
            assert keys.check(TOKEN) == unknown
            await keys.ask_for_keys()
        assert source.asked == 1
        await trio.sleep(jwks.PAUSE_S)
        source.gate = trio.Event()
        async with trio.open_nursery() as nursery:
            for _ in range(100):
                assert keys.check(TOKEN) is None
                nursery.start_soon(keys.ask_for_keys)
            await trio.testing.wait_all_tasks_blocked()
            source.gate.set()
        assert source.asked == 2
        assert isinstance(keys.check(TOKEN), Believed)
        assert keys.check(MAKER.token("ed", header={"kid": "other"})) == unknown

    on_a_clock_of_its_own(main)


def test_whoever_asks_and_is_gone_takes_nobody_along(monkeypatch: pytest.MonkeyPatch) -> None:
    source = Source(monkeypatch, MAKER.key_set())

    async def main() -> None:
        keys = token_keys()
        source.gate = trio.Event()
        with trio.move_on_after(1):
            await keys.ask_for_keys()
        source.gate.set()
        await trio.sleep(jwks.PAUSE_S)
        await keys.ask_for_keys()
        assert isinstance(keys.check(TOKEN), Believed)

    on_a_clock_of_its_own(main)


# -- how they are asked for (44) ---------------------------------------------------------------------------------------


class Endpoint:
    """Answers each connection with the same bytes, on loopback."""

    def __init__(self, *parts: bytes, tls: ssl.SSLContext | None = None, then_waits: bool = False) -> None:
        self.parts, self.tls, self.then_waits, self.requests = parts, tls, then_waits, []

    async def serve(self, *, task_status: Any) -> None:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        self.port = listener.socket.getsockname()[1]
        task_status.started()
        await trio.serve_listeners(self._answer, [listener])

    async def _answer(self, stream: Any) -> None:
        if self.tls is not None:
            stream = trio.SSLStream(stream, self.tls, server_side=True, https_compatible=True)
        try:
            self.requests.append(bytes(await stream.receive_some(4096)))
            for part in self.parts:
                await stream.send_all(part)
            if self.then_waits:
                await trio.sleep_forever()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        finally:
            with trio.move_on_after(1):
                await stream.aclose()


def fetched(endpoint: Endpoint, host: str = "127.0.0.1", scheme: str = "http", make_tls: Any = None) -> bytes:
    found = []

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            await nursery.start(endpoint.serve)
            place = keys_place(f"{scheme}://{host}:{endpoint.port}/keys?a=b")
            try:
                found.append(await fetch(place, make_tls or ssl.create_default_context))
            except FetchError as error:
                found.append(error)
            nursery.cancel_scope.cancel()

    trio.run(main)
    if isinstance(found[0], FetchError):
        raise found[0]
    return found[0]


def answer(body: bytes, *headers: bytes, status: bytes = b"200 OK") -> bytes:
    lines = (b"HTTP/1.1 " + status, b"Content-Length: %d" % len(body), *headers)
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def test_what_is_asked_and_what_is_taken() -> None:
    endpoint = Endpoint(answer(b"{}"))
    assert fetched(endpoint) == b"{}"
    (request,) = endpoint.requests
    assert request.startswith(b"GET /keys?a=b HTTP/1.1\r\n")
    assert b"Host: 127.0.0.1:%d\r\n" % endpoint.port in request
    assert b"uthorization" not in request
    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{\r\n1\r\n}\r\n0\r\n\r\n"
    assert fetched(Endpoint(*(bytes([each]) for each in chunked))) == b"{}"
    assert fetched(Endpoint(b"HTTP/1.1 200 OK\r\n\r\n{}")) == b"{}", "to the end of the connection"


GIANT = b"x" * (1 << 20)


@pytest.mark.parametrize(
    ("parts", "why"),
    [
        ((answer(b"", b"Location: file:///etc/passwd", status=b"302 Found"),), "the answer is 302, and redirects"),
        ((answer(b"", b"Location: http://169.254.169.254/", status=b"301 Moved"),), "the answer is 301, and redirects"),
        ((answer(b"", status=b"404 Not Found"),), "the answer is 404"),
        ((b"HTTP/1.1 200 OK\r\nContent-Length: 1073741824\r\n\r\n", *[GIANT] * 1024), "more than 1048576 bytes"),
        ((b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n40000000\r\n", *[GIANT] * 1024), "more than 1048576"),
        ((b"HTTP/1.1 200 OK\r\n\r\n", *[GIANT] * 1024), "more than 1048576 bytes"),
        ((b"HTTP/1.1 200 OK\r\nX: " + GIANT, GIANT), "headers are too long"),
        ((answer(b"{}", b"Content-Encoding: gzip"),), "is compressed"),
        ((b"SSH-2.0-x\r\n\r\n",), "no HTTP"),
        ((b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{}",), "not whole"),
        ((b"",), "not whole|no HTTP|ended before"),
    ],
)  # fmt: skip
def test_44_what_is_not_taken(parts: tuple[bytes, ...], why: str) -> None:
    with pytest.raises(FetchError, match=why):
        fetched(Endpoint(*parts))


def test_44_an_endpoint_that_is_slow_or_silent_or_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jwks, "FETCH_S", 0.05)
    for parts in ((), (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{",)):
        with pytest.raises(FetchError, match=r"no answer in 0\.05 s"):
            fetched(Endpoint(*parts, then_waits=True))
    with pytest.raises(FetchError, match=r"refused|all attempts|failed"):
        trio.run(fetch, keys_place("http://127.0.0.1:1/"), ssl.create_default_context)


def test_a_file_is_read_within_bounds(tmp_path: Path) -> None:
    path = tmp_path / "keys of.json"
    ask = partial(trio.run, fetch, keys_place(f"file://{str(path).replace(' ', '%20')}"), ssl.create_default_context)
    with pytest.raises(FetchError, match="No such file"):
        ask()
    path.write_bytes(b"{}")
    assert ask() == b"{}"
    path.write_bytes(b"x" * ((1 << 20) + 1))
    with pytest.raises(FetchError, match="more than 1048576 bytes"):
        ask()
    path.unlink()
    path.mkdir()
    with pytest.raises(FetchError, match="directory"):
        ask()
    with pytest.raises(FetchError, match="no regular file"):
        trio.run(fetch, keys_place("file:///dev/zero"), ssl.create_default_context)


def test_https_is_believed_by_its_certificate_alone(tmp_path: Path) -> None:
    make_own_certificate(tmp_path)
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
    trusting = partial(ssl.create_default_context, cafile=str(tmp_path / "cert.pem"))
    endpoint = Endpoint(answer(b"{}"), tls=server)
    assert fetched(endpoint, "localhost", "https", trusting) == b"{}"
    with pytest.raises(FetchError, match="certificate verify failed"):
        fetched(Endpoint(answer(b"{}"), tls=server), "localhost", "https")
    with pytest.raises(FetchError, match="certificate"):
        fetched(Endpoint(answer(b"{}"), tls=server), "127.0.0.1", "https", trusting)
    with pytest.raises(FetchError):
        fetched(Endpoint(answer(b"{}")), "localhost", "https", trusting)
