"""A node behind a proxy that can swallow what passes: connections stay open, and nothing arrives.

That is what both ends see of a connection of which the other half is gone. The nodes' ports in the
cluster map become their proxies' on the way, digit by digit, so that frames keep their lengths.
"""

import socket
from contextlib import suppress
from threading import Event, Thread
from types import TracebackType
from typing import Final, Self

_PORTS: Final = range(10_000, 65_536)


class SwallowingProxy:
    """Passes on what clients and the node at ``seed`` say, until ``swallows`` is set."""

    def __init__(self, seed: str, shown: dict[bytes, bytes]) -> None:
        """Listen; ``shown`` are the ports of proxies by those of their nodes, of all of them."""
        host, port = seed.rsplit(":", 1)
        assert int(port) in _PORTS, "a port of five digits"
        self._node = (host, int(port))
        self.swallows = Event()
        self._listener = socket.create_server((host, 0))
        self._sockets = [self._listener]
        self.seed = f"{host}:{self._listener.getsockname()[1]}"
        own = self._listener.getsockname()[1]
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
        for each in self._sockets:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                node = socket.create_connection(self._node)
                self._sockets += [client, node]
                Thread(target=self._pass_on, args=(client, node, False), daemon=True).start()
                Thread(target=self._pass_on, args=(node, client, True), daemon=True).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket, is_answer: bool) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 20):
                if is_answer:
                    for port, shown in self._shown.items():
                        data = data.replace(port, shown)
                if not self.swallows.is_set():
                    sink.sendall(data)
            if not self.swallows.is_set():
                sink.shutdown(socket.SHUT_WR)
