"""A small server before a broker that ends TLS and answers SASL, as the broker does neither.

Frames go on to the broker byte for byte, except that the answer to ApiVersions names the SASL requests, and that these
are answered here. Who has not authenticated gets nothing but ApiVersions. Passwords lie about in plain text.
"""

import base64
import contextlib
import hashlib
import hmac
import socket
import ssl
import subprocess
import threading

from tests.support.broker_process import TpcBroker
from tests.support.waiting import eventually
from tpc_broker.kafka import ApiKey, ErrorCode, messages, protocol

ITERATIONS = 4096
LIFETIME_MS = 3_600_000


def make_certificates(folder):
    """An authority, a server's certificate for 127.0.0.1, one for another host, a client's; as PEM files."""
    folder.mkdir(parents=True, exist_ok=True)

    def openssl(*arguments):
        subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True, cwd=folder)

    new = ("req", "-newkey", "rsa:2048", "-nodes", "-batch")
    openssl(*new, "-x509", "-days", 2, "-subj", "/CN=authority", "-keyout", "ca.key", "-out", "ca.pem")
    openssl(*new, "-x509", "-days", 2, "-subj", "/CN=other", "-keyout", "other-ca.key", "-out", "other-ca.pem")
    for name, alternative in (("server", "IP:127.0.0.1"), ("elsewhere", "DNS:elsewhere"), ("client", "DNS:client")):
        (folder / f"{name}.ext").write_text(f"subjectAltName={alternative}\n")
        openssl(*new, "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.csr")
        openssl(
            "x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", 2,
            "-extfile", f"{name}.ext", "-out", f"{name}.pem",
        )  # fmt: skip
    openssl("rsa", "-aes256", "-passout", "pass:key-word", "-in", "client.key", "-out", "client-locked.key")
    return folder


class AdvertisingBroker(TpcBroker):
    """Tells its clients another address than its own: that of the proxy before it."""

    advertised = ""

    def command(self):
        return [*super().command(), "--advertise", self.advertised]


