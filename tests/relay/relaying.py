"""``dcplake relay`` as a process of its own."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from tests.client.drained import USERS


class Upstream(Protocol):
    """A cluster, in this process or in one of its own."""

    @property
    def seeds(self) -> Sequence[str]: ...


class Relaying:
    """A running ``dcplake relay``."""

    def __init__(self, cluster: Upstream, folder: Path, *more: str) -> None:
        (user,) = USERS
        words = ["relay", "--upstream", ",".join(cluster.seeds), "--user", user]
        words += ["--data", str(folder), "--listen", "127.0.0.1:0", *more]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "dcp.cli.main", *words],
            stdout=subprocess.PIPE,
            env={**os.environ, "DCPLAKE_PASSWORD": USERS[user]},
        )
        assert self.process.stdout is not None
        self.ready: dict[str, Any] = json.loads(self.process.stdout.readline())

    @property
    def seed(self) -> str:
        return str(self.ready["seeds"][0])

    def kill(self) -> None:
        self.process.kill()
        self._wait()

    def stop(self) -> int:
        self.process.terminate()
        return self._wait()

    def _wait(self) -> int:
        if self.process.stdout is not None:
            self.process.stdout.close()
        return self.process.wait(60)


@contextmanager
def relaying(cluster: Upstream, folder: Path, *more: str) -> Iterator[Relaying]:
    process = Relaying(cluster, folder, *more)
    try:
        yield process
    finally:
        process.kill()
