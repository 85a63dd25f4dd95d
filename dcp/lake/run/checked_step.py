"""Times a step of a check, and tells what it found, or the error that it ended with."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import StrEnum
from time import monotonic
from typing import Annotated, Any

from dcp.errors import DcplakeError
from dcp.lake.tables.records import SPREAD, plain


class StepState(StrEnum):
    """The end of a step: with a warning a run works, but lacks something, or works only for a
    while.
    """

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class CheckedStep:
    name: Annotated[str, "step"]
    state: StepState
    seconds: float
    found: str
    """The finding in words."""
    facts: Annotated[Mapping[str, Any], SPREAD] = field(default_factory=dict)
    """The finding for machines."""

    def to_json(self) -> dict[str, Any]:
        return {**plain(self), "seconds": round(self.seconds, 3)}


@dataclass(slots=True)
class Finding:
    text: str = ""
    warnings: list[str] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)

    def say(self, text: str, **facts: Any) -> None:
        self.text = text
        self.facts |= facts

    def checked(self, name: str, begun: float) -> CheckedStep:
        found = "; ".join([self.text, *self.warnings])
        state = StepState.WARNING if self.warnings else StepState.OK
        return CheckedStep(name, state, monotonic() - begun, found, self.facts)


Tell = Callable[[CheckedStep], None]
"""Hears of each finished step; another thread calls it for the set-up of a connection."""


@contextmanager
def checking(name: str, tell: Tell) -> Iterator[Finding]:
    begun = monotonic()
    finding = Finding()
    try:
        yield finding
    except DcplakeError as error:
        tell(CheckedStep(name, StepState.FAILED, monotonic() - begun, str(error)))
        raise
    tell(finding.checked(name, begun))


@contextmanager
def attempts(tell: Tell) -> Iterator[Tell]:
    """Give a function that tells steps of attempts: a failed one is a warning if another
    follows.
    """
    failed: CheckedStep | None = None

    def tell_when_decided(step: CheckedStep) -> None:
        nonlocal failed
        if failed is not None:
            tell(replace(failed, state=StepState.WARNING))
        failed = step if step.state is StepState.FAILED else None
        if failed is None:
            tell(step)

    try:
        yield tell_when_decided
    finally:
        if failed is not None:
            tell(failed)
