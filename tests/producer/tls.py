"""The certificate of the tests' nodes: self-signed, for 127.0.0.1, valid for a hundred years."""

import ssl
from pathlib import Path

from dcp.producer.model.cluster_settings import TlsFiles

_FOLDER = Path(__file__).parents[1] / "data" / "tls"
CERTIFICATE = str(_FOLDER / "certificate.pem")
KEY = str(_FOLDER / "key.pem")
TLS_FILES = TlsFiles(CERTIFICATE, KEY)


def client_context() -> ssl.SSLContext:
    """A context that trusts the nodes."""
    return ssl.create_default_context(cafile=CERTIFICATE)
