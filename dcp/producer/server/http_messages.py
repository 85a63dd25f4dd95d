"""HTTP/1.1 as bytes: the head of a request, and responses (RFC 9110, RFC 9112). No I/O.

Only what a server of a few small documents needs: bodies of requests are counted so that they can
be skipped, and what this module does not understand is an ``HttpRefusal`` with the right status.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Final
from urllib.parse import unquote_to_bytes, urlsplit

MAX_HEAD_BYTES: Final = 16 * 1024
"""A request's line and header fields together."""
MAX_BODY_BYTES: Final = 64 * 1024
"""A request's body; nothing here looks at one."""

_HEAD_END: Final = re.compile(rb"\r?\n\r?\n")
_REQUEST_LINE: Final = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+) (\S+) HTTP/(\d)\.(\d)")
_FIELD: Final = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*(.*?)[ \t]*", re.DOTALL)


class HttpRefusal(Exception):  # noqa: N818  (a request that is answered with a status, no fault of ours)
    """A request that is answered with ``status`` and ends the connection."""

    def __init__(self, status: HTTPStatus, reason: str) -> None:
        super().__init__(reason)
        self.status = status


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """One request without its body, which has ``body_bytes``.

    ``path`` is without the query, its segments still percent-encoded. Names of ``fields`` are in
    lower case; a repeated one has its values joined by commas.
    """

    method: str
    path: str
    fields: Mapping[str, str]
    body_bytes: int = 0
    keeps_alive: bool = True
    takes_chunks: bool = True

    @property
    def segments(self) -> tuple[str, ...]:
        """The decoded parts of the path; none for ``/``."""
        parts = self.path.split("/")[1:]
        return tuple(unquote_to_bytes(part).decode("utf-8", "replace") for part in parts)


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """One response. ``streams_map`` lets documents follow until the client leaves."""

    status: HTTPStatus
    body: bytes = b""
    fields: Mapping[str, str] = field(default_factory=dict)
    streams_map: bool = False


def split_head(data: bytes | bytearray) -> tuple[bytes, int] | None:
    """Return the first request's head and where what follows it begins; None while it is not whole.

    Raises:
        HttpRefusal: the head is larger than ``MAX_HEAD_BYTES``.
    """
    begin = len(data) - len(data.lstrip(b"\r\n"))  # a client may put empty lines before a request
    end = _HEAD_END.search(data, begin)
    if (end.start() if end else len(data)) > MAX_HEAD_BYTES:
        status = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
        raise HttpRefusal(status, f"found a head above {MAX_HEAD_BYTES} bytes")
    return (bytes(data[begin : end.start()]), end.end()) if end else None


def parse_head(head: bytes) -> HttpRequest:
    """Read a request's head.

    Raises:
        HttpRefusal: it is malformed, of another HTTP version, or needs what we do not have.
    """
    first, *lines = re.split(rb"\r?\n", head)
    line = _REQUEST_LINE.fullmatch(first)
    if line is None:
        raise HttpRefusal(HTTPStatus.BAD_REQUEST, "found no request line")
    method, target, major, minor = line.groups()
    if major != b"1":
        raise HttpRefusal(HTTPStatus.HTTP_VERSION_NOT_SUPPORTED, "expected HTTP/1.1 or HTTP/1.0")
    fields = _fields(lines)
    is_current = minor != b"0"
    if is_current and "host" not in fields:
        raise HttpRefusal(HTTPStatus.BAD_REQUEST, "found no Host")
    options = {option.strip().lower() for option in fields.get("connection", "").split(",")}
    return HttpRequest(
        method.decode(),
        _path(target),
        fields,
        _body_bytes(fields),
        keeps_alive=is_current and "close" not in options,
        takes_chunks=is_current,
    )


def _fields(lines: list[bytes]) -> dict[str, str]:
    fields: dict[str, str] = {}
    for line in lines:
        found = _FIELD.fullmatch(line)
        if found is None:
            raise HttpRefusal(HTTPStatus.BAD_REQUEST, "found a malformed header field")
        name, value = found[1].decode().lower(), found[2].decode("latin-1")
        fields[name] = f"{fields[name]}, {value}" if name in fields else value
    return fields


def _body_bytes(fields: Mapping[str, str]) -> int:
    if "transfer-encoding" in fields:
        raise HttpRefusal(HTTPStatus.NOT_IMPLEMENTED, "found a Transfer-Encoding, expected none")
    length = fields.get("content-length", "0")
    if not re.fullmatch("[0-9]{1,19}", length):
        raise HttpRefusal(HTTPStatus.BAD_REQUEST, "found a Content-Length that is no number")
    if int(length) > MAX_BODY_BYTES:
        raise HttpRefusal(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"found a body of {length} bytes")
    return int(length)


def _path(target: bytes) -> str:
    try:
        path = urlsplit(target.decode("ascii")).path
    except ValueError:
        raise HttpRefusal(HTTPStatus.BAD_REQUEST, "found a malformed target") from None
    if not path.startswith("/"):
        raise HttpRefusal(HTTPStatus.BAD_REQUEST, "found a target without a path")
    return path


def encode_response(response: HttpResponse, *, to: HttpRequest | None) -> bytes:
    """Return a response as bytes; of one that streams, the head. ``to`` None: it answers nonsense.

    The answer to HEAD has no body, but the fields that say what it would be.
    """
    fields = {"Server": "dcplake", "Cache-Control": "no-cache", **response.fields}
    if response.streams_map:
        fields |= {"Transfer-Encoding": "chunked"} if to is not None and to.takes_chunks else {}
    else:
        fields["Content-Length"] = str(len(response.body))
    if to is None or not to.keeps_alive:
        fields["Connection"] = "close"
    lines = [f"HTTP/1.1 {response.status.value} {response.status.phrase}"]
    lines += [f"{name}: {value}" for name, value in fields.items()]
    head = "".join(f"{line}\r\n" for line in [*lines, ""]).encode()
    return head if to is not None and to.method == "HEAD" else head + response.body


def encode_chunk(data: bytes) -> bytes:
    """Return one chunk of a chunked body; not for empty data, which would end the body."""
    return b"%x\r\n%b\r\n" % (len(data), data)
