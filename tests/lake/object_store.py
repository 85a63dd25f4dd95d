"""An S3 server in this process, which can fail.

It is moto's, over HTTP. Whoever has no right key is refused, as a store does and moto does not.
"""

import logging
import socket
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Final, Self
from urllib.parse import parse_qs

import pyarrow.fs as pafs
from moto.moto_api._internal import moto_api_backend
from moto.moto_server.werkzeug_app import (
    DomainDispatcherApplication,
    MotoRequestHandler,
    create_backend_app,
)
from moto.s3.models import s3_backends
from werkzeug.serving import make_server

from dcp.lake.config.storage_options import options_of_delta_rs
from dcp.lake.store.object_location import ObjectLocation

BUCKET: Final = "tables"
ACCESS_KEY: Final = "AKIDOFTHETESTS"
SECRET_KEY: Final = "secret/of+the/tests"

Request = dict[str, Any]
"""As WSGI has it."""

Failure = tuple[str, str]
"""The status and the error code that a request is answered with."""


logging.getLogger("werkzeug").setLevel(logging.ERROR)  # else it prints each request


def kind_of(request: Request) -> str:
    """Return what a request asks for: GET, HEAD, LIST, PUT or DELETE.

    The requests of an upload in parts count as PUT, one that deletes many objects as one DELETE.
    """
    method: str = request["REQUEST_METHOD"]
    asked = parse_qs(request.get("QUERY_STRING", ""), keep_blank_values=True)
    if method == "GET" and asked.keys() & {"list-type", "prefix", "uploads"}:
        return "LIST"
    if method == "POST":
        return "DELETE" if "delete" in asked else "PUT"
    return method


class ConflictAtFirst:
    """Answers the first requests to write a commit, or to try the store, as S3 does while another
    request to write the same file is on its way.
    """

    def __init__(self, times: int) -> None:
        self._times = times
        self._answered: Counter[str] = Counter()

    def __call__(self, request: Request) -> Failure | None:
        path = str(request["PATH_INFO"])
        if kind_of(request) != "PUT" or not path.endswith((".json", "-probe")):
            return None
        self._answered[path] += 1
        if self._answered[path] > self._times:
            return None
        return "409 Conflict", "ConditionalRequestConflict"


class ObjectStore:
    """The server, with an empty bucket; ``answer`` may let a request fail, or wait.

    All stores of a process share what they hold; it is gone when the last one ends.

    As an older server it ``ignores_conditions`` of writes. Where it ``loses_answer`` it does what
    it was asked, and the connection is cut.
    """

    _open: ClassVar = set["ObjectStore"]()

    def __init__(self) -> None:
        self.answer: Callable[[Request], Failure | None] = lambda _: None
        self.ignores_conditions = False
        self.access_keys = {ACCESS_KEY}
        self.loses_answer: Callable[[Request], bool] = lambda _: False
        self._store = DomainDispatcherApplication(create_backend_app)
        self._server = make_server(
            "127.0.0.1", 0, self._serve, threaded=True, request_handler=MotoRequestHandler
        )
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        self.endpoint = f"http://127.0.0.1:{self._server.port}"
        self.files = pafs.S3FileSystem(
            access_key=ACCESS_KEY,
            secret_key=SECRET_KEY,
            endpoint_override=self.endpoint,
            region="us-east-1",
            allow_bucket_creation=True,
        )
        self.files.create_dir(BUCKET)
        self._folder = tempfile.TemporaryDirectory(prefix="object-store-")
        secret = Path(self._folder.name) / "secret"
        secret.write_text(SECRET_KEY)
        self.options = {
            "endpoint": self.endpoint,
            "allow_http": "true",
            "access_key_id": ACCESS_KEY,
            "secret_access_key_file": str(secret),
        }
        """The options by which a lake in it is opened."""
        self._open.add(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
        self._open.remove(self)
        if not self._open:
            moto_api_backend.reset()
        self._folder.cleanup()

    def location(self, table: str) -> ObjectLocation:
        """Return the place of a table in it, which need not be there."""
        way = options_of_delta_rs(f"s3://{BUCKET}", self.options, {}, {})
        assert way is not None
        return ObjectLocation(f"s3://{BUCKET}/{table}", way)

    def names(self, prefix: str) -> list[str]:
        """Return the names of all objects below a prefix."""
        selector = pafs.FileSelector(f"{BUCKET}/{prefix}", recursive=True, allow_not_found=True)
        found = self.files.get_file_info(selector)
        return [each.path.removeprefix(f"{BUCKET}/{prefix}/") for each in found if each.is_file]

    def write(self, path: str, content: bytes, days_old: int) -> None:
        """Put an object into the bucket, as if it had been written some days ago."""
        [account] = s3_backends.values()
        made = account["aws"].put_object(BUCKET, path, content)
        made.last_modified -= timedelta(days=days_old)

    def take_copy(self, folder: Path, prefix: str) -> None:
        """Put the files of a folder below a prefix of the bucket."""
        pafs.copy_files(
            str(folder), f"{BUCKET}/{prefix}", destination_filesystem=self.files, use_threads=False
        )

    def _serve(self, request: Request, start: Callable[..., object]) -> Iterable[bytes]:
        failure = self.answer(request)
        told = request.get("HTTP_AUTHORIZATION", "")
        if not any(f"Credential={each}/" in told for each in self.access_keys):
            failure = "403 Forbidden", "InvalidAccessKeyId"
        if self.ignores_conditions:
            request.pop("HTTP_IF_NONE_MATCH", None)
        if failure is None:
            answered: Iterable[bytes] = self._store(request, start)
            if self.loses_answer(request):
                request["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
            return answered
        status, code = failure
        start(status, [("Content-Type", "application/xml")])
        return [f"<Error><Code>{code}</Code><Message>refused</Message></Error>".encode()]
