"""Attempts to get past TLS, each of which must fail: by versions, certificates, tricks of the record layer, and floods.

The numbers are those of the list that the security of this broker was planned by.
"""

import contextlib
import ssl

import pytest

from tests.support.allocated import allocated_bytes
from tests.support.connection_bench import frame_of
from tests.support.tls_clients import (
    CommandClient,
    TlsClient,
    client_context,
    is_refused,
    make_certificate,
    make_lone_certificate,
    make_revocations,
    material_of,
)
from tpc_broker.engine.connections import CloseReason
from tpc_broker.engine.tls import ClientAuth, NameSource, error_text, let_speak, peer_name, secure

AUTHORITY = "basicConstraints=critical,CA:TRUE\nkeyUsage=keyCertSign,cRLSign"
SESSION_BYTES = 48 << 10
"""Of one whose handshake has begun, about."""
CHANGE_CIPHER_SPEC = bytes.fromhex("140303000101")


@pytest.fixture
def make_tls(make_connections, certificates):
    def make(trusted=None, client_auth=ClientAuth.NONE, **changes):
        bench = make_connections()
        trusted = trusted or (certificates / "ca.pem").read_text()
        secure(bench.connections, 0, material_of(certificates, trusted=trusted, client_auth=client_auth, **changes))
        bench.names = []

        def name(connection, _listener):
            bench.names.append(peer_name(bench.connections, connection, NameSource.SUBJECT))
            let_speak(bench.connections, connection)

        bench.connections.on_secured = name
        return bench

    return make


def test_46_plain_bytes_to_a_tls_port(make_tls):
    bench = make_tls()
    for data in (frame_of(b"plain"), b"GET / HTTP/1.1\r\n\r\n", b"\0" * 100, b"\x16\x03\x01\0\x05hello"):
        bench.connect().sendall(data)
        assert bench.next_closed()[1] is CloseReason.TLS
    assert not bench.requests


def test_46_tls_to_a_plain_port(make_connections, certificates):
    bench = make_connections()
    assert is_refused(bench, client_context(certificates)) == "FRAME_TOO_LARGE"


@pytest.mark.parametrize("version", ["TLSv1", "TLSv1_1"])
def test_47_versions_that_are_too_old(make_tls, certificates, version):
    context = client_context(certificates)
    context.set_ciphers("DEFAULT@SECLEVEL=0")
    with pytest.warns(DeprecationWarning, match="deprecated"):
        context.minimum_version = context.maximum_version = getattr(ssl.TLSVersion, version)
    assert is_refused(make_tls(), context) == "unsupported protocol"


@pytest.mark.parametrize(("letter", "version"), [("R", "-tls1_2"), ("K", "-tls1_3")])
def test_48_59_renegotiation_and_a_flood_of_key_updates(make_tls, letter, version):
    bench = make_tls()
    with CommandClient(bench, version) as client:
        bench.until(lambda: bench.connections.statistics().handshakes == 1)
        bench.until(lambda: client.press(letter) or bench.closed)
    _connection, reason, error = bench.closed.popleft()
    assert bench.connections.statistics().handshakes == 1
    if letter == "K":
        assert (reason, error_text(error)) == (CloseReason.TLS, "it sent records without data, again and again")


def test_49_no_certificate(make_tls, certificates):
    bench = make_tls(client_auth=ClientAuth.REQUIRED)
    for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        refused = is_refused(bench, client_context(certificates, maximum_version=version))
        assert refused == "peer did not return a certificate"
    assert not bench.names


@pytest.mark.parametrize("client_auth", [ClientAuth.REQUIRED, ClientAuth.REQUESTED])
def test_50_to_52_certificates_that_are_worth_nothing(make_tls, certificates, client_auth):
    """Where one is only requested as well: a bad one is not as good as none."""
    bench = make_tls(client_auth=client_auth)
    make_lone_certificate(certificates, "alone")
    make_certificate(certificates, "foreign", authority="other-ca")
    make_certificate(certificates, "expired", begin=-3)
    make_certificate(certificates, "early", begin=3)
    make_certificate(certificates, "of-a-server", extension="extendedKeyUsage=serverAuth")
    for name in ("alone", "foreign", "expired", "early", "of-a-server"):
        assert is_refused(bench, client_context(certificates, name)) == "certificate verify failed"
    assert not bench.names


def test_53_a_certificate_that_was_revoked(make_tls, certificates):
    for name in ("good", "revoked"):
        make_certificate(certificates, name, subject=f"/CN={name}")
    bench = make_tls(client_auth=ClientAuth.REQUIRED, revoked=make_revocations(certificates, "revoked"))
    assert is_refused(bench, client_context(certificates, "revoked")) == "certificate verify failed"
    TlsClient(bench, bench.connect(), client_context(certificates, "good")).shake_hands().exchange()
    assert bench.names == ["CN=good"]


