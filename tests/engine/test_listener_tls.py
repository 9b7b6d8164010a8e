"""What a listener's settings of TLS come to: files, warnings, refusals, renewals, and names of clients."""

from __future__ import annotations

import errno
import os

import pytest

from tests.support.broker_process import serve_refusing
from tests.support.tls_brokers import store_of
from tests.support.tls_clients import TlsClient, client_context, is_refused, make_certificate, make_revocations
from tpc_broker.auth.principals import Principal, Subject
from tpc_broker.broker.dispatch import ConnectionState
from tpc_broker.engine.client_connections import ClientConnections
from tpc_broker.engine.connections import CloseReason
from tpc_broker.engine.listener_tls import SAID_AGAIN_LOOKS, TlsFiles, read_listener, warnings_of
from tpc_broker.engine.tls import secure
from tpc_broker.metadata.listener_settings import plan_listeners
from tpc_broker.metadata.settings import listener_settings, load_settings
from tpc_broker.metadata.ssl_settings import ssl_of_listeners
from tpc_broker.options import StartError


def planned(text, protocol="SSL"):
    given = listener_settings(text, ())
    listeners = plan_listeners([f"{protocol}://127.0.0.1:1"], (), given, 1)
    return ssl_of_listeners(listeners, load_settings(text).settings, given)


@pytest.fixture
def bench(make_connections):
    return make_connections()


def common_name(bench, folder):
    client = TlsClient(bench, bench.connect(), client_context(folder)).shake_hands()
    client.exchange()
    return client, dict(part[0] for part in client.tls.getpeercert()["subject"])["commonName"]


def test_a_file_that_changes_is_read_again(bench, certificates, tmp_path, caplog):
    """Who is connected stays; what cannot be used changes nothing."""
    file = tmp_path / "store.pem"
    make_certificate(certificates, "renewed", subject="/CN=renewed")
    file.write_text(store_of(certificates).read_text())
    files = TlsFiles(
        planned(f"ssl.keystore.location={file}"), lambda number, read: secure(bench.connections, number, read.material)
    )
    files.begin()
    first, name = common_name(bench, certificates)
    assert name == "server"
    files.look()
    assert not caplog.records
    file.write_text("half a file")
    files.look()
    assert f"{file}: there is no certificate in it" in caplog.text
    assert common_name(bench, certificates)[1] == "server"
    file.write_text(store_of(certificates, "renewed").read_text())
    files.look()
    assert common_name(bench, certificates)[1] == "renewed"
    first.exchange()
    file.unlink()
    files.look()
    assert "No such file" in caplog.text
    assert common_name(bench, certificates)[1] == "renewed"


def test_what_failed_is_tried_again_and_told_once(bench, certificates, tmp_path, caplog):
    """The file stays as it is: what was wrong was something else."""
    file = tmp_path / "store.pem"
    file.write_text(store_of(certificates).read_text())
    make_certificate(certificates, "renewed", subject="/CN=renewed")
    refusals = [OSError(errno.ENOMEM, "no memory")] * (SAID_AGAIN_LOOKS + 2)

    def give(number, read):
        if files is not None and refusals:
            raise refusals.pop()
        secure(bench.connections, number, read.material)

    files = None
    begun = TlsFiles(planned(f"ssl.keystore.location={file}"), give)
    begun.begin()
    files = begun
    file.write_text(store_of(certificates, "renewed").read_text())
    for _ in range(SAID_AGAIN_LOOKS + 1):
        files.look()
    assert len(caplog.records) == 1
    files.look()
    assert len(caplog.records) == 2
    assert "no memory" in caplog.text
    assert common_name(bench, certificates)[1] == "server"
    files.look()
    assert common_name(bench, certificates)[1] == "renewed"


def test_a_file_of_the_same_size_and_time_is_another_one(bench, certificates, tmp_path):
    """As written by a tool that keeps times."""
    file = tmp_path / "store.pem"
    file.write_text(store_of(certificates).read_text())
    given = []
    files = TlsFiles(planned(f"ssl.keystore.location={file}"), lambda _number, read: given.append(read.material))
    files.begin()
    before = file.stat()
    file.write_text(file.read_text())
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    files.look()
    assert len(given) == 2


