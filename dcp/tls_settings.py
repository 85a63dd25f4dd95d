"""The certificates of one end of encrypted connections: a client's, or a listener's."""

import ssl
from dataclasses import dataclass
from typing import ClassVar

from dcp.errors import ConfigError, SecretError
from dcp.setting_keys import Section, key


@dataclass(frozen=True, slots=True)
class TlsSettings(Section):
    """Encrypt connections; a client always verifies the certificates of nodes.

    Each connection of a client reads the files, so they may be replaced at any time.
    """

    subject: ClassVar[str] = "TLS "

    ca_file: str = key("", "Certificates to trust, PEM; without it: the system's.", is_path=True)
    """A listener asks clients for a certificate that one of these authorities signed.

    Its common name is the user, as with ns_server's ``clientCertAuth`` and the path ``subject.cn``.
    Empty: it asks for none.
    """
    cert_file: str = key("", "Own certificate, PEM, with its chain.", is_path=True)
    """A listener must have one; a client without a user is who it says."""
    key_file: str = key(
        "",
        "Its private key, PEM, not encrypted; without it: in the certificate's file.",
        may_be_secret=True,
        is_path=True,
    )
    requires_client_certificate: bool = key(
        False, "Whether a listener refuses encrypted connections without a user's certificate."
    )
    """True: ``mandatory`` in ns_server; False: ``enable``."""

    def __post_init__(self) -> None:
        Section.__post_init__(self)
        if self.key_file and not self.cert_file:
            raise ConfigError("TLS key_file: found no cert_file, expected its certificate")
        if self.requires_client_certificate and not self.ca_file:
            raise ConfigError(
                "TLS requires_client_certificate: found no ca_file, expected the authorities that "
                "sign clients' certificates"
            )

    @staticmethod
    def listener_options(prefix: str) -> dict[str, str]:
        """Return the ``parts`` of a listener (`key`), with options that begin alike."""
        return {
            "cert_file": f"{prefix}-cert FILE",
            "key_file": f"{prefix}-key FILE",
            "ca_file": f"{prefix}-client-ca FILE: ask clients for a certificate that one of these "
            "authorities signed, PEM; its common name is the user",
            "requires_client_certificate": f"{prefix}-require-client-cert: refuse encrypted "
            "connections without such a certificate",
        }

    def client_context(self) -> ssl.SSLContext:
        """Return Python's default client context: verified certificates, checked host names.

        Raises:
            SecretError: a file cannot be read, or does not hold what it should.
        """
        try:
            context = ssl.create_default_context(cafile=self.ca_file or None)
        except OSError as error:  # ssl.SSLError is one
            raise self._wrong_ca_file(error) from None
        if self.cert_file:
            self._load_own(context)
        return context

    def server_context(self) -> ssl.SSLContext:
        """Return a listener's context, for TLS 1.2 or newer.

        Raises:
            SecretError: a file cannot be read, or does not hold what it should.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        # A renegotiation costs the server far more work than the client that asks for it.
        context.options |= ssl.OP_NO_RENEGOTIATION
        self._load_own(context)
        if self.ca_file:
            must = self.requires_client_certificate
            context.verify_mode = ssl.CERT_REQUIRED if must else ssl.CERT_OPTIONAL
            try:
                context.load_verify_locations(self.ca_file)
            except OSError as error:
                raise self._wrong_ca_file(error) from None
        return context

    def _load_own(self, context: ssl.SSLContext) -> None:
        try:
            # Without a password OpenSSL would ask the terminal for that of an encrypted key.
            context.load_cert_chain(self.cert_file, self.key_file or None, password="")
        except OSError as error:
            raise SecretError(
                f"certificate {self.cert_file!r} and its key: {error}, expected both in PEM, not "
                "encrypted: check the files, and the settings or options that name them"
            ) from None

    def _wrong_ca_file(self, error: OSError) -> SecretError:
        return SecretError(
            f"CA file {self.ca_file!r}: {error}, expected certificates in PEM: check the file, and "
            "the setting or option that names it"
        )
