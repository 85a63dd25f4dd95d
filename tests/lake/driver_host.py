"""A driver in a process of its own that takes one command after the other: tests stop and kill it.

Commands are those of ``dcplake``, with its exit codes. They share one Spark session, so that a
dozen of drivers that are stopped and woken cost one start of a JVM. Which statement it is in is
noted in a file (`tests.lake.statement_log`).
"""

import contextlib
import io
import json
import os
import select
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final, cast

import psutil

from dcp.cli.main import main as dcplake
from dcp.lake.change_log import stop_points
from dcp.lake.change_log.stop_points import VARIABLE
from dcp.lake.spark.session import build_session
from tests.lake.held_steps import held_files, release, stops_at
from tests.lake.process_tree import process_tree, stop_tree, wake_tree
from tests.lake.statement_log import ENDED, install, log_statements, read_statements
from tests.quick_spark import QUICK_CONF

QUICKLY_GIVEN_UP: Final = {"spark.network.timeout": "40s", "spark.network.timeoutInterval": "5s"}
"""After so long without a heartbeat Spark gives an executor up, but in local mode."""
WAIT_SECONDS: Final = 300.0
_SECONDS: Final = 0.05
_QUICKLY_SECONDS: Final = 0.002
_OF_WORKERS: Final = "round.received"


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended: its exit code, and all that it printed."""

    code: int
    output: str


class DriverHost:
    """The test's side. ``environment`` is seen by the JVM and its Python workers only."""

    def __init__(
        self, folder: Path, conf: Mapping[str, str] | None = None, **environment: str
    ) -> None:
        folder.mkdir()
        self._folder = folder
        self.receiving = folder / "receiving"
        """A file that is there while no worker shall be held. Without it a Python worker is held
        after its first batch, and makes it to say so."""
        self.receiving.touch()
        environment |= {VARIABLE: f"{_OF_WORKERS}:0=pause@{self.receiving}"}
        self._statements = folder / "none"
        self._commands = 0
        self._is_busy = False
        self._output = (folder / "host.log").open("wb")
        words = [sys.executable, "-m", "tests.lake.driver_host", str(folder), json.dumps(conf)]
        self._process = subprocess.Popen(
            words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._output,
            env=os.environ | environment,
            start_new_session=True,
        )

    def begin(self, words: Sequence[str], steps: Sequence[str] = ()) -> list[Path]:
        """Start a command; return the file that is there while it is held at each of the steps.

        At the step of Python workers each is held whenever the file is not there.
        """
        self._require_alive("its command")
        self._commands += 1
        self._is_busy = True
        folder = self._folder / f"command-{self._commands}"
        folder.mkdir()
        self._statements = folder / "statements"
        order = {
            "words": list(words),
            "statements": str(self._statements),
            "environment": stops_at(folder, steps) if steps else {},
        }
        held = dict(zip(steps, held_files(folder, steps), strict=True))
        if _OF_WORKERS in held:
            held[_OF_WORKERS] = self.receiving
            self.receiving.unlink(missing_ok=True)
        else:
            self.receiving.touch()
        stdin = cast("IO[bytes]", self._process.stdin)
        stdin.write(json.dumps(order).encode() + b"\n")
        stdin.flush()
        return [*held.values()]

    def ended(self, held: Iterable[Path] = ()) -> Ended:
        """Let whoever is held go on, and wait for the command's end."""
        held = [*held]
        while held and not self._has_ended():
            release(held)
            time.sleep(_SECONDS)
        stdout = cast("IO[bytes]", self._process.stdout)
        line = stdout.readline()
        assert line, f"the host ended before its command:\n{self._log()}"
        self._is_busy = False
        return Ended(**json.loads(line))

    @property
    def is_free(self) -> bool:
        """Whether it can begin a command: it lives, and nothing is left of the one before."""
        return self._process.poll() is None and not self._is_busy

    @property
    def statements(self) -> list[str]:
        """The statements that the command has begun, and where each ended."""
        return read_statements(self._statements)

    @property
    def statement(self) -> str | None:
        """The statement that it is in; None between two."""
        newest = (self.statements or [ENDED])[-1]
        return None if newest == ENDED else newest

    def wait_until(self, condition: Callable[[], object], what: str) -> None:
        """Wait, looking often: what is waited for may not take long itself."""
        self._wait(condition, what, _QUICKLY_SECONDS)

    def wait_for(self, file: Path, held: Iterable[Path] = ()) -> None:
        """Wait until it is held at another step; meanwhile let go on whoever is held at these."""
        held = [*held]

        def is_there() -> bool:
            release(held)
            return file.exists()

        self._wait(is_there, str(file), _SECONDS)

    def _wait(self, condition: Callable[[], object], what: str, seconds: float) -> None:
        end = time.monotonic() + WAIT_SECONDS
        while not condition():
            self._require_alive(what)
            assert not self._has_ended(), f"the command ended before {what}: {self.ended()}"
            assert time.monotonic() < end, f"waited {WAIT_SECONDS} s for {what}"
            has_begun = self._statements.exists()  # the first command waits for Spark's start
            time.sleep(seconds if has_begun else _SECONDS)

    def _has_ended(self) -> bool:
        stdout = cast("IO[bytes]", self._process.stdout)
        return bool(select.select([stdout], [], [], 0)[0])

    @property
    def pid(self) -> int:
        """The driver's; its JVM and their Python workers are below it."""
        return self._process.pid

    def stop(self) -> None:
        """Stop the driver, its JVM and their Python workers, all of them, wherever they are."""
        stop_tree(self._process.pid)

    def wake(self) -> None:
        """Let all of them go on."""
        wake_tree(self._process.pid)

    def kill(self) -> None:
        """End all of them at this instant: none can say or write another word."""
        if self._process.returncode is not None:
            return
        with contextlib.suppress(psutil.NoSuchProcess):
            self.stop()
            for each in process_tree(self._process.pid):
                with contextlib.suppress(psutil.NoSuchProcess):
                    each.kill()
        self._close()

    def kill_driver(self) -> None:
        """End the driver alone; wake the others, and return when they have ended by themselves."""
        others = psutil.Process(self._process.pid).children(recursive=True)
        self._close(kill=True)
        for each in others:
            with contextlib.suppress(psutil.NoSuchProcess):
                each.resume()
        _, alive = psutil.wait_procs(others, WAIT_SECONDS)
        assert not alive, f"found processes without their driver: {alive}"

    def _require_alive(self, what: str) -> None:
        assert self._process.poll() is None, f"the host ended before {what}:\n{self._log()}"

    def _log(self) -> str:
        return (self._folder / "host.log").read_text()

    def _close(self, *, kill: bool = False) -> None:
        if kill:
            self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._output):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()


