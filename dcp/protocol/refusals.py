"""Explains a server's refusal to people: the meaning of its status, and the remedy.

Source of the meanings: kv_engine ``include/mcbp/protocol/status.h``, ``docs/BinaryProtocol.md``.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Final

from dcp.errors import AuthenticationError, BucketError, DcplakeError, NodeUnavailableError
from dcp.printable import printable
from dcp.protocol.credentials import Credentials
from dcp.wire.frame import Frame
from dcp.wire.json_tree import json_tree
from dcp.wire.vocabulary import Status

MEANINGS: Final[Mapping[int, str]] = {
    Status.KEY_ENOENT: "nothing has that name",
    Status.KEY_EEXISTS: "it exists already, or has changed",
    Status.E2BIG: "it is too large",
    Status.EINVAL: "the request is invalid",
    Status.NOT_STORED: "it was not stored",
    Status.NOT_MY_VBUCKET: "another node has the vbucket",
    Status.NO_BUCKET: "no bucket was selected",
    Status.LOCKED: "the document is locked",
    Status.DCP_STREAM_NOT_FOUND: "there is no such stream",
    Status.ECONFIG_ONLY: "the node has no data of the bucket yet",
    Status.AUTH_STALE: "the user's rights changed: sign in anew",
    Status.AUTH_ERROR: "user or password is wrong",
    Status.ERANGE: "a number is out of range",
    Status.EACCESS: "no access",
    Status.NOT_INITIALIZED: "the node is still starting",
    Status.RATE_LIMITED_MAX_CONNECTIONS: "too many connections",
    Status.BUCKET_PAUSED: "the bucket is paused",
    Status.UNKNOWN_COMMAND: "it does not know the command",
    Status.ENOMEM: "it is out of memory",
    Status.NOT_SUPPORTED: "it does not support that",
    Status.EINTERNAL: "it failed",
    Status.EBUSY: "it is too busy",
    Status.ETMPFAIL: "a temporary failure",
    Status.XATTR_EINVAL: "the extended attributes are malformed",
    Status.UNKNOWN_COLLECTION: "there is no such collection",
    Status.UNKNOWN_SCOPE: "there is no such scope",
    Status.DURABILITY_IMPOSSIBLE: "too few replicas",
}
"""For the statuses that our clients can meet."""
_MOST_TEXT: Final = 300
_MISSING_PRIVILEGE: Final = re.compile(r"without the (\w+) privilege")
_REFUSED_CERTIFICATE: Final = re.compile(
    r"ALERT_(CERTIFICATE|BAD_CERTIFICATE|UNSUPPORTED_CERTIFICATE|UNKNOWN_CA)"
)
"""Part of the names of OpenSSL's errors if the other side refuses our certificate."""
ROLE_CURE: Final = "give the user the role Data DCP Reader on the bucket (data_dcp_reader)"
"""This role has all privileges that a consumer needs (ns_server ``menelaus_roles.erl``)."""


def raise_refusal(failures: Sequence[DcplakeError]) -> None:
    """Raise the first refusal of user, password or bucket among the nodes' errors, if there is one.

    Call it only if no node accepted: a starting or removed node has no users and buckets, so its
    refusal alone proves nothing.
    """
    for error in failures:
        if isinstance(error, AuthenticationError | BucketError):
            raise error


def describe_status(status: int) -> str:
    """Return number, name and meaning: ``status 0x24 EACCESS, no access``."""
    known = {int(each): each.name for each in Status}
    name = known.get(status, "unknown")
    meaning = MEANINGS.get(status, "")
    return f"status {status:#04x} {name}" + (f", {meaning}" if meaning else "")


def describe_refusal(frame: Frame) -> str:
    """Return the status of an unsuccessful answer, with the server's own words."""
    value = frame.value
    text = error_context(value) or value[:_MOST_TEXT].decode("utf-8", "backslashreplace")
    # A server's text may hold control characters.
    return describe_status(frame.status) + (f" ({printable(text)})" if text else "")


def error_context(value: bytes) -> str:
    """Return the text in the value of a refusal; empty if it has none."""
    try:
        return str(json_tree(value)["error"]["context"])[:_MOST_TEXT]
    except (ValueError, KeyError, TypeError):
        return ""


def login_cure(credentials: Credentials) -> str:
    if credentials.by_certificate:
        return (
            f"expected {credentials.who} to be one of the cluster: check the certificate, and how "
            "the cluster finds users in certificates"
        )
    return (
        "expected a user of the cluster, with its password: check the name "
        f"{credentials.username!r} and the password"
    )


def bucket_cure(bucket: str, credentials: Credentials) -> str:
    return (
        f"expected bucket {bucket!r} to exist, and {credentials.who} to have a role on it (for "
        "streams: Data DCP Reader): check the bucket's name (case matters) and the roles"
    )


def privilege_cure(value: bytes) -> str:
    """Return the missing privilege that a refusal names, with the role that grants it; or nothing.

    The server's words are in kv_engine ``daemon/cookie.cc``.
    """
    found = _MISSING_PRIVILEGE.search(error_context(value))
    return f"expected the privilege {found[1]}: {ROLE_CURE}" if found else ""


PORT_CURE: Final = (
    "expected the port of the data service: 11210, or 11207 with TLS (source.tls = true, or --tls "
    "where the command has it)"
)
"""If the other side does not speak the protocol of a data node."""

HTTP_PORT_CURE: Final = (
    "expected the HTTP port of the cluster manager: 8091, or 18091 with TLS (couchbases://, --tls)"
)
"""The same for a seed that is asked over HTTP."""

HTTP_CURE: Final = (
    "expected a cluster manager that this machine can reach there: check host, firewalls, and the "
    "port: 8091, or 18091 with TLS (couchbases://, --tls)"
)
"""If nobody answers over HTTP."""

REACH_CURE: Final = (
    "expected a data node that this machine can reach there: check host, port and firewalls"
)
"""If nobody answers."""


def certificate_cure(failure: Exception) -> str:
    """Return the remedy if the server refuses the client's certificate; otherwise nothing."""
    if not _REFUSED_CERTIFICATE.search(str(failure)):
        return ""
    return (
        "expected the server to accept the client's certificate: set one that the server's "
        "authorities have signed and that has not expired (source.tls_cert_file, "
        "source.tls_key_file; --cert-file, --key-file)"
    )


def tls_cure(failure: Exception, port_cure: str = PORT_CURE) -> str:
    """Return the expected encryption and the remedy, for a failed TLS handshake.

    ``port_cure`` is the remedy if TLS may have another port.
    """
    if cure := certificate_cure(failure):
        return cure
    if "CERTIFICATE_VERIFY_FAILED" in str(failure):
        return (
            "expected a certificate of that host name, by an authority that is trusted: name its "
            "PEM file (source.tls_ca_file, --ca-file)"
        )
    return f"perhaps the port does not use TLS; {port_cure}"


def spoken_instead(first_bytes: bytes) -> NodeUnavailableError | None:
    """Return the error if a connection's first bytes belong to HTTP or TLS; otherwise None."""
    if first_bytes.startswith(b"HTTP/"):
        return NodeUnavailableError(f"found HTTP on this port, {PORT_CURE}")
    # These bytes begin TLS records: an alert, a handshake.
    if first_bytes.startswith((b"\x15\x03", b"\x16\x03")):
        return NodeUnavailableError(
            f"found TLS on this port, but the connection is not encrypted, {PORT_CURE}"
        )
    return None