def test_all_is_read_again_when_it_is_wanted_and_what_came_of_it_is_told(bench, certificates, tmp_path, caplog):
    """Also where nothing has changed, and a failure that was told already."""
    caplog.set_level("INFO")
    file = tmp_path / "store.pem"
    file.write_text(store_of(certificates).read_text())
    files = TlsFiles(
        planned(f"ssl.keystore.location={file}"), lambda number, read: secure(bench.connections, number, read.material)
    )
    files.begin()
    files.look(at_all=True)
    assert "gets the certificates that are there now" in caplog.text
    file.write_text("half a file")
    files.look()
    for _ in range(2):
        files.look(at_all=True)
    assert caplog.text.count("; the listener goes on with what it had") == 3
    assert common_name(bench, certificates)[1] == "server"


@pytest.mark.parametrize("put", ["", "-----BEGIN X509 CRL-----\nhalf", "certificates of authorities"])
def test_a_list_of_the_revoked_that_cannot_be_used_takes_no_list_away(bench, certificates, tmp_path, caplog, put):
    """Attempt 53: who was revoked stays so, and no authority comes in by this file."""
    make_certificate(certificates, "revoked")
    make_certificate(certificates, "foreign", authority="other-ca")
    file = tmp_path / "revoked.crl"
    file.write_text(make_revocations(certificates, "revoked"))
    text = (
        f"ssl.keystore.location={store_of(certificates)}\nssl.client.auth=required\n"
        f"ssl.truststore.location={certificates}/ca.pem\nssl.crl.location={file}"
    )
    files = TlsFiles(planned(text), lambda number, read: secure(bench.connections, number, read.material))
    files.begin()
    if put.startswith("certificates"):
        put = file.read_text() + (certificates / "other-ca.pem").read_text()
    file.write_text(put)
    files.look()
    assert f"{file}: " in caplog.text
    for name in ("revoked", "foreign"):
        assert is_refused(bench, client_context(certificates, name)) == "certificate verify failed"


def test_certificate_and_key_in_the_settings_themselves(bench, certificates):
    chain, key, trusted = (
        (certificates / name).read_text().replace("\n", "\\n") for name in ("client.pem", "client-locked.key", "ca.pem")
    )
    text = (
        f"ssl.keystore.certificate.chain={chain}\nssl.keystore.key={key}\nssl.key.password=key-word\n"
        f"ssl.truststore.certificates={trusted}\nssl.client.auth=requested\n"
        "ssl.cipher.suites=TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"
    )
    read = read_listener(planned(text)[0])
    secure(bench.connections, 0, read.material)
    client = TlsClient(bench, bench.connect(), client_context(certificates)).shake_hands()
    assert client.tls.version() == "TLSv1.2"
    assert client.tls.cipher()[0] == "ECDHE-RSA-AES128-GCM-SHA256"
    assert read.naming is not None
    assert "key-word" not in repr(read)


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ("ssl.keystore.location={folder}/no-such.pem", "ssl.keystore.location={folder}/no-such.pem: No such file"),
        ("ssl.keystore.location={folder}", "{folder}: Is a directory"),
        ("ssl.keystore.location={folder}/ca.pem", "{folder}/ca.pem: there is no private key in it"),
        ("ssl.keystore.location={folder}/binary.p12", "openssl pkcs12 -in {folder}/binary.p12 -nodes"),
        ("ssl.keystore.location={folder}/mixed-store.pem", "mixed-store.pem: it is not the key of the certificate"),
        ("ssl.keystore.location={folder}/over-store.pem", "over-store.pem: the certificate has expired"),
        ("{good}\nssl.client.auth=required\nssl.truststore.location={folder}/server.key", "server.key: there is no"),
        ("{checked}\nssl.crl.location={folder}/empty.crl", "empty.crl: there is no list of revoked certificates in it"),
        ("{checked}\nssl.crl.location={folder}/ca.pem", "{folder}/ca.pem: there is a certificate in it"),
        ("{good}\nssl.cipher.suites=TLS_NULL", "ssl.cipher.suites: one of them is unknown"),
        (
            "{good}\nssl.enabled.protocols=TLSv1.2\nssl.cipher.suites=TLS_AES_128_GCM_SHA256",
            "none of ssl.cipher.suites is of one of ssl.enabled.protocols",
        ),
    ],
)
def test_what_refuses_the_start_names_the_file(certificates, changes, part):
    (certificates / "binary.p12").write_bytes(b"\x30\x82\xff\xfe")
    mixed = certificates / "mixed-store.pem"
    mixed.write_text((certificates / "client.key").read_text() + (certificates / "server.pem").read_text())
    make_certificate(certificates, "over", begin=-3)
    store_of(certificates, "over")
    (certificates / "empty.crl").write_text("")
    good = f"ssl.keystore.location={store_of(certificates)}"
    checked = f"{good}\nssl.client.auth=required\nssl.truststore.location={certificates}/ca.pem"
    places = {"folder": certificates, "good": good, "checked": checked}
    text = changes.format(**places)
    with pytest.raises(StartError) as refused:
        read_listener(planned(text)[0])
    assert part.format(**places) in str(refused.value)
    done = serve_refusing("--listen", "SSL://127.0.0.1:1", *(f"--override={line}" for line in text.split("\n")))
    assert done.returncode == 2
    assert part.format(**places) in done.stderr


