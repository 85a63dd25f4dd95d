import asyncio
import errno
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Final

_BACKLOG: Final = 128
_ACCEPT_AGAIN_SECONDS: Final = 0.1


class Listener:
    """A listening port that can close and open again; methods run in the loop's thread."""

    def __init__(
        self, host: str, port: int, serve: Callable[[socket.socket], None], option: str = ""
    ) -> None:
        """``serve`` gets each accepted socket. Port 0 becomes a free port at the first ``open``.

        Errors show ``option``, which sets the port (`Section.option_words`).
        """
        self.host = host
        self.port = port
        self._option = option
        self._serve = serve
        self._socket: socket.socket | None = None
        self._kept: socket.socket | None = None
        """Holds the port without listening: clients are refused, and nobody else can take the
        port."""

    def open(self) -> None:
        """Listen and accept clients; a second call does nothing.

        Raises:
            OSError: the port is taken, or the host is not ours.
        """
        if self._socket is not None:
            return
        try:
            listener, self._kept = self._kept or self._bound(), None
        except OSError as error:
            at = f"port {self.port} of {self.host}{self._option}: {error.strerror}"
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
            # Old connections in TIME_WAIT must not keep a restarted node from its port.
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind((self.host, self.port))
        except OSError:
            bound.close()
            raise
        return bound

    def close(self) -> None:
        """Accept no clients, but keep the port; a second call does nothing."""
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket)
            self._socket.close()
            self._socket = None
            with suppress(OSError):  # another process took the port: the next ``open`` reports it
                self._kept = self._bound()

    def leave(self) -> None:
        if self._kept is not None:
            self._kept.close()
            self._kept = None

    def _accept_from(self, listener: socket.socket) -> None:
        if self._socket is listener:
            # A task that is cancelled in ``sock_accept`` can lose an accepted client; a reader
            # callback cannot.
            asyncio.get_running_loop().add_reader(listener, self._accept, listener)

    def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        # The loop gets its turn after one backlog, even if clients connect without end.
        for _ in range(_BACKLOG):
            try:
                client, _address = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError:  # no file descriptor is free; some may be soon
                loop.remove_reader(listener)
                loop.call_later(_ACCEPT_AGAIN_SECONDS, self._accept_from, listener)
                return
            self._serve(client)
