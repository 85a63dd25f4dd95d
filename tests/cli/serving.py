"""``dcplake serve`` as a process of its own."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class Serving:
    """A running ``dcplake serve``; ``ready`` is what it said when clients could connect."""

    def __init__(self, user: str, *words: str) -> None:
        command = [sys.executable, "-m", "dcp.cli.main", "serve", "--user", user, *words]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, env=os.environ)
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

    def stop(self) -> int:
        """Let it stop, if it runs; returns its exit code."""
        self.process.terminate()
        return self._wait()

    def _wait(self) -> int:
        if self.process.stdout is not None:
            self.process.stdout.close()
        return self.process.wait(10)


@contextmanager
def serving(user: str, *words: str) -> Iterator[list[str]]:
    """Run it on free ports with eight vbuckets; yields its seeds, and lets it stop in the end."""
    process = Serving(user, "--vbuckets", "8", "--port", "0", *words)
    code = 1
    try:
        yield process.seeds
    finally:
        code = process.stop()
    assert code == 0
