"""Named steps of a run at which a test can kill or pause it, to prove that nothing is lost.

``DCPLAKE_STOP_AT=<step>[:<count>]=<kill|pause>`` acts when the step is reached for the ``count``-th
time (1 if left out). ``kill`` sends this process SIGKILL. ``pause`` writes the file that
``DCPLAKE_STOP_FILE`` names and waits until it is gone. Without the variable, nothing happens.
"""

import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from dcp.errors import ConfigError

STEPS: Final = (
    "round.planned",  # positions read, cluster asked, nothing done
    "round.received",  # in the Python worker: the first batch of a task was handed to Spark
    "round.committed",  # the append is durable; this process has not read it back
    "round.read_back",  # this process knows that its round is durable
    "apply.planned",  # the MERGE is decided
    "apply.committed",  # the MERGE is durable and read back
)
VARIABLE: Final = "DCPLAKE_STOP_AT"
FILE_VARIABLE: Final = "DCPLAKE_STOP_FILE"
_PAUSE_LIMIT_SECONDS: Final = 300.0

_reached: dict[str, int] = {}


def reached(step: str, environment: Mapping[str, str] | None = None) -> None:
    """Say that ``step`` is reached; stop here if the environment asks for it.

    Raises:
        ConfigError: the variable names an unknown step or action.

    """
    wanted = (os.environ if environment is None else environment).get(VARIABLE)
    if not wanted:
        return
    name, count, action = _parse(wanted)
    _reached[step] = _reached.get(step, 0) + 1
    if step != name or _reached[step] != count:
        return
    if action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    _pause(environment)


def _parse(wanted: str) -> tuple[str, int, str]:
    place, _, action = wanted.partition("=")
    name, _, count = place.partition(":")
    if name not in STEPS or action not in ("kill", "pause") or not (count or "1").isdigit():
        raise ConfigError(
            f"{VARIABLE}: found {wanted!r}, expected <step>[:<count>]=<kill|pause> "
            f"with a step of {', '.join(STEPS)}"
        )
    return name, int(count or 1), action


def _pause(environment: Mapping[str, str] | None) -> None:
    file = Path((os.environ if environment is None else environment)[FILE_VARIABLE])
    file.write_text(str(os.getpid()))
    end = time.monotonic() + _PAUSE_LIMIT_SECONDS
    while file.exists() and time.monotonic() < end:
        time.sleep(0.05)