def test_what_is_only_warned_of(certificates, tmp_path):
    """A key that others may read, and a certificate that expires soon."""
    store = store_of(certificates)
    listener = planned(f"ssl.keystore.location={store}")[0]
    assert [line for line in warnings_of(listener) if "chmod" in line] == []
    store.chmod(0o644)
    (warning,) = [line for line in warnings_of(listener) if "chmod" in line]
    assert warning.endswith(f"mend it: chmod 600 {store}")
    assert any("expires in" in line for line in warnings_of(listener))
    store.chmod(0o600)


class Dispatched:
    """What the dispatcher is told of clients' names."""

    def __init__(self):
        self.let_in_as, self.complaints = [], []
        self.states = {}

    def state_of(self, connection):
        return self.states.setdefault(connection, ConnectionState("127.0.0.1:7", Subject(Principal("", ""), ""), 0))

    def let_in(self, connection, subject, deadline_ns):
        assert deadline_ns == 0
        self.let_in_as.append(subject)

    def complain(self, peer, what, detail):
        self.complaints.append(what + detail)


NAMED = (
    "ssl.client.auth=requested\nssl.principal.mapping.rules=RULE:CN=(.*),O=Acme/$1/L\n"
    "ssl.truststore.location={folder}/ca.pem"
)


def naming(bench, folder, text=NAMED, authenticated=()):
    dispatched, clients = Dispatched(), ClientConnections(bench.connections)
    clients._authenticated = frozenset(authenticated)
    text = f"ssl.keystore.location={store_of(folder)}\n" + text.format(folder=folder)
    clients.secure(0, read_listener(planned(text)[0]))
    bench.connections.on_secured = lambda connection, listener: clients._name(dispatched, connection, listener)
    return dispatched


def test_a_client_is_let_in_under_the_name_of_its_certificate(bench, certificates):
    make_certificate(certificates, "alice", subject="/O=Acme/CN=Alice")
    dispatched = naming(bench, certificates)
    TlsClient(bench, bench.connect(), client_context(certificates, "alice")).shake_hands().exchange()
    assert dispatched.let_in_as == [Subject(Principal("User", "alice"), "127.0.0.1")]


def test_who_has_no_certificate_stays_who_it_was(bench, certificates):
    dispatched = naming(bench, certificates)
    TlsClient(bench, bench.connect(), client_context(certificates)).shake_hands().exchange()
    assert dispatched.let_in_as == []


def test_where_clients_log_in_the_certificate_names_nobody(bench, certificates):
    dispatched = naming(bench, certificates, authenticated=[0])
    TlsClient(bench, bench.connect(), client_context(certificates, "client")).shake_hands().exchange()
    assert dispatched.let_in_as == dispatched.complaints == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (NAMED, "no rule of ssl.principal.mapping.rules fits"),
        (
            "ssl.client.auth=required\nssl.principal.source=uri-san\nssl.truststore.location={folder}/ca.pem",
            "No such file or directory",
        ),
    ],
)
def test_a_name_that_is_nobodys_ends_the_connection(bench, certificates, text, said):
    make_certificate(certificates, "stranger", subject="/CN=stranger")
    dispatched = naming(bench, certificates, text)
    TlsClient(bench, bench.connect(), client_context(certificates, "stranger")).shake_hands()
    assert bench.next_closed()[1] is CloseReason.LOCAL
    assert said in dispatched.complaints[0]
    assert dispatched.let_in_as == []
