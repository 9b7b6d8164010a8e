"""TLS on client connections, over real sockets with Python's own TLS as the client: with all features, with those of
kernel 5.8, and without io_uring.
"""

import contextlib
import ssl
from random import Random

import pytest

from tests.support.connection_bench import frame_of
from tests.support.contents import content
from tests.support.tls_clients import TlsClient, client_context, make_certificate, material_of
from tests.support.waiting import let_pass
from tpc_broker.engine.connections import CloseReason, CloseWhen
from tpc_broker.engine.tls import (
    ClientAuth,
    NameSource,
    TlsPart,
    TlsRefusedError,
    error_text,
    let_speak,
    make_context,
    peer_name,
    secure,
)

MIB = 1024 * 1024
SHORT_BUDGET = {"budget_bytes": 3 * MIB, "request_bytes_max": 2 * MIB, "receive_buffers_count": 32}
VERSIONS = [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3]


@pytest.fixture
def make_tls(make_connections, certificates):
    """A bench whose listener has TLS, and the means to connect to it."""

    def make(changes=None, **limits):
        bench = make_connections(**limits)
        secure(bench.connections, 0, material_of(certificates, **(changes or {})))
        return bench

    return make


def connected(bench, folder, name=None, **changes):
    return TlsClient(bench, bench.connect(), client_context(folder, name, **changes))


def answer_all(bench, make_answer):
    bench.on_request = lambda request: bench.connections.answer(request, make_answer(bytes(request.body)))


@pytest.mark.parametrize("version", VERSIONS)
def test_a_request_and_its_answer(make_tls, certificates, version):
    bench = make_tls()
    client = connected(bench, certificates, maximum_version=version).shake_hands()
    assert client.tls.version() == {VERSIONS[0]: "TLSv1.2", VERSIONS[1]: "TLSv1.3"}[version]
    client.exchange()
    client.exchange(content(3 * MIB), content(2 * MIB))
    assert bench.connections.statistics().handshakes == 1


@pytest.mark.parametrize("version", VERSIONS)
def test_byte_by_byte(make_tls, certificates, version):
    bench = make_tls()
    client = connected(bench, certificates, maximum_version=version)
    client.say = client.say_byte_by_byte
    client.shake_hands()
    client.exchange(b"a request that comes byte by byte", b"its answer")


def test_in_two_pieces_wherever_it_is_cut(make_tls, certificates):
    """A handshake's first flight, and two requests in one record."""
    bench = make_tls()
    answer_all(bench, lambda body: body[::-1])
    first_flight = connected(bench, certificates)
    with pytest.raises(ssl.SSLWantReadError):
        first_flight.tls.do_handshake()
    flight_bytes = len(first_flight.outgoing.read())
    for cut in range(1, flight_bytes, 7):
        client = connected(bench, certificates)
        cuts = [cut]

        def say(data, client=client, cuts=cuts):
            place = cuts.pop() if cuts else 0
            client.sock.send(data[:place]) if place else None
            bench.turn(1)
            client.say_at_once(data[place:])

        client.say = say
        client.shake_hands()
        cuts.append(cut % 60 + 1)
        client.send(frame_of(b"one") + frame_of(b"two"))
        assert client.read_frame() == b"eno"
        assert client.read_frame() == b"owt"
        bench.forget_clients()


def test_a_request_in_one_segment_with_the_end_of_the_handshake(make_tls, certificates):
    """Attempt 61: it is served, and no earlier than the handshake."""
    bench = make_tls()
    client = connected(bench, certificates)
    flights = []
    client.say = flights.append
    bench.until(lambda: _is_shaken(client, flights, bench))
    client.tls.write(frame_of(b"early"))
    assert not bench.requests
    bench.feed(client.sock, b"".join(flights) + client.outgoing.read())
    assert bytes(bench.next_request().body) == b"early"


def _is_shaken(client, flights, bench):
    """All flights but the last are sent."""
    try:
        client.tls.do_handshake()
    except ssl.SSLWantReadError:
        client.flush()
        while flights:
            client.say_at_once(flights.pop(0))
        bench.turn(2)
        client.hear()
        return False
    client.flush()
    return True


