"""Runs commands as processes of their own, and measures all that they start."""

import ctypes
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from signal import SIGCHLD
from statistics import median
from threading import Event, Thread
from time import monotonic
from typing import Final

import psutil

from benchmarks._producer import PASSWORD, USER

_SUBREAPER: Final = 36  # PR_SET_CHILD_SUBREAPER of prctl(2)
_LOOK_SECONDS: Final = 0.2


@dataclass(frozen=True, slots=True)
class CommandCost:
    """What a command took; ``resident_mib`` is the most memory of one process of it.

    That is its own, or that of a process which it started and waited for.
    """

    cpu_seconds: float
    wall_seconds: float
    resident_mib: float


def adopt_orphans() -> None:
    """Become the parent of every process of ours that loses its own."""
    ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)


class _ForgottenCpu:
    """Watches, in a context, the CPU of processes for which their parents never wait.

    A parent that ignores SIGCHLD (the daemon of PySpark's workers) is told nothing of its children,
    so nobody who waits for the parent learns of them either: wait(2).
    """

    def __init__(self) -> None:
        self.seconds: dict[int, float] = {}
        """The newest of each process, by pid."""
        self._over = Event()
        self._thread = Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "_ForgottenCpu":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(_LOOK_SECONDS):
            for child in psutil.Process().children(recursive=True):
                try:
                    if _ignores_children(child.ppid()):
                        self.seconds[child.pid] = sum(child.cpu_times()[:4])
                except (psutil.NoSuchProcess, OSError):
                    continue  # it ended meanwhile


def _ignores_children(pid: int) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    ignored = int(status.partition("SigIgn:")[2].split(maxsplit=1)[0], 16)
    return bool(ignored >> (SIGCHLD - 1) & 1)


def cost_of(words: Sequence[str]) -> CommandCost:
    """Run a command to its end, and all that it left.

    What loses its parent meanwhile must be adopted by this process (`adopt_orphans`).
    """
    others = {child.pid for child in psutil.Process().children()}
    began = monotonic()
    with _ForgottenCpu() as forgotten:
        process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        _, status, used = os.wait4(process.pid, 0)
        wall_seconds, cpu_seconds = monotonic() - began, used.ru_utime + used.ru_stime
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise subprocess.CalledProcessError(process.returncode, words)
        while left := {child.pid for child in psutil.Process().children()} - others:
            pid, _, of_child = os.wait4(left.pop(), 0)
            cpu_seconds += of_child.ru_utime + of_child.ru_stime
            forgotten.seconds.pop(pid, None)
    cpu_seconds += sum(forgotten.seconds.values())
    return CommandCost(cpu_seconds, wall_seconds, used.ru_maxrss / 1024)


def lake_options(seeds: Sequence[str], folder: Path) -> dict[str, str]:
    """Return the options of a lake of a producer in a folder, where a file holds the password."""
    password = folder / "password"
    password.write_text(PASSWORD)
    return {
        "source.seeds": ",".join(seeds),
        "source.username": USER,
        "source.password_file": str(password),
        "lake.root": str(folder / "lake"),
    }


def sets_of(options: Mapping[str, object]) -> list[str]:
    """Return options as a command takes them."""
    return [word for name, value in options.items() for word in ("--set", f"{name}={value}")]


def report(found: Mapping[str, Sequence[CommandCost]]) -> None:
    """Print what each command took, the first one being the floor."""
    floor = median(each.cpu_seconds for each in next(iter(found.values())))
    print("medians, in turn: CPU and wall seconds, CPU over the first's")
    for title, runs in found.items():
        cpu = median(each.cpu_seconds for each in runs)
        wall = median(each.wall_seconds for each in runs)
        print(f"{title:26} {cpu:7.1f} {wall:7.1f} {cpu / floor:6.2f}")