def make_chain(folder):
    """`between`, which is signed by `ca`, and `below`, which is signed by it and comes with it."""
    make_certificate(folder, "between", subject="/CN=between", extension=AUTHORITY)
    make_certificate(folder, "below", subject="/CN=below", authority="between")
    with (folder / "below.pem").open("a") as file:
        file.write((folder / "between.pem").read_text())


def test_53_a_certificate_under_an_authority_that_was_revoked(make_tls, certificates):
    """Or of which nobody says whether it was: there is a list of its own, and none of who signed it."""
    make_chain(certificates)
    root, lists = (certificates / "ca.pem").read_text(), make_revocations(certificates, authority="between")
    for revoked, is_good in (((), True), (("between",), False)):
        bench = make_tls(root, ClientAuth.REQUIRED, revoked=lists + make_revocations(certificates, *revoked))
        if is_good:
            TlsClient(bench, bench.connect(), client_context(certificates, "below")).shake_hands().exchange()
        else:
            assert is_refused(bench, client_context(certificates, "below")) == "certificate verify failed"
    bench = make_tls(root, ClientAuth.REQUIRED, revoked=lists)
    assert is_refused(bench, client_context(certificates, "below")) == "certificate verify failed"


def test_53_an_authority_that_is_trusted_itself_needs_no_list_of_who_signed_it(make_tls, certificates):
    make_chain(certificates)
    trusted, lists = (certificates / "between.pem").read_text(), make_revocations(certificates, authority="between")
    for revoked in (lists, lists + make_revocations(certificates)):
        bench = make_tls(trusted, ClientAuth.REQUIRED, revoked=revoked)
        TlsClient(bench, bench.connect(), client_context(certificates, "below")).shake_hands().exchange()
    revoked = make_revocations(certificates, "below", authority="between")
    bench = make_tls(trusted, ClientAuth.REQUIRED, revoked=revoked)
    assert is_refused(bench, client_context(certificates, "below")) == "certificate verify failed"


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_56_57_no_session_is_taken_up_again(make_tls, certificates, version):
    """So there is nothing that early data or somebody else's ticket could come with."""
    bench = make_tls()
    context = client_context(certificates, maximum_version=version)
    first = TlsClient(bench, bench.connect(), context).shake_hands()
    first.exchange()
    session = first.tls.session
    assert session is None or not session.has_ticket
    again = TlsClient(bench, bench.connect(), context)
    if session is not None:
        again.tls.session = session
    again.shake_hands().exchange()
    assert not again.tls.session_reused


def test_58_what_is_cut_off_is_no_request(make_tls, certificates):
    """In a record, and between two records of one request."""
    bench = make_tls()
    whole = []
    for _ in range(2):
        client = TlsClient(bench, bench.connect(), client_context(certificates)).shake_hands()
        client.tls.write(frame_of(bytes(30_000)))
        whole.append((client, client.outgoing.read()))
    for (client, data), cut in zip(whole, (5_000, 5 + 16_384 + 17), strict=True):
        bench.feed(client.sock, data[:cut])
        client.sock.close()
        assert bench.next_closed()[1] is CloseReason.PEER
    assert not bench.requests


def test_60_a_flood_of_records_without_data(make_tls, certificates):
    bench = make_tls()
    client = TlsClient(bench, bench.connect(), client_context(certificates))
    with pytest.raises(ssl.SSLWantReadError):
        client.tls.do_handshake()
    client.say_at_once(client.outgoing.read() + CHANGE_CIPHER_SPEC * 200)
    assert bench.next_closed()[1] is CloseReason.TLS


LONG_HELLO = bytes.fromhex("1603010200" "0102013c")  # 131,388 bytes


@pytest.mark.parametrize(
    "records",
    [LONG_HELLO, b"\x16\x03\x01\0\x01\x01" + b"\x16\x03\x01\0\x03\x02\x01\x3c"],
)
def test_60_a_hello_that_announces_much_memory(make_tls, records):
    """At once, byte by byte, with its header in two records."""
    bench = make_tls()
    for step in (len(records), 1):
        sock = bench.connect()
        for place in range(0, len(records), step):
            with contextlib.suppress(OSError):  # it is closed already
                sock.sendall(records[place : place + step])
            bench.turn(1)
        _connection, reason, error = bench.next_closed()
        assert reason is CloseReason.TLS
        assert error_text(error) == "its ClientHello is too long, or too cut up"


