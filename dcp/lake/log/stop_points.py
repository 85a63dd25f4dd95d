"""Named steps of a run at which a test can kill or pause it, to prove that nothing is lost.

``DCPLAKE_STOP_AT=<step>[:<count>]=<kill|pause>`` acts when the step is reached for the ``count``-th
time (1 if left out), or each time (0). ``kill`` sends this process SIGKILL. ``pause`` waits until
the file that ``DCPLAKE_STOP_FILE`` names is gone. That file is made first, and where it exists
already nothing happens: so a step in a task that Spark tries again stops one process only. Both may
list several, with commas between them, for threads that are each at a step of their own. Without
``DCPLAKE_STOP_AT`` nothing happens at all.
"""

import os
import signal
import threading
import time
from itertools import zip_longest
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
    "audit.committed",  # what the apply took back is written down (only after a rollback)
)
VARIABLE: Final = "DCPLAKE_STOP_AT"
FILE_VARIABLE: Final = "DCPLAKE_STOP_FILE"
_PAUSE_LIMIT_SECONDS: Final = 1800.0

_counting = threading.Lock()
_reached: dict[str, int] = {}


def reached(step: str) -> None:
    """Note that ``step`` is reached; stop here if the environment asks for it.

    Raises:
        ConfigError: a variable names an unknown step or action, or no file to wait for.
    """
    wanted = os.environ.get(VARIABLE)
    if not wanted:
        return
    with _counting:
        times = _reached[step] = _reached.get(step, 0) + 1
    files = filter(None, os.environ.get(FILE_VARIABLE, "").split(","))
    for each, file in zip_longest(wanted.split(","), files):
        name, count, action = _parse(each or "")
        if step == name and count in (0, times):
            _stop(action, file)


def _stop(action: str, named: str | None) -> None:
    if named is None and action == "pause":
        raise ConfigError(f"{FILE_VARIABLE}: found nothing, expected the file to wait for")
    if named is not None:
        try:
            os.close(os.open(named, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        except FileExistsError:
            return
    if action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif named is not None:
        file, end = Path(named), time.monotonic() + _PAUSE_LIMIT_SECONDS
        while file.exists() and time.monotonic() < end:
            time.sleep(0.05)


def _parse(wanted: str) -> tuple[str, int, str]:
    place, _, action = wanted.partition("=")
    name, _, count = place.partition(":")
    if name not in STEPS or action not in ("kill", "pause") or not (count or "1").isdigit():
        raise ConfigError(
            f"{VARIABLE}: found {wanted!r}, expected <step>[:<count>]=<kill|pause> "
            f"with a step of {', '.join(STEPS)}"
        )
    return name, int(count or "1"), action
