"""Writes the machine's certificate authorities into a key store that Java can read.

A packaged Java trusts its own list of authorities and knows nothing of one that the machine's owner
added, as companies do for their proxies. The download of the jars then fails where pip, git and a
system Java succeed. This writes the list that those use as a Java key store (format JKS: magic,
version, entries, and a digest that Java checks only when it is given a password).
"""

import hashlib
import os
import ssl
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Final

# Debian and Alpine, Fedora and Red Hat, openSUSE, macOS.
BUNDLES: Final = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)

MAGIC: Final = 0xFEEDFEED
FORMAT_VERSION: Final = 2
TRUSTED_CERTIFICATE: Final = 2
DIGEST_SALT: Final = b"Mighty Aphrodite"  # part of the format


def machine_certificates() -> list[bytes]:
    """The machine's certificate authorities, DER-encoded; empty if no list is found.

    ``SSL_CERT_FILE`` names the list, as for OpenSSL; else the system's list counts.
    """
    configured = os.environ.get("SSL_CERT_FILE")
    for bundle in (configured, *BUNDLES):
        if bundle and Path(bundle).is_file():
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.load_verify_locations(bundle)
            return context.get_ca_certs(binary_form=True)
    return []


def write_trust_store(path: Path, certificates: Sequence[bytes]) -> None:
    entries = [
        struct.pack(">I", TRUSTED_CERTIFICATE)
        + _text(f"authority-{number}")
        + struct.pack(">Q", 0)  # created at: unknown
        + _text("X.509")
        + struct.pack(">I", len(certificate))
        + certificate
        for number, certificate in enumerate(certificates)
    ]
    content = struct.pack(">III", MAGIC, FORMAT_VERSION, len(entries)) + b"".join(entries)
    # The digest of an empty password; it detects damage, it keeps nothing secret.
    digest = hashlib.sha1(DIGEST_SALT + content, usedforsecurity=False).digest()
    path.write_bytes(content + digest)


def _text(value: str) -> bytes:
    encoded = value.encode("ascii")
    return struct.pack(">H", len(encoded)) + encoded