def test_60_a_second_hello_that_announces_much_memory(make_tls, certificates):
    """Asked for because the first one had no key of a group that is known."""
    bench = make_tls()
    client = TlsClient(bench, bench.connect(), client_context(certificates))
    with pytest.raises(ssl.SSLWantReadError):
        client.tls.do_handshake()
    hello = client.outgoing.read()
    for behind in (b"\0\x17", b"\0\x20"):  # in the list of groups, and of its key
        hello = hello.replace(b"\0\x1d" + behind, b"\x1a\x1a" + behind)
    client.say_at_once(hello)
    bench.until(lambda: client.hear() or client.incoming.pending)
    assert client.incoming.read()[11:15] == bytes.fromhex("cf21ad74")  # HelloRetryRequest
    client.sock.sendall(CHANGE_CIPHER_SPEC + LONG_HELLO)
    _connection, reason, error = bench.next_closed()
    assert (reason, error_text(error)) == (CloseReason.TLS, "its ClientHello is too long, or too cut up")


def test_60_certificates_that_are_too_many(make_tls, certificates):
    bench = make_tls(client_auth=ClientAuth.REQUIRED)
    make_certificate(certificates, "crowd")
    with (certificates / "crowd.pem").open("a") as file:
        file.write((certificates / "ca.pem").read_text() * 60)
    assert is_refused(bench, client_context(certificates, "crowd")) == "excessive message size"


def test_60_many_handshakes_that_come_to_no_end(make_connections, certificates):
    """For one more the oldest goes; who says nothing is not counted, nor who is through."""
    bench = make_connections(handshakes_max=3)
    secure(bench.connections, 0, material_of(certificates))
    through = [TlsClient(bench, bench.connect(), client_context(certificates)).shake_hands() for _ in range(5)]
    silent = bench.connect()
    halfway = []
    for i in range(10):
        client = TlsClient(bench, bench.connect(), client_context(certificates))
        with pytest.raises(ssl.SSLWantReadError):
            client.tls.do_handshake()
        client.flush()
        halfway.append(client)
        bench.until(lambda i=i: len(bench.closed) == max(0, i - 2))
    assert {reason for _connection, reason, _error in bench.closed} == {CloseReason.BUDGET}
    assert [client.sock.fileno() for client in halfway if _is_closed(client)] == [
        client.sock.fileno() for client in halfway[:7]
    ]
    for client in (*through, *(each.shake_hands() for each in halfway[7:])):
        client.exchange()
    TlsClient(bench, silent, client_context(certificates)).shake_hands().exchange()


def test_60_a_crowd_that_comes_at_once_holds_no_more_memory(make_connections, certificates):
    """Who has given way holds none, although the kernel's last word on it comes behind what the others have sent."""
    bench = make_connections(handshakes_max=8)
    secure(bench.connections, 0, material_of(certificates))
    crowd = [bench.connect() for _ in range(400)]
    for client in crowd:
        client.sendall(b"\x16")
    before, peak = allocated_bytes(), 0

    def have_given_way():
        nonlocal peak
        peak = max(peak, allocated_bytes() - before)
        return len(bench.closed) == len(crowd) - 8

    bench.until(have_given_way)
    assert peak < 40 * SESSION_BYTES


def _is_closed(client):
    client.hear()
    return client.is_ended


def test_records_that_were_changed_or_come_again_end_the_connection(make_tls, certificates):
    bench = make_tls()
    for change in (lambda data: data[:-1] + bytes([data[-1] ^ 1]), lambda data: data + data):
        client = TlsClient(bench, bench.connect(), client_context(certificates)).shake_hands()
        client.tls.write(frame_of(b"a request"))
        bench.feed(client.sock, change(client.outgoing.read()))
        assert bench.next_closed()[1] is CloseReason.TLS
        heard = [bytes(request.body) for request in bench.requests]
        assert heard in ([], [b"a request"])
        bench.requests.clear()


def test_a_record_that_is_too_long(make_tls, certificates):
    bench = make_tls()
    client = TlsClient(bench, bench.connect(), client_context(certificates)).shake_hands()
    bench.feed(client.sock, b"\x17\x03\x03\xff\xff" + bytes(65_535))
    assert bench.next_closed()[1] is CloseReason.TLS


def test_any_bytes_in_place_of_a_handshake(make_tls, certificates):
    """Every byte of the first flight, changed."""
    bench = make_tls()
    client = TlsClient(bench, bench.connect(), client_context(certificates))
    with pytest.raises(ssl.SSLWantReadError):
        client.tls.do_handshake()
    hello = client.outgoing.read()
    for place in range(0, len(hello), 11):
        sock = bench.connect()
        sock.sendall(hello[:place] + bytes([hello[place] ^ 0xFF]) + hello[place + 1 :])
        bench.turn(1)
        bench.turn(1)
        sock.close()
    assert not bench.requests

