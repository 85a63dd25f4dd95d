"""Google's XML API before fake-gcs-server, which writes by the JSON API alone.

obstore and delta-rs write by the XML API. Objects, generations and preconditions are the server's;
here are the shapes of requests to write, and the parts of uploads.
"""

import itertools
import json
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.client import HTTPConnection, HTTPResponse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final
from urllib.parse import parse_qs, unquote, urlencode, urlsplit

_CONDITION: Final = "x-goog-if-generation-match"
_HOP_BY_HOP: Final = ("connection", "content-length", "date", "transfer-encoding")


class _Front(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, behind: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.behind = behind
        self.numbers = itertools.count(1)
        self.parts: dict[str, dict[int, bytes]] = defaultdict(dict)
        """By the upload and the part's number."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Front

    def do_GET(self) -> None:
        answer, body = self._forward()
        self._answer(answer.status, body, answer)

    do_HEAD = do_GET  # noqa: N815  (as http.server names it)

    def do_DELETE(self) -> None:
        if (upload := self._query.get("uploadId")) is not None:
            del self.server.parts[upload]
            self._answer(204, b"")
        else:
            answer, body = self._forward()
            self._answer(answer.status, body, answer)

    def do_PUT(self) -> None:
        content = self._content()
        if (upload := self._query.get("uploadId")) is not None:
            number = int(self._query["partNumber"])
            self.server.parts[upload][number] = content
            self._answer(200, b"", ETag=f'"{number}"')
        else:
            self._insert(content)

    def do_POST(self) -> None:
        self._content()
        upload = self._query.get("uploadId")
        if upload is None:
            begun = f"<UploadId>{next(self.server.numbers)}</UploadId>"
            self._answer(200, _xml("InitiateMultipartUploadResult", begun))
        else:
            parts = self.server.parts.pop(upload)
            self._insert(b"".join(parts[number] for number in sorted(parts)))

    def log_message(self, *_: object) -> None:
        pass

    @property
    def _query(self) -> dict[str, str]:
        found = parse_qs(urlsplit(self.path).query, keep_blank_values=True)
        return {name: values[0] for name, values in found.items()}

    def _content(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def _ask(
        self, method: str, path: str, content: bytes, headers: dict[str, str]
    ) -> tuple[HTTPResponse, bytes]:
        with closing(HTTPConnection(self.server.behind)) as connection:
            connection.request(method, path, content, headers)
            answer = connection.getresponse()
            return answer, answer.read()

    def _forward(self) -> tuple[HTTPResponse, bytes]:
        headers = {name: value for name, value in self.headers.items() if name.lower() != "host"}
        return self._ask(str(self.command), self.path, b"", headers)

    def _insert(self, content: bytes) -> None:
        bucket, _, name = unquote(urlsplit(self.path).path).removeprefix("/").partition("/")
        query = {"uploadType": "media", "name": name}
        if (generation := self.headers.get(_CONDITION)) is not None:
            query["ifGenerationMatch"] = generation
        path = f"/upload/storage/v1/b/{bucket}/o?{urlencode(query)}"
        answer, body = self._ask("POST", path, content, {})
        if answer.status != 200:
            self._answer(answer.status, body)
            return
        made = json.loads(body)
        told = _xml("CompleteMultipartUploadResult", f"<ETag>{made['etag']}</ETag>")
        more = {"ETag": made["etag"], "x-goog-generation": made["generation"]}
        self._answer(200, told, **more)

    def _answer(
        self, status: int, body: bytes, like: HTTPResponse | None = None, **headers: str
    ) -> None:
        self.send_response(status)
        for name, value in (*(like.getheaders() if like else ()), *headers.items()):
            if name.lower() not in _HOP_BY_HOP:
                self.send_header(name, value)
        length = like.getheader("Content-Length") if like and self.command == "HEAD" else None
        self.send_header("Content-Length", length or str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def _xml(name: str, content: str) -> bytes:
    return f"<{name}>{content}</{name}>".encode()


@contextmanager
def xml_api(behind: str) -> Iterator[str]:
    """Serve the XML API before the server at ``behind``; give its address."""
    with _Front(behind) as front:
        thread = threading.Thread(target=front.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"127.0.0.1:{front.server_port}"
        finally:
            front.shutdown()
            thread.join()
