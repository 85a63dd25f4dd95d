"""Serves a run over HTTP (``dcplake run --http``): its page, metrics and health. Reads only.

The lake is read beside the run, from its tables, without Spark; so nothing here delays a round.
"""

import json
import re
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socket import AF_INET6
from time import monotonic
from typing import Final

from dcp.client.addresses import NodeAddress
from dcp.errors import ConfigError, SetupError
from dcp.lake.adapters.opening import opened_lake
from dcp.lake.config.settings import Settings
from dcp.lake.monitor.figures_reader import FiguresReader
from dcp.lake.monitor.lake_figures import LakeFigures
from dcp.lake.monitor.page import page_html
from dcp.lake.monitor.run_watch import RunWatch
from dcp.lake.task_board.board_folder import BoardFolder
from dcp.types import U16_MAX

_KEPT_SECONDS: Final = 1.0
"""Questions within this time get the same figures."""

_LOCAL: Final = "127.0.0.1"
_JSON: Final = "application/json"
_ADDRESS: Final = re.compile(
    r"(?:(?:\[(?P<ipv6>[0-9a-fA-F:.]+)\]|(?P<host>[\w.-]+))?:)?(?P<port>[0-9]{1,5})", re.ASCII
)


class _Server(ThreadingHTTPServer):
    def __init__(self, address: tuple[str, int], handler: Callable[..., "_Handler"]) -> None:
        if ":" in address[0]:
            self.address_family = AF_INET6
        super().__init__(address, handler)


class RunServer:
    """Answers in a thread for each question."""

    def __init__(self, address: NodeAddress, settings: Settings, watch: RunWatch) -> None:
        """Listen.

        Raises:
            SetupError: the address is taken, or not of this machine.
        """
        self._settings = settings
        self._watch = watch
        self._lock = threading.Lock()
        self._reader: FiguresReader | None = None
        self._read: LakeFigures | None = None
        self._read_at = -_KEPT_SECONDS
        try:
            self._server = _Server((address.host, address.port), partial(_Handler, self._answers()))
        except OSError as error:
            raise SetupError(
                f"--http {address}: cannot listen there: {error.strerror}; expected a free port of"
                " this machine: stop what has it, or name another"
            ) from None
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="dcplake-http", daemon=True
        )

    def __enter__(self) -> "RunServer":
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def figures(self) -> LakeFigures:
        """Return the present figures, with the seqnos that the run's plan knows.

        Raises:
            LakeError: there is no lake yet, or only Spark can read it.
        """
        with self._lock:
            if self._read is None or monotonic() - self._read_at >= _KEPT_SECONDS:
                if self._reader is None:
                    with opened_lake(self._settings, starts_spark=False) as lake:
                        board = BoardFolder.of(self._settings)
                        self._reader = FiguresReader(lake, board, searches=True)
                self._read = self._reader.read(datetime.now(UTC), self._watch.under_way)
                self._read_at = monotonic()
            return replace(self._read, health=self._watch.health())

    def _answers(self) -> "_Answers":
        def figures() -> tuple[int, str, str]:
            return 200, _JSON, json.dumps(self.figures().to_json())

        def metrics() -> tuple[int, str, str]:
            text = self.figures().exposition()
            return 200, "text/plain; version=0.0.4; charset=utf-8", text

        def health() -> tuple[int, str, str]:
            found = self._watch.health()
            return 200 if found.is_well else 503, _JSON, json.dumps(found.to_json())

        return {
            "/": lambda: (200, "text/html; charset=utf-8", page_html()),
            "/figures.json": figures,
            "/metrics": metrics,
            "/health": health,
        }


def http_address(text: str) -> NodeAddress:
    """Return the address of ``PORT``, of this machine alone, or of ``HOST:PORT``.

    Raises:
        ConfigError: it is neither.
    """
    found = _ADDRESS.fullmatch(text)
    if found is None or not 0 < int(found["port"]) <= U16_MAX:
        raise ConfigError(
            f"--http: found {text!r}, expected a port of 1 to {U16_MAX}, or a host and a port: "
            "8080, 0.0.0.0:8080, [::1]:8080"
        )
    return NodeAddress(found["ipv6"] or found["host"] or _LOCAL, int(found["port"]))


_Answers = Mapping[str, Callable[[], tuple[int, str, str]]]
"""By path, a function that gives status, content type and body."""


class _Handler(BaseHTTPRequestHandler):
    server_version = "dcplake"
    sys_version = ""

    def __init__(self, answers: _Answers, *arguments: object) -> None:
        self._answers = answers
        super().__init__(*arguments)  # type: ignore[arg-type]  # the server's own three

    def do_GET(self) -> None:
        answer = self._answers.get(self.path.partition("?")[0])
        if answer is None:
            known = ", ".join(self._answers)
            told = (404, _JSON, json.dumps({"reason": f"expected one of {known}"}))
        else:
            try:
                told = answer()
            except Exception as error:  # a file that maintenance took away meanwhile, for instance
                told = (503, _JSON, json.dumps({"reason": str(error)}))
        status, content_type, text = told
        body = text.encode()
        with suppress(OSError):  # the client is gone
            self.send_response(status)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Cache-Control", "no-store")
            self.end_headers()
            self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        """Log nothing: a scraper comes every few seconds."""
