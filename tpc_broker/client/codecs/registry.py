"""A registry of schemas over HTTP: by id for who reads, by subject for who writes. What was found is kept, bounded.

An id that the registry does not know is an error and no guess; it is asked for again after `UNKNOWN_SECONDS`. Schemas
never change under their ids, so what was found stays right.
"""

from __future__ import annotations

import json
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self, TypeVar
from urllib.parse import quote, urlsplit

import anyio

from tpc_broker.client.errors import ClientError
from tpc_broker.client.security import TlsSettings, tls_context

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Mapping
    from types import TracebackType

    import httpx2

ANSWER_BYTES_MAX: Final = 16 * 1024 * 1024
REFERENCES_DEEP_MAX: Final = 32
UNKNOWN_SECONDS: Final = 10.0
BACKOFF_SECONDS: Final = (0.05, 1.0)
"""The first and the longest pause between attempts."""
_MEDIA: Final = "application/vnd.schemaregistry.v1+json"
_TEMPORARY: Final = frozenset((408, 425, 429, 500, 502, 503, 504))
K = TypeVar("K")
V = TypeVar("V")


class RegistryError(ClientError):
    """The registry cannot be reached, or refuses."""


class UnknownSchemaError(RegistryError):
    """The registry has no such schema, subject or version."""


class Reference(NamedTuple):
    """A schema that another one names."""

    name: str
    subject: str
    version: int


class Schema(NamedTuple):
    """``kind``: AVRO, PROTOBUF or JSON, as registries say it."""

    kind: str
    text: str
    references: tuple[Reference, ...] = ()


class Kept(dict[K, V]):
    """A mapping that drops what it got first when it is full."""

    def __init__(self, entries_max: int) -> None:
        super().__init__()
        self._entries_max = entries_max

    def keep(self, key: K, value: V) -> V:
        self[key] = value
        if len(self) > self._entries_max:
            del self[next(iter(self))]
        return value


