"""A way to an S3 server on which the writes of one version wait for each other.

Between a driver's look at a log and its write there is a moment, in which another may write. Here
the moment lasts until both have looked.
"""

import re
import socket
from contextlib import suppress
from threading import Barrier, BrokenBarrierError, Lock, Thread
from types import TracebackType
from typing import Final, Self
from urllib.parse import urlsplit

_WAIT_SECONDS: Final = 60.0
_COMMIT: Final = re.compile(rb"PUT (\S+/_delta_log/\d{20}\.json)[? ]")


class CommitGate:
    """Passes on what clients and the server say; the first two writes of a version go together."""

    def __init__(self, endpoint: str) -> None:
        place = urlsplit(endpoint)
        self._server = (place.hostname, place.port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._lock = Lock()
        self._gates: dict[bytes, Barrier] = {}
        self.held_back: list[bytes] = []
        """The versions that two drivers were about to write at once."""
        Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._listener.close()

    def hold(self, path: str) -> None:
        """Let the next write of this file wait for another one."""
        self._gates[path.encode()] = Barrier(2)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._server)
                Thread(target=self._pass_on, args=(client, server), daemon=True).start()
                Thread(target=self._pass_on, args=(server, client), daemon=True).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket) -> None:
        with source, suppress(OSError):
            while data := source.recv(1 << 20):
                if commit := _COMMIT.match(data):
                    self._wait(commit[1])
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)

    def _wait(self, path: bytes) -> None:
        with self._lock:
            gate = self._gates.get(path)
        if gate is None:
            return
        with suppress(BrokenBarrierError):
            gate.wait(_WAIT_SECONDS)
            with self._lock:
                if self._gates.pop(path, None) is not None:
                    self.held_back.append(path)
