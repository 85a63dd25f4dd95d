"""HTTP requests and responses, as h11 events (RFC 9110, RFC 9112). No I/O."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Final
from urllib.parse import unquote_to_bytes, urlsplit

import h11

MAX_HEAD_BYTES: Final = 16 * 1024
"""Limit of a request's target and header fields together."""
MAX_BODY_BYTES: Final = 64 * 1024
"""Limit of a request's body, which is skipped."""


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """One request without its body."""

    method: str
    path: str
    """Still percent-encoded."""
    authorization: str = ""

    @property
    def segments(self) -> tuple[str, ...]:
        """Decoded parts of the path; empty for ``/``."""
        parts = self.path.split("/")[1:]
        return tuple(unquote_to_bytes(part).decode("utf-8", "replace") for part in parts)


@dataclass(frozen=True, slots=True)
class HttpResponse:
    status: HTTPStatus
    body: bytes = b""
    fields: Mapping[str, str] = field(default_factory=dict)
    streams_map: bool = False
    """True: maps follow the head until the client leaves."""

    @property
    def head(self) -> h11.Response:
        """The head, with the length of the body unless maps follow."""
        fields = {"Server": "dcplake", "Cache-Control": "no-cache", **self.fields}
        if not self.streams_map:
            fields["Content-Length"] = str(len(self.body))
        return h11.Response(
            status_code=self.status, reason=self.status.phrase, headers=list(fields.items())
        )


def request_of(head: h11.Request) -> HttpRequest:
    """Return the parts of a request that the endpoints need.

    Raises:
        h11.RemoteProtocolError: it is too large, has another HTTP version, or needs an unsupported
            feature.
    """
    fields = dict(head.headers)
    head_bytes = len(head.target) + sum(len(name) + len(text) for name, text in head.headers)
    if head_bytes > MAX_HEAD_BYTES:  # h11 limits only incomplete heads
        status = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
        raise _refusal(status, f"found a head above {MAX_HEAD_BYTES} bytes")
    if not head.http_version.startswith(b"1."):
        raise _refusal(HTTPStatus.HTTP_VERSION_NOT_SUPPORTED, "expected HTTP/1.1 or HTTP/1.0")
    if b"transfer-encoding" in fields:
        raise _refusal(HTTPStatus.NOT_IMPLEMENTED, "found a Transfer-Encoding, expected none")
    body_bytes = int(fields.get(b"content-length", b"0"))
    if body_bytes > MAX_BODY_BYTES:
        raise _refusal(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"found a body of {body_bytes} bytes")
    authorization = fields.get(b"authorization", b"").decode("latin-1")
    return HttpRequest(head.method.decode(), _path(head.target), authorization)


def _path(target: bytes) -> str:
    try:
        path = urlsplit(target.decode("ascii")).path
    except ValueError:
        raise _refusal(HTTPStatus.BAD_REQUEST, "found a malformed target") from None
    if not path.startswith("/"):
        raise _refusal(HTTPStatus.BAD_REQUEST, "found a target without a path")
    return path


def _refusal(status: HTTPStatus, reason: str) -> h11.RemoteProtocolError:
    return h11.RemoteProtocolError(reason, error_status_hint=status)
