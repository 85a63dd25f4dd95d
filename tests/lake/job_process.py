"""A driver in a process of its own, which a test waits for, stops or kills."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from dcp.lake.config.settings import Settings
from tests.quick_spark import QUICK_CONF, spark_conf_toml

JOBS = Path(__file__).parents[2] / "jobs"
PROCESS_SECONDS = 300.0


class Job:
    """``jobs/replicate.py --once`` in its own process group."""

    words: tuple[str, ...] = ("replicate.py", "--once")

    def __init__(self, settings: Settings, folder: Path, **environment: str) -> None:
        self._log = folder / "job.log"
        config = folder / "job.toml"
        config.write_text('[spark]\nmaster = "local[2]"\n' + spark_conf_toml(QUICK_CONF))
        script, *options = self.words
        words = [sys.executable, str(JOBS / script), "--config", str(config), *options]
        for name, value in {
            "source.seeds": ",".join(settings.source.seeds),
            "source.username": settings.source.username,
            "source.password_file": settings.source.password_file,
            "source.noop_interval_seconds": settings.source.noop_interval_seconds,
            "round.quiet_seconds": settings.round.quiet_seconds,
            "round.target_bytes": settings.round.target_bytes,
            "round.minimum_interval_seconds": settings.round.minimum_interval_seconds,
            "flow_control.window_bytes": settings.flow_control.window_bytes,
            "flow_control.batch_bytes": settings.flow_control.batch_bytes,
            "lake.root": settings.lake.root,
            "lake.lock": str(settings.lake.lock).lower(),
        }.items():
            words += ["--set", f"{name}={value}"]
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                words,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=os.environ | environment,
                start_new_session=True,
            )

    def wait(self) -> int:
        """Return the exit code; whatever the driver left running ends too."""
        try:
            return self.process.wait(PROCESS_SECONDS)
        finally:
            self.end()

    def end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def output(self) -> str:
        return self._log.read_text()

    def wait_for(self, file: Path) -> None:
        """Wait until the process has made ``file``."""
        self.wait_until(str(file), file.exists)

    def wait_until(self, what: str, holds: Callable[[], bool]) -> None:
        """Wait until something holds, while the process lives."""
        end = time.monotonic() + PROCESS_SECONDS
        while not holds():
            assert self.process.poll() is None, f"the job ended early:\n{self.output()}"
            assert time.monotonic() < end, f"waited {PROCESS_SECONDS} s for {what}"
            time.sleep(0.05)


class EndlessJob(Job):
    """The same without ``--once``."""

    words = ("replicate.py",)
