"""A driver of an official client as a process: its orders, its JSON lines, its end."""

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Timer
from types import TracebackType
from typing import Any, Self

import pytest

PATIENCE_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class VbucketReport:
    """What the client holds of one vbucket; the events are all that came, rolled back or not."""

    seqno: int
    mutations: int
    deletions: int
    expirations: int
    documents: int
    digest: str

    @classmethod
    def of(cls, line: Mapping[str, Any]) -> "VbucketReport":
        return cls(*(line[name] for name in cls.__dataclass_fields__))


class Driver:
    """A running driver. It is ended, and its failure shown, when the block is left."""

    def __init__(self, command: Sequence[str], password: str, log: Path) -> None:
        self.events: list[dict[str, Any]] = []
        self._log = log
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env={**os.environ, "DRIVER_PASSWORD": password},
            )
        self._watchdog = Timer(PATIENCE_SECONDS, self._process.kill)
        self._watchdog.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._watchdog.cancel()
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def until(self, event: str) -> list[dict[str, Any]]:
        """Read lines up to the next one of this kind; return them."""
        assert self._process.stdout is not None
        found: list[dict[str, Any]] = []
        while not found or found[-1]["event"] != event:
            line = self._process.stdout.readline()
            if not line:
                pytest.fail(f"waited for {event!r}, the driver ended:\n{self._last_words()}")
            found.append(json.loads(line))
            self.events.append(found[-1])
        return found

    def report_at(self, goals: Sequence[str]) -> dict[int, VbucketReport]:
        """Let it wait for ``goals`` (``vbucket:uuid:seqno``); return what it then holds."""
        assert self._process.stdin is not None
        self._process.stdin.write(" ".join(["await", *goals]) + "\n")
        self._process.stdin.flush()
        return self.report()

    def report(self) -> dict[int, VbucketReport]:
        """Return what it says it holds when it next does."""
        lines = self.until("reported")
        return {
            line["vbucket"]: VbucketReport.of(line) for line in lines if line["event"] == "vbucket"
        }

    def told(self, event: str) -> dict[int, dict[str, Any]]:
        """Return the last line of a kind by vbucket."""
        return {line["vbucket"]: line for line in self.events if line["event"] == event}

    def finish(self) -> None:
        """Let it end in good order."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        status = self._process.wait(PATIENCE_SECONDS)
        assert status == 0, self._last_words()

    def _last_words(self) -> str:
        return self._log.read_text(encoding="utf-8", errors="replace")[-3000:]
