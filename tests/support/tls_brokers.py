"""A broker with listeners with TLS beside a plain one: `TLS` asks for certificates and takes who has none, `SAFE` has
logins."""

from __future__ import annotations

from pathlib import Path

from tests.support.broker_process import TpcBroker
from tests.support.ports import free_port_range


def store_of(folder: Path, name: str = "server") -> Path:
    """One file with a key and its certificate."""
    store = folder / f"{name}-store.pem"
    store.write_text("".join((folder / f"{name}.{part}").read_text() for part in ("key", "pem")))
    store.chmod(0o600)
    return store


class TlsBroker(TpcBroker):
    certificates: Path
    first_tls_port = 0

    def launch(self) -> None:
        self.first_tls_port = self.first_tls_port or free_port_range(2 * self.cores_count)
        protocols = "PLAINTEXT:PLAINTEXT,TLS:SSL,SAFE:SASL_SSL"
        self.more_options = [
            f"--listen=TLS://{self.tls_bootstrap}",
            f"--listen=SAFE://{self.safe_bootstrap}",
            f"--override=listener.security.protocol.map={protocols}",
            "--override=sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
            f"--override=ssl.keystore.location={store_of(self.certificates)}",
            f"--override=ssl.truststore.location={self.certificates / 'ca.pem'}",
            "--override=listener.name.tls.ssl.client.auth=requested",
        ]
        super().launch()

    @property
    def tls_bootstrap(self) -> str:
        return f"{self.host}:{self.first_tls_port}"

    @property
    def safe_bootstrap(self) -> str:
        return f"{self.host}:{self.first_tls_port + self.cores_count}"
