"""The demo's producer: ``dcplake serve`` in a process of its own, ended with the demo."""

import json
import os
import secrets
import subprocess
import sys
from pathlib import Path
from threading import Timer
from types import TracebackType
from typing import Final, Self

from dcp.errors import SetupError

USER: Final = "demo"
VBUCKETS: Final = 64
_READY_SECONDS: Final = 30.0
_STOP_SECONDS: Final = 10.0


class DemoProducer:
    """Two nodes and 64 vbuckets on free ports of this machine, with a password of the moment."""

    bucket: Final = "airports"

    def __init__(self, log: Path) -> None:
        self.password = secrets.token_urlsafe(12)
        self.seeds: list[str] = []
        self._log = log

    def __enter__(self) -> Self:
        """Start it and wait until it answers.

        Raises:
            SetupError: it did not start; names its log.

        """
        options = (
            f"serve --nodes 2 --replicas 1 --vbuckets {VBUCKETS} --port 0 --bucket {self.bucket}"
        )
        command = [sys.executable, "-m", "dcp.cli.main", *options.split(), "--user", USER]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**os.environ, "DCPLAKE_PASSWORD": self.password},
            )
        assert self._process.stdout is not None
        deadline = Timer(_READY_SECONDS, self._process.kill)
        deadline.start()
        try:
            line = self._process.stdout.readline()
        except KeyboardInterrupt:
            self._process.kill()
            raise
        finally:
            deadline.cancel()
        if not line:
            self._process.wait()
            raise SetupError(f"the demo's producer did not start; its log is {self._log}")
        self.seeds = json.loads(line)["seeds"]
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End it; kill it where it does not listen."""
        self._process.terminate()
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
