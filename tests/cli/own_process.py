"""A ``dcplake`` command that serves, as a process of its own."""

import json
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar


class OwnProcess:
    """A running command; ``ready`` is what it said when clients could connect."""

    stop_seconds: ClassVar[float] = 60.0

    def __init__(self, environment: Mapping[str, str], *words: str) -> None:
        command = [sys.executable, "-m", "dcp.cli.main", *words]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment)
        assert self.process.stdout is not None
        self.ready: dict[str, Any] = json.loads(self.process.stdout.readline())

    @property
    def seeds(self) -> list[str]:
        found: list[str] = self.ready["seeds"]
        return found

    def kill(self) -> None:
        """Let it be gone at once."""
        self.process.kill()
        self._wait()

    @contextmanager
    def killed_at_last(self) -> Iterator[None]:
        """Let it be gone at the end, if it is there."""
        try:
            yield
        finally:
            self.kill()

    def stop(self) -> int:
        """Let it stop, if it runs; returns its exit code."""
        self.process.terminate()
        return self._wait()

    def _wait(self) -> int:
        if self.process.stdout is not None:
            self.process.stdout.close()
        return self.process.wait(self.stop_seconds)


@contextmanager
def port_kept(port: int) -> Iterator[None]:
    """Let no stranger be given the port of a process that is gone; its successor may take it."""
    with socket.socket() as kept:
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        kept.bind(("127.0.0.1", port))
        yield
