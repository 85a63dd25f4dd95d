"""Requests and responses as bytes: what is read, what is refused and with which status."""

from http import HTTPStatus

import h11
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcp.server.node.http_messages import (
    MAX_BODY_BYTES,
    HttpRequest,
    HttpResponse,
    request_of,
)

HOST = b"Host: a\r\n"


def parse(data: bytes) -> HttpRequest:
    http = h11.Connection(h11.SERVER)
    http.receive_data(data)
    head = http.next_event()
    assert isinstance(head, h11.Request)
    return request_of(head)


def test_a_request_with_all_that_we_read() -> None:
    request = parse(
        b"POST /pools/a%2Fb/%C3%A9?x=/y HTTP/1.1\r\nhost:  a:1 \r\nAUTHORIZATION:  Basic x \r\n"
        b"Content-Length: 3\r\nConnection: Keep-Alive, CLOSE\r\n\r\nabcGET"
    )
    assert (request.method, request.segments) == ("POST", ("pools", "a/b", "é"))
    assert request.authorization == "Basic x"


@pytest.mark.parametrize(
    ("head", "path"),
    [
        (b"GET / HTTP/1.1\r\n" + HOST, "/"),
        (b"GET / HTTP/1.1\nHost: a\n", "/"),
        (b"GET / HTTP/1.0\r\n", "/"),
        (b"GET http://a:1/whoami?q HTTP/1.1\r\n" + HOST, "/whoami"),
    ],
)
def test_forms_of_a_head(head: bytes, path: str) -> None:
    assert parse(head + b"\r\n").path == path


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"GET /", HTTPStatus.BAD_REQUEST),
        (b"GET  / HTTP/1.1\r\n" + HOST, HTTPStatus.BAD_REQUEST),
        (b"GET / HTTP/1.1\r\nX: 1", HTTPStatus.BAD_REQUEST),
        (b"GET / HTTP/1.1\r\n" + HOST + b"name : 1", HTTPStatus.BAD_REQUEST),
        (b"GET * HTTP/1.1\r\n" + HOST, HTTPStatus.BAD_REQUEST),
        (b"GET //[ HTTP/1.1\r\n" + HOST, HTTPStatus.BAD_REQUEST),
        (b"GET /\xff HTTP/1.1\r\n" + HOST, HTTPStatus.BAD_REQUEST),
        (b"GET / HTTP/1.1\r\n" + HOST + b"Content-Length: -1", HTTPStatus.BAD_REQUEST),
        (b"GET / HTTP/1.1\r\n" + HOST + b"Content-Length: " + b"9" * 5000, HTTPStatus.BAD_REQUEST),
        (
            b"GET / HTTP/1.1\r\n" + HOST + b"Content-Length: 1\r\nContent-Length: 2",
            HTTPStatus.BAD_REQUEST,
        ),
        (
            b"GET / HTTP/1.1\r\n" + HOST + b"Content-Length: %d" % (MAX_BODY_BYTES + 1),
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
        ),
        (b"GET / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked", HTTPStatus.NOT_IMPLEMENTED),
        (b"GET / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: gzip", HTTPStatus.NOT_IMPLEMENTED),
        (b"PRI * HTTP/2.0", HTTPStatus.HTTP_VERSION_NOT_SUPPORTED),
    ],
)
def test_what_is_refused(head: bytes, status: HTTPStatus) -> None:
    with pytest.raises(h11.RemoteProtocolError) as refusal:
        parse(head.removesuffix(b"\r\n") + b"\r\n\r\n")
    assert refusal.value.error_status_hint == status


@given(st.binary(max_size=200))
def test_any_bytes_are_a_request_or_refused(head: bytes) -> None:
    try:
        request = parse(head.replace(b"\n", b"") + b"\r\n\r\n")
    except h11.RemoteProtocolError as refusal:
        assert 400 <= refusal.error_status_hint < 600
    else:
        assert request.path.startswith("/")


CLOSED = b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"


@pytest.mark.parametrize(
    ("request_", "response", "expected"),
    [
        (
            b"GET / HTTP/1.1\r\n" + HOST + b"\r\n",
            HttpResponse(HTTPStatus.OK, b"{}", {"Content-Type": "application/json"}),
            "200 OK|Content-Type: application/json|Content-Length: 2||",
        ),
        (
            CLOSED,
            HttpResponse(HTTPStatus.NOT_FOUND),
            "404 Not Found|Content-Length: 0|Connection: close||",
        ),
        (
            b"GET / HTTP/1.1\r\n" + HOST + b"\r\n",
            HttpResponse(HTTPStatus.OK, streams_map=True),
            "200 OK|Transfer-Encoding: chunked||",
        ),
        (
            b"GET / HTTP/1.0\r\n\r\n",
            HttpResponse(HTTPStatus.OK, streams_map=True),
            "200 OK|Connection: close||",
        ),
    ],
)
def test_the_head_of_a_response(request_: bytes, response: HttpResponse, expected: str) -> None:
    http = h11.Connection(h11.SERVER)
    http.receive_data(request_)
    http.next_event()
    text = http.send(response.head).decode().replace("\r\n", "|")
    always = "Server: dcplake|Cache-Control: no-cache|"
    assert always in text
    assert text.replace(always, "") == "HTTP/1.1 " + expected
