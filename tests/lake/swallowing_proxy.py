"""A node behind a proxy that can swallow what passes, slow it down, or cut it off.

What is swallowed never arrives, and connections stay open: that is what both ends see of one of
which the other half is gone. The nodes' ports in the cluster map become their proxies' on the way,
digit by digit, so that frames keep their lengths. Of encrypted nodes nothing can be changed on the
way: their proxies listen on the nodes' own ports, at another address of this machine.
"""

import socket
from contextlib import suppress
from threading import Event, Thread
from time import sleep
from types import TracebackType
from typing import Final, Self

_PORTS: Final = range(10_000, 65_536)
_PIECE_BYTES: Final = 1024


class SwallowingProxy:
    """Passes on what clients and the node at ``seed`` say, until ``swallows`` is set."""

    def __init__(self, seed: str, shown: dict[bytes, bytes], host: str = "") -> None:
        """Listen at the node's host, or at its port of another ``host``.

        ``shown`` are the ports of proxies by those of their nodes, of all of them.
        """
        node_host, port = seed.rsplit(":", 1)
        assert int(port) in _PORTS, "a port of five digits"
        self._node = (node_host, int(port))
        self.swallows = Event()
        self.pause_seconds = 0.0
        """Before each KiB that it passes on."""
        self._listener = socket.create_server((host, int(port)) if host else (node_host, 0))
        self._sockets: list[socket.socket] = []
        own = self._listener.getsockname()[1]
        self.seed = f"{host or node_host}:{own}"
        assert own in _PORTS
        self._shown = shown
        shown[port.encode()] = str(own).encode()
        Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        _end(self._listener)
        self.cut()

    def cut(self) -> None:
        """End all connections, wherever in a message they are."""
        _end(*self._sockets)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                try:
                    node = socket.create_connection(self._node)
                except OSError:  # it is dead, and may come back
                    client.close()
                    continue
                self._sockets += [client, node]
                Thread(target=self._pass_on, args=(client, node, False), daemon=True).start()
                Thread(target=self._pass_on, args=(node, client, True), daemon=True).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket, is_answer: bool) -> None:
        with suppress(OSError):
            while data := source.recv(_PIECE_BYTES if self.pause_seconds else 1 << 20):
                sleep(self.pause_seconds)
                if is_answer:
                    for port, shown in self._shown.items():
                        data = data.replace(port, shown)
                if not self.swallows.is_set():
                    sink.sendall(data)
            if not self.swallows.is_set():
                sink.shutdown(socket.SHUT_WR)


def _end(*sockets: socket.socket) -> None:
    for each in sockets:
        with suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)
        each.close()