def test_many_requests_at_once(make_tls, certificates):
    bench = make_tls(pipelined_requests_max=8)
    answer_all(bench, lambda body: body)
    client = connected(bench, certificates).shake_hands()
    client.send(b"".join(frame_of(b"%d" % i) for i in range(500)))
    assert [client.read_frame() for _ in range(500)] == [b"%d" % i for i in range(500)]


def test_what_is_decrypted_waits_while_the_connection_is_paused(make_tls, certificates):
    """All requests are in one record, and no byte comes that could wake the connection up."""
    bench = make_tls(pipelined_requests_max=2)
    client = connected(bench, certificates).shake_hands()
    client.send(b"".join(frame_of(b"%d" % i) for i in range(20)))
    for i in range(20):
        request = bench.next_request()
        for _ in range(5):
            bench.turn(0)
        assert len(bench.requests) <= 1
        assert bytes(request.body) == b"%d" % i
        bench.connections.answer(request, b"%d" % i)
    assert [client.read_frame() for _ in range(20)] == [b"%d" % i for i in range(20)]


def test_the_end_of_file_comes_after_what_was_decrypted_before(make_tls, certificates):
    bench = make_tls(pipelined_requests_max=1)
    client = connected(bench, certificates).shake_hands()
    client.send(frame_of(b"first") + frame_of(b"second"))
    first = bench.next_request()
    bench.forget_clients()
    for _ in range(5):
        bench.turn(0)
    bench.connections.answer_none(first)
    second = bench.next_request()
    assert bytes(second.body) == b"second"
    bench.connections.answer_none(second)
    assert bench.next_closed()[1] is CloseReason.PEER


