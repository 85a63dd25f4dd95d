"""Named steps of a run at which a test can kill or pause it, to prove that it loses nothing.

``DCPLAKE_STOP_AT=<step>[:<count>]=<kill|pause>[@<file>]`` acts when the run reaches the step for
the ``count``-th time (default 1), or each time (0). ``kill`` sends SIGKILL to this process.
``pause`` makes the file, and waits until somebody deletes it. If the file already exists, nothing
happens: if Spark retries a task, the step stops only one process.

The variable may list several steps with commas between them, for threads at different steps.
"""

import os
import re
import signal
import threading
import time
from pathlib import Path
from typing import Final

from dcp.errors import ConfigError

STEPS: Final = (
    "round.planned",  # positions read, cluster asked, nothing done
    "round.received",  # in the Python worker: the first batch of a task was handed to Spark
    "round.committed",  # the append is durable; this process has not read it back
    "round.read_back",  # this process knows that its round is durable
    "apply.planned",  # the MERGE is decided
    "apply.committed",  # the MERGE is durable; this process has not read it back
    "apply.read_back",  # this process knows that its apply is durable; no audit is written yet
    "erase.round",  # the round before an erasure is durable; nothing is erased
    "erase.applied",  # a replica lacks the documents; the log and the files have them
    "erase.log",  # the log lacks them, too
    "erase.purged",  # no file holds them; the request has no answer
    "audit.committed",  # the audit is durable (only after a rollback)
)
VARIABLE: Final = "DCPLAKE_STOP_AT"
_PAUSE_LIMIT_SECONDS: Final = 1800.0

_WANTED: Final = re.compile(
    rf"({'|'.join(map(re.escape, STEPS))})(?::([0-9]+))?=(kill|pause(?=@))(?:@(.+))?"
)

_counting = threading.Lock()
_reached: dict[str, int] = {}


def reached(step: str) -> None:
    """Note that the run has reached ``step``; stop here if the environment asks for it.

    Raises:
        ConfigError: the variable names an unknown step or action, or lacks the file for a pause.
    """
    wanted = os.environ.get(VARIABLE)
    if not wanted:
        return
    with _counting:
        times = _reached[step] = _reached.get(step, 0) + 1
    for each in wanted.split(","):
        if (found := _WANTED.fullmatch(each)) is None:
            raise ConfigError(
                f"{VARIABLE}: found {each!r}, expected <step>[:<count>]=kill[@<file>] or "
                f"<step>[:<count>]=pause@<file>, with a step of {', '.join(STEPS)}"
            )
        name, count, action, file = found.groups()
        if step == name and int(count or 1) in (0, times):
            _stop(action, file)


def _stop(action: str, file: str | None) -> None:
    if file is not None:
        try:
            os.close(os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        except FileExistsError:
            return
    if action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    end = time.monotonic() + _PAUSE_LIMIT_SECONDS
    while action == "pause" and Path(file or "").exists() and time.monotonic() < end:
        time.sleep(0.05)