def main(folder: Path, conf: Mapping[str, str]) -> None:
    """Take commands from standard input, one JSON object each, until it ends."""
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what a thread prints later is no reply
    handler = signal.getsignal(signal.SIGINT)
    build_session(
        app_name="dcplake tests: a host of drivers",
        master="local[2]",
        driver_memory="1g",
        spark_log=folder / "spark.log",
        extra=QUICK_CONF | {"spark.sql.warehouse.dir": str(folder / "warehouse"), **conf},
        on_s3="spark.hadoop.fs.s3.impl" in conf,
    )
    assert signal.getsignal(signal.SIGINT) is handler, "Spark's own would cancel a running round"
    os.environ.pop(VARIABLE, None)
    install()
    for line in sys.stdin:
        order = json.loads(line)
        stop_points._reached.clear()
        os.environ.update(order["environment"])
        log_statements(Path(order["statements"]))
        print(json.dumps(_run(order["words"])), file=replies, flush=True)
        for name in order["environment"]:
            del os.environ[name]


def _run(words: Sequence[str]) -> dict[str, object]:
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        try:
            code = dcplake(words)
        except BaseException:  # what the interpreter would say of it, and its exit code
            traceback.print_exc()
            code = 1
    return {"code": code, "output": output.getvalue()}


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]) or {})
