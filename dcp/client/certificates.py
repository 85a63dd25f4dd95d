"""Explains why a node's certificate is refused: its end, or its names.

OpenSSL does not report them. So a second handshake trusts the same authorities, but checks neither
times nor names; no data is ever sent over that connection.
"""

import socket
import ssl
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from dcp.client.addresses import NodeAddress
from dcp.errors import SecretError
from dcp.tls_settings import TlsSettings

_NO_CHECK_TIME: Final = 0x200000
"""OpenSSL's X509_V_FLAG_NO_CHECK_TIME, for which ``ssl`` has no name."""
_NOT_IN_FORCE: Final = (9, 10)
"""OpenSSL's X509_V_ERR_CERT_NOT_YET_VALID and X509_V_ERR_CERT_HAS_EXPIRED."""
_OTHER_NAME: Final = (62, 64)
"""OpenSSL's X509_V_ERR_HOSTNAME_MISMATCH and X509_V_ERR_IP_ADDRESS_MISMATCH."""

_NO_AUTHORITY: Final = (18, 19, 20, 21)
"""OpenSSL's errors for a certificate without a trusted authority."""


def certificate_fault(
    failure: Exception, address: NodeAddress, tls: TlsSettings, timeout_seconds: float
) -> str:
    """Return the fault of the certificate behind a failed handshake, with the remedy.

    Empty if the handshake failed for a reason other than authority, times or names, or if the node
    does not show its certificate again.
    """
    if not isinstance(failure, ssl.SSLCertVerificationError):
        return ""
    if failure.verify_code in _NO_AUTHORITY:
        trusted = repr(tls.ca_file) if tls.ca_file else "those that this machine trusts"
        return (
            f"found a certificate by an authority that is not in {trusted}, expected one of these: "
            "name the PEM file of the cluster's own (source.tls_ca_file, --ca-file)"
        )
    if failure.verify_code not in _NOT_IN_FORCE + _OTHER_NAME:
        return ""
    try:
        certificate = _certificate(address, tls, timeout_seconds)
    except (OSError, SecretError):
        return ""
    names = ", ".join(certificate_names(certificate))
    if failure.verify_code in _OTHER_NAME:
        return (
            f"found a certificate of {names}, expected one of {address.host!r}: name the node as "
            "its certificate does (source.seeds, ?network=), or give it one of that name"
        )
    begins, ends = (_time(certificate[key]) for key in ("notBefore", "notAfter"))
    return (
        f"found a certificate of {names}, good from {begins} to {ends}, expected it and those that "
        f"signed it to be good now, at {datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC by the clock of "
        "this machine: renew what has ended, or set the clock"
    )


def certificate_names(certificate: Mapping[str, Any]) -> Sequence[str]:
    """Return the hosts in a certificate of ``ssl.SSLSocket.getpeercert``.

    If it lists none, return the common names of its subject.
    """
    names = [name for _, name in certificate.get("subjectAltName", ())]
    return names or common_names(certificate.get("subject", ()))


def common_names(name: Sequence[Sequence[tuple[str, str]]]) -> list[str]:
    """Return the common names in a name from ``ssl``; all its parts if it has none."""
    parts = [part for group in name for part in group]
    return [value for key, value in parts if key == "commonName"] or [value for _, value in parts]


def _certificate(
    address: NodeAddress, tls: TlsSettings, timeout_seconds: float
) -> Mapping[str, Any]:
    context = tls.client_context()
    context.check_hostname = False
    context.verify_flags |= _NO_CHECK_TIME
    with (
        socket.create_connection((address.host, address.port), timeout_seconds) as plain,
        context.wrap_socket(plain, server_hostname=address.host) as encrypted,
    ):
        return encrypted.getpeercert() or {}


def _time(written: str) -> str:
    seconds = ssl.cert_time_to_seconds(written)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S} UTC"
