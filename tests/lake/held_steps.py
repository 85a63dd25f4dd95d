"""The steps that a driver is held at, and the files that say so."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from dcp.lake.change_log.stop_points import STEPS, VARIABLE

STEPS_ON_DISK: Final = [step for step in STEPS if not step.endswith(".read_back")]
"""Those that leave something else on the disk: to read a commit back writes nothing."""


def held_files(folder: Path, steps: Iterable[str]) -> list[Path]:
    """Return the file that is there while a driver is held at each step."""
    return [folder / f"held-{step.replace(':', '-')}" for step in steps]


def stops_at(folder: Path, steps: Sequence[str]) -> dict[str, str]:
    """Return the environment of a driver that is held at each of these steps."""
    files = zip(steps, held_files(folder, steps), strict=True)
    return {VARIABLE: ",".join(f"{step}=pause@{file}" for step, file in files)}


def release(held: Iterable[Path]) -> None:
    """Let whoever is held go on."""
    for file in held:
        file.unlink(missing_ok=True)
