"""Listeners whose clients log in: what may be said of them, and what refuses a start."""

import json
from dataclasses import asdict

import pytest

from tests.metadata.test_listener_settings import planned
from tests.support.broker_process import run_here, serve_refusing
from tpc_broker.auth.exchange import Mechanism
from tpc_broker.metadata.config_types import ConfigError
from tpc_broker.metadata.listeners import Listener
from tpc_broker.metadata.sasl_settings import check_logins, mechanisms_of, session_ms_max_of
from tpc_broker.metadata.settings import load_settings

PLAINTEXT, SASL = "PLAINTEXT://127.0.0.1:1000", "SASL_PLAINTEXT://127.0.0.1:2000"
FAR = "SASL_PLAINTEXT://10.0.0.5:2000"
OF_ONE = "listener.name.sasl_plaintext."


def settings(file=""):
    return load_settings(file).settings


def warnings(*listen, file=""):
    return check_logins(planned(*listen, file=file), settings(file))


def test_a_listener_is_named_as_its_protocol_or_mapped_to_it():
    plain, sasl = planned(PLAINTEXT, SASL)
    assert not plain.security.authenticates
    assert sasl.security.authenticates
    assert not sasl.security.encrypts
    [mapped] = planned("A://127.0.0.1:1000", file="listener.security.protocol.map=A:SASL_PLAINTEXT")
    assert mapped.security == "SASL_PLAINTEXT"


def test_mechanisms_and_sessions_are_the_brokers_or_the_listeners_own():
    plain, sasl = planned(PLAINTEXT, SASL)
    assert mechanisms_of(plain, settings()) == ()
    assert mechanisms_of(sasl, settings()) == (Mechanism.SCRAM_SHA_256, Mechanism.SCRAM_SHA_512)
    assert session_ms_max_of(sasl, settings()) == 0
    file = "sasl.enabled.mechanisms=SCRAM-SHA-512\nconnections.max.reauth.ms=5"
    assert mechanisms_of(sasl, settings(file)) == (Mechanism.SCRAM_SHA_512,)
    assert session_ms_max_of(sasl, settings(file)) == 5
    [own] = planned(SASL, file=f"{OF_ONE}sasl.enabled.mechanisms=PLAIN\n{OF_ONE}connections.max.reauth.ms=0")
    assert mechanisms_of(own, settings(file)) == (Mechanism.PLAIN,)
    assert session_ms_max_of(own, settings(file)) == 0
    assert session_ms_max_of(sasl, settings("connections.max.reauth.ms=-1")) == 0


def test_a_listener_is_told_to_its_cores():
    [own] = planned(SASL, file=f"{OF_ONE}sasl.enabled.mechanisms=PLAIN\n{OF_ONE}connections.max.reauth.ms=7")
    for each in (own, *planned(PLAINTEXT)):
        assert Listener.from_fields(json.loads(json.dumps(asdict(each)))) == each


@pytest.mark.parametrize(
    ("file", "said"),
    [
        ("sasl.enabled.mechanisms=GSSAPI", ["GSSAPI", "sasl.enabled.mechanisms", "SCRAM-SHA-256"]),
        (f"{OF_ONE}sasl.enabled.mechanisms=SCRAM-SHA-1", ["SCRAM-SHA-1", "SCRAM-SHA-256"]),
        (f"{OF_ONE}connections.max.reauth.ms=soon", ["soon", "LONG"]),
        ("listener.name.other.sasl.enabled.mechanisms=PLAIN", ["no listener OTHER"]),
        ("listener.name.plaintext.sasl.enabled.mechanisms=PLAIN", ["nobody logs in to listener PLAINTEXT"]),
        ("sasl.enabled.mechanisms=", ["listener SASL_PLAINTEXT", "nobody could log in"]),
        ("connection.failed.authentication.delay.ms=-1", ["at least 0"]),
    ],
)
def test_what_cannot_be_is_refused(file, said):
    with pytest.raises(ConfigError) as refused:
        warnings(PLAINTEXT, SASL, file=file)
    assert all(part in str(refused.value) for part in said), refused.value


def test_passwords_as_they_are_stay_on_this_machine():
    assert warnings(SASL) == []
    file = "sasl.enabled.mechanisms=PLAIN"
    [warning] = warnings(SASL, file=file)
    assert "without TLS" in warning
    with pytest.raises(ConfigError, match=r"sasl\.plain\.without\.tls=true"):
        warnings(FAR, file=file)
    [warning] = warnings(FAR, file=f"{file}\nsasl.plain.without.tls=true")
    assert "without TLS" in warning
    assert warnings(FAR) == []


def test_a_listener_that_takes_everybody_is_told():
    assert warnings(PLAINTEXT) == []
    assert warnings("A://[::1]:1000", "B://localhost:2000") == []
    [warning] = warnings("PLAINTEXT://10.0.0.5:1000")
    assert "takes everybody" in warning
    assert "10.0.0.5:1000" in warning


def test_check_config_tells_it():
    done = run_here("check-config", "--listen", "10.0.0.5:1000", "--cores", "1")
    assert "Warning: listener PLAINTEXT (10.0.0.5:1000) takes everybody" in done.stdout
    far = ["--listen", FAR, "--override", "sasl.enabled.mechanisms=PLAIN"]
    refused = serve_refusing(*far)
    assert refused.returncode == 2
    assert "PLAIN would send passwords as they are" in refused.stderr
