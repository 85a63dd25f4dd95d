"""A test's own certificate authority: nodes' certificates with the names and times it wants."""

import ssl
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import cache
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from dcp.tls_settings import TlsSettings


class Authority:
    """Signs certificates; ``ca_file`` is its own, which clients trust."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        """Make a new one, whose files are in ``folder``."""
        self._folder, self._name = folder, name
        self._key = ec.generate_private_key(ec.SECP256R1())
        own = (
            self._builder(name, self._key)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self._issued = 0
        self.ca_file = str(self._write(f"{name}.pem", own.public_bytes(_PEM)))

    def issue(
        self,
        names: Sequence[str],
        ends: datetime | None = None,
        begins: datetime | None = None,
    ) -> TlsSettings:
        """Return a certificate for these host names and addresses, and its key.

        It is good from ``begins`` (None: an hour ago) to ``ends`` (None: in a day), in seconds.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        alternatives = x509.SubjectAlternativeName([_general_name(name) for name in names])
        certificate = (
            self._builder(names[0], key, ends, begins)
            .add_extension(alternatives, critical=False)
            .sign(self._key, hashes.SHA256())
        )
        self._issued += 1
        stem = f"{self._name}-node{self._issued}"
        private = key.private_bytes(
            _PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        return TlsSettings(
            cert_file=str(self._write(f"{stem}.pem", certificate.public_bytes(_PEM))),
            key_file=str(self._write(f"{stem}.key", private)),
        )

    def _builder(
        self,
        name: str,
        key: ec.EllipticCurvePrivateKey,
        ends: datetime | None = None,
        begins: datetime | None = None,
    ) -> x509.CertificateBuilder:
        now, public = datetime.now(UTC), x509.SubjectKeyIdentifier.from_public_key
        signer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        return (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
            .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, self._name)]))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(begins or now - timedelta(hours=1))
            .not_valid_after(ends or now + timedelta(days=1))
            .add_extension(public(key.public_key()), critical=False)
            .add_extension(signer, critical=False)
        )

    def _write(self, name: str, content: bytes) -> Path:
        file = self._folder / name
        file.write_bytes(content)
        return file


class ShownCertificate(TlsSettings):
    """The certificate that nodes show, which may be replaced while they listen."""

    @cache  # noqa: B019  # as long as the tests
    def server_context(self) -> ssl.SSLContext:
        return super().server_context()

    def show(self, files: TlsSettings) -> None:
        """Show another one to who connects from now on."""
        self.server_context().load_cert_chain(files.cert_file, files.key_file)


_PEM = serialization.Encoding.PEM


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(name))
    except ValueError:
        return x509.DNSName(name)
