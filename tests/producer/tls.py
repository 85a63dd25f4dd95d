"""The tests' certificates, valid for a hundred years: the nodes' own, and those of clients.

That of the nodes is self-signed, for 127.0.0.1 and localhost; its key has signed those of clients,
whose common names are ``reader``, a user of the client's tests, and ``stranger``, who is nobody.
"""

import ssl
from pathlib import Path

from dcp.tls_settings import TlsSettings

_FOLDER = Path(__file__).parents[1] / "data" / "tls"
CERTIFICATE = str(_FOLDER / "certificate.pem")
KEY = str(_FOLDER / "key.pem")
READER = str(_FOLDER / "reader.pem")
"""Certificate and key in one file."""
ENCRYPTED = str(_FOLDER / "encrypted.pem")
"""The same, with the key encrypted."""
STRANGER = str(_FOLDER / "stranger.pem")
TLS_FILES = TlsSettings(cert_file=CERTIFICATE, key_file=KEY)


def client_context() -> ssl.SSLContext:
    """A context that trusts the nodes."""
    return ssl.create_default_context(cafile=CERTIFICATE)
