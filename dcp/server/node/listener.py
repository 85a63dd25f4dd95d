"""A listening port that hands over the sockets of its clients; may be closed and opened again."""

import asyncio
import errno
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Final

_BACKLOG: Final = 128
_ACCEPT_AGAIN_SECONDS: Final = 0.1


class Listener:
    """One port. Methods run in the loop's thread."""

    def __init__(self, host: str, port: int, serve: Callable[[socket.socket], None]) -> None:
        """Give accepted sockets to ``serve``; port 0 takes a free one at the first ``open``."""
        self.host = host
        self.port = port
        self._serve = serve
        self._socket: socket.socket | None = None
        self._kept: socket.socket | None = None
        """Has the port while nobody listens: who connects is refused, and nobody else gets it."""

    def open(self) -> None:
        """Listen and accept clients; harmless when it does.

        Raises:
            OSError: the port is taken or the host is not ours.
        """
        if self._socket is not None:
            return
        try:
            listener, self._kept = self._kept or self._bound(), None
        except OSError as error:
            at = f"port {self.port} of {self.host}: {error.strerror}"
            cure = "; end what listens there, or choose another port (0: a free one)"
            in_use = error.errno == errno.EADDRINUSE
            raise OSError(error.errno, at + cure if in_use else at) from None
        try:
            listener.listen(_BACKLOG)
            listener.setblocking(False)
        except OSError:
            listener.close()
            raise
        self.port = listener.getsockname()[1]
        self._socket = listener
        self._accept_from(listener)

    def _bound(self) -> socket.socket:
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        bound = socket.socket(family, socket.SOCK_STREAM)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind((self.host, self.port))
        except OSError:
            bound.close()
            raise
        return bound

    def close(self) -> None:
        """Accept no new clients, and keep the port; harmless when it is closed."""
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket)
            self._socket.close()
            self._socket = None
            with suppress(OSError):  # somebody was quicker: whoever opens it again is told
                self._kept = self._bound()

    def leave(self) -> None:
        """Let others have the port of a listener that is closed."""
        if self._kept is not None:
            self._kept.close()
            self._kept = None

    def _accept_from(self, listener: socket.socket) -> None:
        """Watch the port. (A task that waits in ``sock_accept`` loses a client when cancelled.)."""
        if self._socket is listener:
            asyncio.get_running_loop().add_reader(listener, self._accept, listener)

    def _accept(self, listener: socket.socket) -> None:
        """Take the clients that wait."""
        loop = asyncio.get_running_loop()
        for _ in range(_BACKLOG):
            try:
                client, _address = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError:  # out of descriptors: others may close meanwhile
                loop.remove_reader(listener)
                loop.call_later(_ACCEPT_AGAIN_SECONDS, self._accept_from, listener)
                return
            self._serve(client)