class Proxy:
    """Listens at once; `connect_to` says where the broker is. ``users`` gives passwords; None: no SASL."""

    def __init__(self, context=None, users=None, lifetime_ms=LIFETIME_MS, port=0):
        self.context, self.users, self.lifetime_ms = context, users, lifetime_ms
        self.lies = False
        self.handshakes_count = 0
        self._listener = socket.create_server(("127.0.0.1", port))
        self.port = self._listener.getsockname()[1]
        self._target = None
        self._sockets = []
        self._threads = []
        self._begin(self._accept)

    def _begin(self, function, *arguments):
        self._threads.append(threading.Thread(target=function, args=arguments, daemon=True))
        self._threads[-1].start()

    @property
    def address(self):
        return f"127.0.0.1:{self.port}"

    def connect_to(self, host, port):
        self._target = (host, port)

    def close(self):
        """And wait until no thread has anything open any more."""
        _shut_down(self._listener)  # while a thread accepts, the port would stay taken
        while self._threads:  # the first one begins the others
            thread = self._threads.pop(0)
            eventually(lambda thread=thread: self._ends(thread), "a thread of the proxy ends")
        self._listener.close()

    def _ends(self, thread):
        for one in list(self._sockets):
            _shut_down(one)
        return not thread.is_alive()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                client, _address = self._listener.accept()
                self._begin(self._serve, client)

    def _serve(self, client):
        with contextlib.ExitStack() as opened, contextlib.suppress(OSError):
            if self.context is not None:
                client = self.context.wrap_socket(client, server_side=True, do_handshake_on_connect=False)
            opened.enter_context(client)
            self._sockets.append(client)
            if self.context is not None:
                client.do_handshake()
            broker = opened.enter_context(socket.create_connection(self._target))
            self._sockets.append(broker)
            if self.users is None or self._authenticated(client, broker):
                back = threading.Thread(target=_pump, args=(broker, client), daemon=True)
                back.start()
                _pump(client, broker)
                back.join()

    def _authenticated(self, client, broker):
        machine = None
        while (frame := _read_frame(client)) is not None:
            header, _position = protocol.decode_request_header(frame)
            key, version = header.request_api_key, header.request_api_version
            if key == ApiKey.API_VERSIONS:
                broker.sendall(len(frame).to_bytes(4, "big") + frame)
                _id, answer = protocol.decode_response_frame(key, version, _read_frame(broker))
                row = type(answer.api_keys[0])
                answer.api_keys += [row(api_key=ApiKey.SASL_HANDSHAKE, min_version=1, max_version=1)]
                answer.api_keys += [row(api_key=ApiKey.SASL_AUTHENTICATE, min_version=0, max_version=2)]
            elif key == ApiKey.SASL_HANDSHAKE:
                asked = protocol.decode_request(key, version, frame, _position).mechanism
                machine = {"PLAIN": self._plain, "SCRAM-SHA-256": self._scram, "SCRAM-SHA-512": self._scram}.get(asked)
                machine = machine(asked) if machine else None
                code = ErrorCode.NONE if machine else ErrorCode.UNSUPPORTED_SASL_MECHANISM
                answer = messages.SaslHandshakeResponse(
                    error_code=code, mechanisms=["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]
                )
                if machine:
                    next(machine)
            elif key == ApiKey.SASL_AUTHENTICATE and machine:
                reply, done = machine.send(bytes(protocol.decode_request(key, version, frame, _position).auth_bytes))
                answer = messages.SaslAuthenticateResponse(
                    error_code=ErrorCode.NONE if reply is not None else ErrorCode.SASL_AUTHENTICATION_FAILED,
                    error_message=None if reply is not None else "wrong name or password",
                    auth_bytes=reply or b"",
                    session_lifetime_ms=self.lifetime_ms if done else 0,
                )
            else:
                return False
            client.sendall(b"".join(protocol.encode_response_frame(key, version, header.correlation_id, answer)))
            if key == ApiKey.SASL_AUTHENTICATE and (reply is None or done):
                self.handshakes_count += reply is not None
                return reply is not None
        return False

    def _plain(self, _mechanism):
        _authority, name, password = (yield).split(b"\0")
        yield (b"", True) if self.users.get(name.decode()) == password.decode() else (None, True)

    def _scram(self, mechanism):
        digest = mechanism.removeprefix("SCRAM-").replace("-", "").lower()
        first = yield
        bare = first.decode().removeprefix("n,,")
        fields = dict(part.split("=", 1) for part in bare.split(","))
        name = fields["n"].replace("=2C", ",").replace("=3D", "=")
        nonce, salt = fields["r"] + "more", b"salt of a test"
        server_first = f"r={nonce},s={base64.b64encode(salt).decode()},i={ITERATIONS}"
        final = (yield server_first.encode(), False).decode()
        without_proof, proof = final.rsplit(",p=", 1)
        password = "" if self.lies else self.users.get(name, "no such user")
        salted = hashlib.pbkdf2_hmac(digest, password.encode(), salt, ITERATIONS)
        message = f"{bare},{server_first},{without_proof}".encode()
        key = hmac.digest(salted, b"Client Key", digest)
        stored = hashlib.new(digest, key).digest()
        wanted = bytes(a ^ b for a, b in zip(key, hmac.digest(stored, message, digest), strict=True))
        signature = hmac.digest(hmac.digest(salted, b"Server Key", digest), message, digest)
        good = self.lies or hmac.compare_digest(base64.b64decode(proof), wanted)
        yield (b"v=" + base64.b64encode(signature), True) if good else (None, True)


def server_context(folder, name="server", *, asks_client=False):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / f"{name}.pem", folder / f"{name}.key")
    if asks_client:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(folder / "ca.pem")
    return context


def _read_exactly(source, count):
    data = b""
    while len(data) < count:
        more = source.recv(count - len(data))
        if not more:
            return None
        data += more
    return data


def _read_frame(source):
    size = _read_exactly(source, 4)
    return None if size is None else _read_exactly(source, int.from_bytes(size, "big"))


def _pump(source, target):
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
    for one in (source, target):
        _shut_down(one)


def _shut_down(one):
    """Whoever waits for it in another thread, also in a handshake, goes on."""
    with contextlib.suppress(OSError):
        socket.socket.shutdown(one, socket.SHUT_RDWR)