def test_a_large_request_waits_for_memory(make_tls, certificates):
    """The rest of it waits as ciphertext, and comes when what another one holds is answered."""
    bench = make_tls(**SHORT_BUDGET)
    holder, other = (connected(bench, certificates).shake_hands() for _ in range(2))
    holder.send(frame_of(content(MIB + MIB // 2)))
    held = bench.next_request()
    body = content(MIB + MIB // 2 + 7)
    other.tls.write(frame_of(body))
    left = [memoryview(other.outgoing.read())]

    def send_more():
        with contextlib.suppress(BlockingIOError):
            left[0] = left[0][other.sock.send(left[0][:65536]) :]
        return bench.connections.statistics().starvations > 0

    bench.until(send_more)
    for _ in range(5):
        bench.turn(1)
    assert not bench.requests
    bench.connections.answer(held, b"done")
    bench.until(lambda: left[0].nbytes == 0 or (send_more() and False))
    assert bytes(bench.next_request().body) == body


def test_a_large_request_is_received_in_few_pieces(make_tls, certificates):
    """Not each of its records in a completion of its own; and so is one that comes behind small ones."""
    bench = make_tls()
    client = connected(bench, certificates).shake_hands()
    client.exchange(content(MIB))
    for _ in range(2):
        client.exchange(b"a small one")
        before = bench.connections.statistics().receives
        client.exchange(content(MIB))
        assert bench.connections.statistics().receives - before < MIB // (16 * 1024) // 2


def test_a_reader_that_is_slow_gets_everything(make_tls, certificates):
    bench = make_tls()
    client = connected(bench, certificates).shake_hands()
    answers = [content(MIB + i) for i in range(12)]
    client.send(b"".join(frame_of(b"%d" % i) for i in range(12)))
    for answer in answers:
        bench.connections.answer(bench.next_request(), answer)
    for _ in range(20):
        bench.turn(1)
    assert bench.connections.statistics().answer_bytes_unsent > MIB
    assert [client.read_frame() for _ in range(12)] == answers
    assert bench.connections.statistics().sends_zero_copy == 0


def test_small_answers_leave_in_full_records(make_tls, certificates):
    """A record for each would cost more to send than what is in it."""
    bench = make_tls(pipelined_requests_max=1000)
    client = connected(bench, certificates).shake_hands()
    client.send(b"".join(frame_of(b"%d" % i) for i in range(400)))
    requests = [bench.next_request() for _ in range(400)]
    for request in reversed(requests):
        bench.connections.answer(request, bytes(100))
    before = bench.connections.statistics().sends
    assert client.read(400 * 104) == frame_bytes(100) * 400
    assert bench.connections.statistics().sends - before <= 2


def frame_bytes(length):
    return length.to_bytes(4) + bytes(length)


def test_any_sizes_in_any_pieces(make_tls, certificates):
    random = Random(33)
    bench = make_tls(pipelined_requests_max=16, receive_share_bytes=MIB)
    answer_all(bench, lambda body: body + body[:50])
    client = connected(bench, certificates).shake_hands()

    def say(data):
        place = 0
        while place < len(data):
            piece = random.choice((1, 5, 100, 5000, 70_000))
            bench.feed(client.sock, data[place : place + piece])
            client.sock.setblocking(False)
            place += piece

    client.say = say
    for _ in range(30):
        sizes = random.choices((0, 1, 100, 16_380, 16_384, 40_000, 300_000), k=random.randint(1, 5))
        bodies = [content(size) for size in sizes]
        client.send(b"".join(frame_of(body) for body in bodies))
        for body in bodies:
            assert client.read_frame() == body + body[:50]


def test_a_client_that_ends_its_tls_is_gone_with_all_it_asked_for_answered(make_tls, certificates):
    bench = make_tls()
    client = connected(bench, certificates).shake_hands()
    client.exchange()
    with pytest.raises(ssl.SSLWantReadError):
        client.tls.unwrap()
    client.flush()
    assert bench.next_closed()[1] is CloseReason.PEER


def test_the_broker_says_that_it_ends(make_tls, certificates):
    """So a client knows that nothing was cut off."""
    bench = make_tls()
    client = connected(bench, certificates).shake_hands()
    client.send(frame_of(b"last"))
    request = bench.next_request()
    bench.connections.close(request.connection, CloseReason.SHUTDOWN, CloseWhen.AFTER_TAKEN)
    bench.connections.answer(request, b"yes")
    assert client.read_frame() == b"yes"
    bench.until(lambda: client.hear() or client.is_ended)
    assert client.tls.read(1) == b""  # close_notify; without it this would be an SSLEOFError


def test_a_handshake_that_takes_too_long_ends(make_tls, certificates):
    """Whether nothing comes or half of it."""
    bench = make_tls(handshake_ms_max=50)
    silent, halfway = connected(bench, certificates), connected(bench, certificates)
    with pytest.raises(ssl.SSLWantReadError):
        halfway.tls.do_handshake()
    halfway.say_at_once(halfway.outgoing.read()[:50])
    assert {bench.next_closed()[1] for _ in range(2)} == {CloseReason.HANDSHAKE_DEADLINE}
    bench.world.let_arrive()
    assert silent.sock.recv(100) == halfway.sock.recv(100) == b""


def test_who_has_made_the_handshake_may_be_silent(make_tls, certificates):
    bench = make_tls(handshake_ms_max=50)
    client = connected(bench, certificates)
    bench.until(lambda: client.attempt(client.tls.do_handshake) or bench.closed)
    if not bench.closed:  # a slow machine may need longer for it
        let_pass(0.1)
        bench.turn(0)
        client.exchange()


def test_a_crowd_that_comes_at_once_is_served(make_tls, certificates):
    """More handshakes than one turn has time for: the others wait for the next one, and no turn is held up by all."""
    bench = make_tls()
    clients = [connected(bench, certificates) for _ in range(64)]
    for client in clients:
        with pytest.raises(ssl.SSLWantReadError):
            client.tls.do_handshake()
        client.sock.sendall(client.outgoing.read())  # `flush` would turn for each of them
    bench.until(lambda: bench.connections.statistics().handshakes_put_off > 0)
    waiting = list(clients)

    def step():
        for client in tuple(waiting):
            try:
                client.tls.do_handshake()
            except ssl.SSLWantReadError:
                client.flush()
                client.hear()
            else:
                client.flush()
                waiting.remove(client)
        return not waiting

    bench.until(step)
    for client in clients:
        client.exchange()


# -- certificates ------------------------------------------------------------------------------------------------------


def test_nothing_is_served_before_the_client_has_a_name(make_tls, certificates):
    bench = make_tls({"client_auth": ClientAuth.REQUIRED, "trusted": (certificates / "ca.pem").read_text()})
    secured = []
    bench.connections.on_secured = lambda connection, listener: secured.append((connection, listener))
    client = connected(bench, certificates, "client").shake_hands()
    client.send(frame_of(b"who am I") + frame_of(b"who"))
    bench.until(lambda: secured)
    for _ in range(10):
        bench.turn(1)
    assert not bench.requests
    ((connection, listener),) = secured
    assert listener == 0
    assert peer_name(bench.connections, connection, NameSource.SUBJECT) == "CN=client"
    let_speak(bench.connections, connection)
    assert [bytes(bench.next_request().body) for _ in range(2)] == [b"who am I", b"who"]


def test_who_shows_no_certificate_where_it_is_only_requested(make_tls, certificates):
    bench = make_tls({"client_auth": ClientAuth.REQUESTED, "trusted": (certificates / "ca.pem").read_text()})
    found = []

    def name(connection, _listener):
        found.append(peer_name(bench.connections, connection, NameSource.SUBJECT))
        let_speak(bench.connections, connection)

    bench.connections.on_secured = name
    for client_name in (None, "client"):
        connected(bench, certificates, client_name).shake_hands().exchange()
    assert found == [None, "CN=client"]


NAMES = {
    "/O=Acme/CN=alice": "CN=alice,O=Acme",
    "/C=DE/ST=Hamburg/L=Altona/street=Weg 1/O=Acme/OU=a+CN=b": "CN=b+OU=a,O=Acme,STREET=Weg 1,L=Altona,ST=Hamburg,C=DE",
    "/O=evil,CN=admin/CN=x": "CN=x,O=evil\\,CN\\=admin",
    '/CN=a"b;c<d>e\\\\f#g': 'CN=a\\"b\\;c\\<d\\>e\\\\f\\#g',
    "/CN=jürgen": "CN=jürgen",
    "/CN= led ": "CN=\\ led\\ ",
    "/CN=x/emailAddress=a@b": "1.2.840.113549.1.9.1=#1603614062,CN=x",
    "/DC=org/DC=acme/UID=7": "UID=7,DC=acme,DC=org",
}


@pytest.mark.parametrize("subject", NAMES)
def test_a_name_is_the_whole_subject_as_java_writes_it(make_tls, certificates, tmp_path, subject):
    """Attempt 54: what is inside a value cannot be taken for a part of the name."""
    folder = certificates
    make_certificate(folder, "named", subject=subject)
    assert _names_in(make_tls, folder)[NameSource.SUBJECT] == NAMES[subject]


def test_a_name_may_be_the_first_of_its_alternatives(make_tls, certificates):
    make_certificate(certificates, "named", extension="subjectAltName=DNS:a.b,URI:spiffe://x/y,DNS:c,URI:urn:z")
    found = _names_in(make_tls, certificates)
    assert found == {
        NameSource.SUBJECT: "CN=someone", NameSource.URI_SAN: "spiffe://x/y", NameSource.DNS_SAN: "a.b",
    }  # fmt: skip


def test_a_name_that_is_not_there(make_tls, certificates):
    make_certificate(certificates, "named")
    assert _names_in(make_tls, certificates)[NameSource.URI_SAN] == "No such file or directory"


def _names_in(make_tls, folder):
    bench = make_tls({"client_auth": ClientAuth.REQUIRED, "trusted": (folder / "ca.pem").read_text()})
    found = {}

    def look(connection, _listener):
        for source in NameSource:
            try:
                found[source] = peer_name(bench.connections, connection, source)
            except LookupError as error:
                found[source] = str(error)
        let_speak(bench.connections, connection)

    bench.connections.on_secured = look
    connected(bench, folder, "named").shake_hands().exchange()
    return found


def test_a_listener_gets_another_certificate_and_who_is_there_stays(make_tls, certificates):
    bench = make_tls()
    before = connected(bench, certificates).shake_hands()
    secure(bench.connections, 0, material_of(certificates, "elsewhere"))
    after = connected(bench, certificates).shake_hands()
    names = [dict(part[0] for part in each.tls.getpeercert()["subject"])["commonName"] for each in (before, after)]
    assert names == ["server", "elsewhere"]
    before.exchange()
    after.exchange()


def test_listeners_with_and_without_tls_beside_each_other(make_tls, certificates):
    bench = make_tls()
    address = bench.listen()
    plain = bench.connect(address)
    connected(bench, certificates).shake_hands().exchange()
    bench.exchange(plain)


def test_a_listener_that_is_yet_to_come(make_connections, certificates):
    bench = make_connections()
    secure(bench.connections, 1, material_of(certificates))
    bench.exchange(bench.connect())
    client = TlsClient(bench, bench.connect(bench.listen()), client_context(certificates))
    client.shake_hands().exchange()


# -- what cannot be used -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "part", "reason"),
    [
        ({"chain": "no certificate"}, TlsPart.CHAIN, "there is no certificate in it"),
        ({"chain": "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"}, TlsPart.CHAIN, "certificate"),
        ({"key": "no key"}, TlsPart.KEY, "there is no private key in it"),
        ({"key": "client.key"}, TlsPart.KEY, "it is not the key of the certificate"),
        ({"key": "client-locked.key"}, TlsPart.KEY, "it is encrypted, and no password is given"),
        ({"key": "client-locked.key", "password": "wrong"}, TlsPart.KEY, "the password does not open it"),
        ({"ciphers": "TLS_NO_SUCH_SUITE"}, TlsPart.CIPHERS, "one of them is unknown"),
        ({"suites": "TLS_NO_SUCH_SUITE"}, TlsPart.CIPHERS, "one of them is unknown"),
        ({"client_auth": ClientAuth.REQUIRED}, TlsPart.TRUSTED, "none are given"),
        ({"client_auth": ClientAuth.REQUIRED, "trusted": "x"}, TlsPart.TRUSTED, "there is no certificate in it"),
    ],
)  # fmt: skip
def test_what_no_listener_can_be_made_of(certificates, changes, part, reason):
    if changes.get("key", "").endswith(".key"):
        changes = {**changes, "key": (certificates / changes["key"]).read_text()}
    with pytest.raises(TlsRefusedError, match=reason) as refused:
        make_context(material_of(certificates, **changes))
    assert refused.value.part is part


def test_a_certificate_whose_time_is_over_or_has_not_come(certificates):
    for name, begin, reason in (("over", -3, "has expired"), ("early", 3, "is not valid yet")):
        make_certificate(certificates, name, begin=begin)
        with pytest.raises(TlsRefusedError, match=reason):
            make_context(material_of(certificates, name))


def test_a_key_that_is_locked_opens_with_its_password(make_tls, certificates):
    chain, key = ((certificates / name).read_text() for name in ("client.pem", "client-locked.key"))
    bench = make_tls({"chain": chain, "key": key, "password": "key-word"})
    connected(bench, certificates).shake_hands().exchange()


@pytest.mark.parametrize(
    ("changes", "cipher"),
    [
        ({"suites": "TLS_CHACHA20_POLY1305_SHA256"}, "TLS_CHACHA20_POLY1305_SHA256"),
        (
            {"has_1_3": False, "ciphers": "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384"},
            "ECDHE-RSA-AES256-GCM-SHA384",
        ),
    ],
)
def test_ciphers_by_their_names_of_iana(make_tls, certificates, changes, cipher):
    client = connected(make_tls(changes), certificates).shake_hands()
    assert client.tls.cipher()[0] == cipher
    client.exchange()


def test_an_error_is_told_in_words(make_tls, certificates):
    bench = make_tls()
    bench.connect().sendall(frame_of(b"plain"))
    _connection, reason, error = bench.next_closed()
    assert reason is CloseReason.TLS
    assert "wrong version number" in error_text(error) or "unsupported" in error_text(error)
