"""The client's half of TLS over a socket of a bench that is turned by hand, and certificates with what a test wants."""

import contextlib
import ssl
import subprocess
from datetime import UTC, datetime, timedelta

from tests.support.connection_bench import frame_of
from tpc_broker.engine.connections import CloseReason
from tpc_broker.engine.tls import TlsMaterial, error_text


def client_context(folder, name=None, **changes):
    """That trusts the folder's authority, with a client's certificate where one is named."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(folder / "ca.pem")
    context.check_hostname = False
    if name is not None:
        context.load_cert_chain(folder / f"{name}.pem", folder / f"{name}.key")
    for key, value in changes.items():
        setattr(context, key, value)
    return context


def material_of(folder, name="server", **changes):
    texts = {"chain": (folder / f"{name}.pem").read_text(), "key": (folder / f"{name}.key").read_text()}
    return TlsMaterial(**{**texts, **changes})


_AUTHORITY = """[ca]
default_ca = here
[here]
database = {name}.index
certificate = {name}.pem
private_key = {name}.key
new_certs_dir = .
default_md = sha256
default_crl_days = 2
rand_serial = yes
unique_subject = no
policy = any
[any]
commonName = optional
"""


def _openssl(folder, *arguments):
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True, cwd=folder)


def _authority(folder, name):
    """Options of `openssl ca`."""
    if not (folder / f"{name}.cnf").exists():
        (folder / f"{name}.cnf").write_text(_AUTHORITY.format(name=name))
        (folder / f"{name}.index").write_text("")
    return ("ca", "-batch", "-config", f"{name}.cnf")


def make_certificate(folder, name, *, subject="/CN=someone", authority="ca", extension="", begin=0, days=2):
    """`name.pem` and `name.key`, by elliptic curves; `extension` such as `subjectAltName=URI:a`. Good from `begin`, in
    days from yesterday, for `days`.
    """
    yesterday = datetime.now(UTC) - timedelta(days=1)
    times = [(yesterday + timedelta(days=each)).strftime("%Y%m%d%H%M%SZ") for each in (begin, begin + days)]
    (folder / f"{name}.ext").write_text(extension or "basicConstraints=CA:FALSE")
    _openssl(
        folder, "req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-batch", "-utf8",
        "-multivalue-rdn", "-subj", subject, "-keyout", f"{name}.key", "-out", f"{name}.csr",
    )  # fmt: skip
    _openssl(
        folder, *_authority(folder, authority), "-notext", "-preserveDN", "-policy", "any", "-utf8", "-startdate",
        times[0], "-enddate", times[1], "-extfile", f"{name}.ext", "-in", f"{name}.csr", "-out", f"{name}.pem",
    )  # fmt: skip


def make_lone_certificate(folder, name):
    """Signed by nobody but itself."""
    _openssl(
        folder, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-batch", "-days", 2, "-subj", "/CN=server",
        "-keyout", f"{name}.key", "-out", f"{name}.pem",
    )  # fmt: skip


class CommandClient:
    """`openssl s_client`, which does by a letter what Python's TLS cannot."""

    def __init__(self, bench, *options):
        host, port = bench.address
        self._process = subprocess.Popen(
            ["openssl", "s_client", "-connect", f"{host}:{port}", *options],
            bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._process.kill()
        self._process.stdin.close()
        self._process.wait()

    def press(self, letter):
        with contextlib.suppress(OSError):  # it may have ended
            self._process.stdin.write(f"{letter}\n".encode())


def make_revocations(folder, *names, authority="ca"):
    """PEM text of the authority's list with these certificates in it."""
    for name in names:
        _openssl(folder, *_authority(folder, authority), "-revoke", f"{name}.pem")
    _openssl(folder, *_authority(folder, authority), "-gencrl", "-out", f"{authority}.crl")
    return (folder / f"{authority}.crl").read_text()


class TlsClient:
    """`say` is how ciphertext goes to the socket: by default all of it at once."""

    def __init__(self, bench, sock, context):
        self.bench, self.sock = bench, sock
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self.incoming, self.outgoing, server_hostname=None)
        self.say = self.say_at_once
        self.is_ended = False
        sock.setblocking(False)

    def say_at_once(self, data):
        self.bench.feed(self.sock, data)
        self.sock.setblocking(False)

    def say_byte_by_byte(self, data):
        for i in range(len(data)):
            self.sock.send(data[i : i + 1])
            self.bench.turn(1)

    def flush(self):
        data = self.outgoing.read()
        if data:
            self.say(data)

    def hear(self):
        """What has come to the socket, into the client's TLS."""
        with contextlib.suppress(BlockingIOError):
            while True:
                data = self.sock.recv(65536)
                if not data:
                    self.is_ended = True
                    self.incoming.write_eof()
                    return
                self.incoming.write(data)

    def attempt(self, step):
        """Whether a step of TLS was made; if not, the other side is turned and heard."""
        try:
            step()
        except ssl.SSLWantReadError:
            self.flush()
            self.bench.turn(2)
            self.hear()
            return False
        self.flush()
        return True

    def shake_hands(self):
        self.bench.until(lambda: self.attempt(self.tls.do_handshake))
        return self

    def send(self, data):
        self.tls.write(data)
        self.flush()

    def read(self, length):
        data = bytearray()
        while len(data) < length:
            self.bench.until(lambda: self.attempt(lambda: data.extend(self.tls.read(length - len(data)))))
            if self.is_ended and not data:
                raise EOFError
        return bytes(data)

    def read_frame(self):
        return self.read(int.from_bytes(self.read(4)))

    def exchange(self, body=b"ping", answer=b"pong"):
        self.send(frame_of(body))
        request = self.bench.next_request()
        assert bytes(request.body) == body
        self.bench.connections.answer(request, answer)
        assert self.read_frame() == answer


def is_refused(bench, context):
    """Whether the connection ends without anything that was asked for being heard, and for what reason."""
    client = TlsClient(bench, bench.connect(), context)
    client.say = lambda data: _send_what_goes(client.sock, data)
    try:
        bench.until(lambda: bench.closed or client.attempt(client.tls.do_handshake))
        client.tls.write(frame_of(b"let me in"))
        client.flush()
    except (ssl.SSLError, OSError):
        pass
    bench.until(lambda: bench.closed or bench.requests)
    assert not bench.requests
    _connection, reason, error = bench.closed.popleft()
    return error_text(error) if reason is CloseReason.TLS else reason.name


def _send_what_goes(sock, data):
    with contextlib.suppress(OSError):  # it was closed: that is looked at where it is told
        sock.send(data)
