"""A registry of schemas for tests: the part of its interface that codecs use, over HTTP on loopback."""

from __future__ import annotations

import json
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote


class FakeRegistry:
    """``failures``: statuses that come before the next true answers. ``requests``: what was asked, in order."""

    def __init__(self) -> None:
        self.schemas: dict[int, dict[str, Any]] = {}
        self.subjects: dict[str, list[int]] = {}
        self.failures: list[int] = []
        self.requests: list[str] = []
        self.authorization: str | None = None
        """What is asked of every request; None: nothing."""
        self.is_awake = threading.Event()
        """What answers wait for."""
        self.is_awake.set()
        self.bodies: dict[str, bytes] = {}
        """By path, what is answered instead."""
        self.address = ""

    def add(self, subject: str, text: str, kind: str = "AVRO", references: list[dict[str, Any]] | None = None) -> int:
        return int(self._register(subject, {"schema": text, "schemaType": kind, "references": references or []})["id"])

    def answer(self, method: str, path: str, body: Any) -> tuple[int, Any]:
        match method, *path.strip("/").split("/"):
            case "GET", "schemas", "ids", number:
                found = self.schemas.get(int(number))
                return (200, _shown(found)) if found else _missing(40403, "Schema not found")
            case "GET", "subjects", subject, "versions", version:
                return self._version(unquote(subject), version)
            case "POST", "subjects", subject, "versions":
                return 200, {"id": self._register(unquote(subject), body)["id"]}
            case "POST", "subjects", subject:
                return self._lookup(unquote(subject), body)
        return 500, {"message": f"{method} {path}"}

    def _register(self, subject: str, body: Any) -> dict[str, Any]:
        entry = {"schema": body["schema"], "schemaType": body["schemaType"], "references": body.get("references", [])}
        number = next((number for number, known in self.schemas.items() if known == entry), len(self.schemas) + 1)
        self.schemas[number] = entry
        versions = self.subjects.setdefault(subject, [])
        if number not in versions:
            versions.append(number)
        return {"id": number}

    def _lookup(self, subject: str, body: Any) -> tuple[int, Any]:
        entry = {"schema": body["schema"], "schemaType": body["schemaType"], "references": body.get("references", [])}
        for version, number in enumerate(self.subjects.get(subject, []), start=1):
            if self.schemas[number] == entry:
                return 200, {"id": number, "version": version, "subject": subject, **_shown(entry)}
        return _missing(40403, "Schema not found")

    def _version(self, subject: str, version: str) -> tuple[int, Any]:
        versions = self.subjects.get(subject, [])
        if not versions:
            return _missing(40401, f"Subject '{subject}' not found.")
        place = len(versions) if version == "latest" else int(version)
        return 200, {"id": versions[place - 1], "version": place, **_shown(self.schemas[versions[place - 1]])}


class _Server(ThreadingHTTPServer):
    """Its end is that of all its threads."""

    daemon_threads = False

    def __init__(self, *arguments: Any) -> None:
        self._open: set[socket.socket] = set()
        super().__init__(*arguments)

    def get_request(self) -> tuple[socket.socket, Any]:
        found = super().get_request()
        self._open.add(found[0])
        return found

    def shutdown_request(self, request: Any) -> None:
        super().shutdown_request(request)
        self._open.discard(request)

    def end(self) -> None:
        for one in list(self._open):  # of clients that have not gone
            with suppress(OSError):
                socket.socket.shutdown(one, socket.SHUT_RDWR)
        self.server_close()


def _shown(entry: dict[str, Any]) -> dict[str, Any]:
    """As registries do, Avro's kind is left out."""
    return {key: value for key, value in entry.items() if value not in ("AVRO", [])}


def _missing(code: int, text: str) -> tuple[int, Any]:
    return 404, {"error_code": code, "message": text}


@contextmanager
def fake_registry(context: ssl.SSLContext | None = None) -> Iterator[FakeRegistry]:
    registry = FakeRegistry()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._reply("GET", None)

        def do_POST(self) -> None:
            self._reply("POST", json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

        def log_message(self, *_words: object) -> None:
            pass

        def _reply(self, method: str, body: Any) -> None:
            registry.requests.append(f"{method} {self.path}")
            registry.is_awake.wait()
            if registry.authorization not in (None, self.headers.get("Authorization")):
                status, told = 401, json.dumps({"error_code": 401, "message": "Unauthorized"}).encode()
            elif registry.failures:
                status, told = registry.failures.pop(0), b"try again"
            elif self.path in registry.bodies:
                status, told = 200, registry.bodies[self.path]
            else:
                status, answer = registry.answer(method, self.path, body)
                told = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(told)))
            with suppress(OSError):  # nobody may be there any more
                self.end_headers()
                self.wfile.write(told)

    server = _Server(("127.0.0.1", 0), Handler)
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    registry.address = f"http{'s' if context else ''}://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield registry
    finally:
        registry.is_awake.set()
        server.shutdown()
        thread.join()
        server.end()
