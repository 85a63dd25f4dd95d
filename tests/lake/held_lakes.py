"""Lakes as a driver leaves them that is killed at one of several steps, for one start of Spark.

The driver is held at one step after the other. What a kill would leave is what is on the disk then:
a copy of the lake is taken while all its processes are stopped.
"""

import shutil
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Final

from dcp.lake.log.stop_points import FILE_VARIABLE, STEPS, VARIABLE
from tests.lake.job_process import Job
from tests.lake.process_tree import stopped_tree

STEPS_ON_DISK: Final = [step for step in STEPS if not step.endswith(".read_back")]
"""Those that leave something else on the disk: to read a commit back writes nothing."""


def held_files(folder: Path, steps: Iterable[str]) -> list[Path]:
    """Return the file that is there while a driver is held at each step."""
    return [folder / f"held-{step.replace(':', '-')}" for step in steps]


def stops_at(folder: Path, steps: Sequence[str]) -> dict[str, str]:
    """Return the environment of a driver that is held at each of these steps."""
    return {
        VARIABLE: ",".join(f"{step}=pause" for step in steps),
        FILE_VARIABLE: ",".join(map(str, held_files(folder, steps))),
    }


def copies_at(job: Job, held: Sequence[Path], root: Path) -> Iterator[Path]:
    """Give a folder with a copy of the lake at ``root`` for each step that a driver is held at.

    The driver goes on from each of them until it is held at the last one, which is for the caller
    to kill it at.
    """
    job.wait_for(held[0])
    for number, (file, following) in enumerate(pairwise(held), 1):
        folder = file.with_name(f"left-{file.name}")
        with stopped_tree(job.process.pid):
            shutil.copytree(root, folder / "lake")
        yield folder
        job.wait_until(str(following), partial(is_past, held[:number], following))


def is_past(held: Iterable[Path], following: Path) -> bool:
    """Let whoever is held go on, until the next step is reached: another task may come later."""
    for file in held:
        file.unlink(missing_ok=True)
    return following.exists()
