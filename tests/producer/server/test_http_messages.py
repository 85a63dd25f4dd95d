"""Requests and responses as bytes: what is read, what is refused and with which status."""

from http import HTTPStatus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcp.producer.server.http_messages import (
    MAX_BODY_BYTES,
    MAX_HEAD_BYTES,
    HttpRefusal,
    HttpRequest,
    HttpResponse,
    encode_chunk,
    encode_response,
    parse_head,
    split_head,
)

HOST = b"Host: a\r\n"
GET = HttpRequest("GET", "/", {"host": "a"})


def parse(data: bytes) -> HttpRequest:
    found = split_head(data)
    assert found is not None
    return parse_head(found[0])


def test_a_request_with_all_that_we_read() -> None:
    data = (
        b"\r\nPOST /pools/a%2Fb/%C3%A9?x=/y HTTP/1.1\r\nhost:  a:1 \r\nX: 1\r\nx: 2\r\n"
        b"Content-Length: 3\r\nConnection: Keep-Alive, CLOSE\r\n\r\nabcGET"
    )
    found = split_head(data)
    assert found is not None
    assert data[found[1] :] == b"abcGET"
    request = parse_head(found[0])
    assert (request.method, request.segments) == ("POST", ("pools", "a/b", "é"))
    assert (request.fields["host"], request.fields["x"]) == ("a:1", "1, 2")
    assert (request.body_bytes, request.keeps_alive, request.takes_chunks) == (3, False, True)


@pytest.mark.parametrize(
    ("head", "path", "keeps_alive", "takes_chunks"),
    [
        (b"GET / HTTP/1.1\r\n" + HOST, "/", True, True),
        (b"GET / HTTP/1.1\nHost: a\n", "/", True, True),
        (b"GET / HTTP/1.0\r\n", "/", False, False),
        (b"GET http://a:1/whoami?q HTTP/1.1\r\n" + HOST, "/whoami", True, True),
    ],
)
def test_forms_of_a_head(head: bytes, path: str, keeps_alive: bool, takes_chunks: bool) -> None:
    request = parse(head + head[-1:].join((b"", b"")) + (b"\r\n" if b"\r" in head else b"\n"))
    assert (request.path, request.keeps_alive, request.takes_chunks) == (
        path,
        keeps_alive,
        takes_chunks,
    )


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"GET /", HTTPStatus.BAD_REQUEST),
        (b"GET  / HTTP/1.1\r\n" + HOST, HTTPStatus.BAD_REQUEST),
        (b"GET / HTTP/1.1\r\nX: 1", HTTPStatus.BAD_REQUEST),
        (b"GET / HTTP/1.1\r\n" + HOST + b" folded: 1", HTTPStatus.BAD_REQUEST),
        (b"GET / HTTP/1.1\r\n" + HOST + b"name : 1", HTTPStatus.BAD_REQUEST),
        (b"GET * HTTP/1.1\r\n" + HOST, HTTPStatus.BAD_REQUEST),
        (b"GET //[ HTTP/1.1\r\n" + HOST, HTTPStatus.BAD_REQUEST),
        (b"GET /\xff HTTP/1.1\r\n" + HOST, HTTPStatus.BAD_REQUEST),
        (b"GET / HTTP/1.1\r\n" + HOST + b"Content-Length: -1", HTTPStatus.BAD_REQUEST),
        (
            b"GET / HTTP/1.1\r\n" + HOST + b"Content-Length: 1\r\nContent-Length: 2",
            HTTPStatus.BAD_REQUEST,
        ),
        (
            b"GET / HTTP/1.1\r\n" + HOST + b"Content-Length: %d" % (MAX_BODY_BYTES + 1),
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
        ),
        (b"GET / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked", HTTPStatus.NOT_IMPLEMENTED),
        (b"PRI * HTTP/2.0", HTTPStatus.HTTP_VERSION_NOT_SUPPORTED),
    ],
)
def test_what_is_refused(head: bytes, status: HTTPStatus) -> None:
    with pytest.raises(HttpRefusal) as refusal:
        parse_head(head.removesuffix(b"\r\n"))
    assert refusal.value.status == status


def test_a_head_has_a_largest_size() -> None:
    line = b"GET / HTTP/1.1\r\nX: "
    most = line + b"x" * (MAX_HEAD_BYTES - len(line))
    assert split_head(most) is None
    assert split_head(most + b"\r\n\r\n") == (most, MAX_HEAD_BYTES + 4)
    for data in (most + b"x", most + b"x\r\n\r\n"):
        with pytest.raises(HttpRefusal) as refusal:
            split_head(data)
        assert refusal.value.status == HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE


@given(st.binary(max_size=200))
def test_any_bytes_are_a_request_or_refused(head: bytes) -> None:
    try:
        request = parse_head(head)
    except HttpRefusal as refusal:
        assert 400 <= refusal.status < 600
    else:
        assert request.path.startswith("/")


@pytest.mark.parametrize(
    ("request_", "response", "expected"),
    [
        (
            GET,
            HttpResponse(HTTPStatus.OK, b"{}", {"Content-Type": "application/json"}),
            "200 OK|Content-Type: application/json|Content-Length: 2||{}",
        ),
        (
            HttpRequest("HEAD", "/", {}),
            HttpResponse(HTTPStatus.OK, b"{}"),
            "200 OK|Content-Length: 2||",
        ),
        (
            HttpRequest("GET", "/", {}, keeps_alive=False),
            HttpResponse(HTTPStatus.NOT_FOUND),
            "404 Not Found|Content-Length: 0|Connection: close||",
        ),
        (GET, HttpResponse(HTTPStatus.OK, streams_map=True), "200 OK|Transfer-Encoding: chunked||"),
        (
            HttpRequest("GET", "/", {}, keeps_alive=False, takes_chunks=False),
            HttpResponse(HTTPStatus.OK, streams_map=True),
            "200 OK|Connection: close||",
        ),
        (
            None,
            HttpResponse(HTTPStatus.BAD_REQUEST, b"x"),
            "400 Bad Request|Content-Length: 1|Connection: close||x",
        ),
    ],
)
def test_a_response_as_bytes(
    request_: HttpRequest | None, response: HttpResponse, expected: str
) -> None:
    text = encode_response(response, to=request_).decode().replace("\r\n", "|")
    always = "Server: dcplake|Cache-Control: no-cache|"
    assert always in text
    assert text.replace(always, "") == "HTTP/1.1 " + expected


def test_a_chunk() -> None:
    assert encode_chunk(b"x" * 26) == b"1a\r\n" + b"x" * 26 + b"\r\n"