class Registry:
    """``async with Registry("https://host:8081") as registry``; several addresses with commas are tried in turn.

    ``auth`` is a user and a password, ``token`` a bearer's. Either needs https, unless ``plain_text_secrets`` says that
    the way to the registry is safe by itself. ``tls`` has its certificates (`TlsSettings`; default: the system's).
    ``request_seconds`` bounds one request, ``retry_seconds`` an operation with its repetitions. ``schemas_max`` is how
    many schemas, and how many ids of subjects, are kept. `ValueError` for an address that is none.
    """

    def __init__(  # noqa: PLR0913 - options
        self, address: str, *, auth: tuple[str, str] | None = None, token: str | None = None,
        tls: TlsSettings | None = None, request_seconds: float = 10.0, retry_seconds: float = 30.0,
        schemas_max: int = 1000, plain_text_secrets: bool = False,
    ) -> None:  # fmt: skip
        self._addresses = [_address(each) for each in address.split(",")]
        is_plain = any(not each.startswith("https:") for each in self._addresses)
        if (auth or token) and is_plain and not plain_text_secrets:
            raise ValueError(f"{address}: a password or a token needs https, or plain_text_secrets=True")
        if auth and token:
            raise ValueError("either auth or token")
        self._auth = auth
        self._token = token
        self._tls = tls or TlsSettings()
        self._request_seconds = request_seconds
        self._retry_seconds = retry_seconds
        self.schemas_max = schemas_max
        self._by_id: Kept[int, Schema] = Kept(schemas_max)
        self._unknown: Kept[int, float] = Kept(schemas_max)
        self._ids: Kept[tuple[str, Schema], int] = Kept(schemas_max)
        self._asking: dict[object, anyio.Lock] = {}
        self._http: httpx2.AsyncClient | None = None

    async def __aenter__(self) -> Self:
        import httpx2  # noqa: PLC0415 - an extra

        headers = {"Accept": _MEDIA, **({"Authorization": f"Bearer {self._token}"} if self._token else {})}
        limits = httpx2.Limits(max_connections=8, max_keepalive_connections=2)
        self._http = httpx2.AsyncClient(
            auth=self._auth, headers=headers, verify=tls_context(self._tls), timeout=self._request_seconds,
            limits=limits, follow_redirects=False, trust_env=False,
        )  # fmt: skip
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        http, self._http = self._http, None
        if http is not None:
            await http.aclose()

    def known(self, schema_id: int) -> Schema | None:
        """What was found before; None: `schema` has to be awaited."""
        return self._by_id.get(schema_id)

    async def schema(self, schema_id: int) -> Schema:
        """`UnknownSchemaError`, `RegistryError`."""
        async with self._one_at_a_time(schema_id):
            found = self._by_id.get(schema_id)
            if found is not None:
                return found
            if self._unknown.get(schema_id, 0.0) > time.monotonic():
                raise UnknownSchemaError(f"{self}: there is no schema {schema_id}")
            try:
                answer = await self._asked("GET", f"/schemas/ids/{schema_id}")
            except UnknownSchemaError:
                self._unknown.keep(schema_id, time.monotonic() + UNKNOWN_SECONDS)
                raise
            return self._by_id.keep(schema_id, _schema_of(answer))

    async def schema_id(self, subject: str, schema: Schema, *, register: bool = False) -> int:
        """The id that the schema has under that subject; with ``register`` it is given one where it has none.

        `UnknownSchemaError`: it has none. `RegistryError`: it is not compatible, or not allowed.
        """
        async with self._one_at_a_time((subject, schema)):
            found = self._ids.get((subject, schema))
            if found is not None:
                return found
            path = f"/subjects/{quote(subject, safe='')}" + ("/versions" if register else "")
            answer = await self._asked("POST", path, _body_of(schema))
            return self._ids.keep((subject, schema), _number(answer, "id"))

    async def version_of(self, subject: str, schema: Schema) -> int:
        """Which of the subject's versions it is. `UnknownSchemaError`: none."""
        return _number(await self._asked("POST", f"/subjects/{quote(subject, safe='')}", _body_of(schema)), "version")

    async def version(self, subject: str, version: int | str = "latest") -> tuple[int, int, Schema]:
        """The id, the version and the schema of a subject's version. Asked anew each time."""
        answer = await self._asked("GET", f"/subjects/{quote(subject, safe='')}/versions/{version}")
        return _number(answer, "id"), _number(answer, "version"), _schema_of(answer)

    async def referenced(self, schema: Schema) -> dict[str, Schema]:
        """By name, all schemas that it names, each behind those that it names in its turn."""
        found: dict[str, Schema] = {}
        await self._add_referenced(schema, found, 0)
        return found

    async def _add_referenced(self, schema: Schema, found: dict[str, Schema], depth: int) -> None:
        if depth > REFERENCES_DEEP_MAX:
            raise RegistryError(f"{self}: references of references, more than {REFERENCES_DEEP_MAX} deep")
        for one in schema.references:
            if one.name not in found:
                _id, _version, named = await self.version(one.subject, one.version)
                await self._add_referenced(named, found, depth + 1)
                found[one.name] = named

    def __repr__(self) -> str:
        return f"registry {', '.join(self._addresses)}"

    @asynccontextmanager
    async def _one_at_a_time(self, key: object) -> AsyncIterator[None]:
        """Whoever asks for the same waits for the first; the lock goes with the last."""
        lock = self._asking.setdefault(key, anyio.Lock())
        try:
            async with lock:
                yield
        finally:
            if not lock.locked() and not lock.statistics().tasks_waiting:
                self._asking.pop(key, None)

    async def _asked(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        if self._http is None:
            raise RegistryError(f"{self} is not open: use `async with`")
        deadline = time.monotonic() + self._retry_seconds
        pause, longest = BACKOFF_SECONDS
        while True:
            reasons = []
            for address in self._addresses:
                status, answer = await self._attempt(self._http, method, address + path, body)
                if status not in _TEMPORARY and status:
                    return self._judged(status, answer, f"{method} {address}{path}")
                reasons.append(f"{address}: {answer}")
            if time.monotonic() + pause > deadline:
                raise RegistryError(f"{'; '.join(reasons)}, for {self._retry_seconds:g} s (retry_seconds)")
            await anyio.sleep(pause)
            pause = min(2 * pause, longest)

    async def _attempt(
        self, http: httpx2.AsyncClient, method: str, url: str, body: Mapping[str, Any] | None
    ) -> tuple[int, Any]:
        """Status and answer of one request; status 0 and the reason where there was no answer."""
        import httpx2  # noqa: PLC0415

        headers = {} if body is None else {"Content-Type": _MEDIA}
        content = None if body is None else json.dumps(body).encode()
        data = bytearray()
        try:
            with anyio.move_on_after(self._request_seconds) as scope:
                async with http.stream(method, url, content=content, headers=headers) as response:
                    async for part in response.aiter_bytes():
                        data += part
                        if len(data) > ANSWER_BYTES_MAX:
                            scope.cancel()  # only so do all of its generators end: an exception here leaves them open
        except httpx2.HTTPError as error:
            return 0, _told(error)
        if len(data) > ANSWER_BYTES_MAX:
            raise RegistryError(f"{method} {url}: an answer of more than {ANSWER_BYTES_MAX} bytes")
        if scope.cancelled_caught:
            return 0, f"no answer within {self._request_seconds:g} s (request_seconds)"
        try:
            return response.status_code, json.loads(bytes(data))
        except ValueError:
            return response.status_code, f"status {response.status_code}, and no JSON"

    def _judged(self, status: int, answer: Any, what: str) -> Any:
        if status == 200:
            return answer
        said = answer.get("message", answer) if isinstance(answer, dict) else answer
        text = f"{what}: {status}: {said}"
        raise UnknownSchemaError(text) if status == 404 else RegistryError(text)


def _told(error: BaseException) -> str:
    """The error's class, and the first text among it and its causes: some say nothing themselves."""
    found: BaseException | None = error
    while found is not None and not str(found):
        found = found.__cause__ or found.__context__
    return f"{type(error).__name__}: {found}" if found is not None else type(error).__name__


def _address(text: str) -> str:
    split = urlsplit(text.strip())
    if split.scheme not in ("http", "https") or not split.hostname or split.query or split.fragment:
        raise ValueError(f"{text!r} is no address of a registry, as https://host:8081 is")
    if split.username or split.password:
        raise ValueError("a password stands in `auth`, not in the address of a registry")
    return text.strip().rstrip("/")


def _schema_of(answer: Any) -> Schema:
    try:
        rows: Iterable[Any] = answer.get("references") or ()
        references = tuple(Reference(row["name"], row["subject"], int(row["version"])) for row in rows)
        return Schema(str(answer.get("schemaType", "AVRO")), str(answer["schema"]), references)
    except (AttributeError, KeyError, TypeError, ValueError):
        raise RegistryError(f"the registry's answer is no schema: {str(answer)[:200]}") from None


def _body_of(schema: Schema) -> dict[str, Any]:
    body: dict[str, Any] = {"schema": schema.text, "schemaType": schema.kind}
    if schema.references:
        body["references"] = [each._asdict() for each in schema.references]
    return body


def _number(answer: Any, name: str) -> int:
    found = answer.get(name) if isinstance(answer, dict) else None
    if not isinstance(found, int):
        raise RegistryError(f"the registry's answer has no {name}: {str(answer)[:200]}")
    return found
