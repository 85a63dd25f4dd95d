"""Times a step of a check, and tells what it found, or the error that it ended with."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import StrEnum
from time import monotonic
from typing import Any

from dcp.errors import DcplakeError


class StepState(StrEnum):
    """The end of a step: with a warning a run works, without something or not for long."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class CheckedStep:
    """A step that is over: what was found in words, and for machines."""

    name: str
    state: StepState
    seconds: float
    found: str
    facts: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return it as a JSON object."""
        return {
            "step": self.name,
            "state": str(self.state),
            "seconds": round(self.seconds, 3),
            "found": self.found,
            **self.facts,
        }


@dataclass(slots=True)
class Finding:
    """The findings of a step so far."""

    text: str = ""
    warnings: list[str] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)

    def say(self, text: str, **facts: Any) -> None:
        """Say what was found."""
        self.text = text
        self.facts |= facts

    def checked(self, name: str, begun: float) -> CheckedStep:
        """Return the step, over by now."""
        found = "; ".join([self.text, *self.warnings])
        state = StepState.WARNING if self.warnings else StepState.OK
        return CheckedStep(name, state, monotonic() - begun, found, self.facts)


Tell = Callable[[CheckedStep], None]
"""Hears of each step when it is over; of those of a connection's set-up in another thread."""


@contextmanager
def checking(name: str, tell: Tell) -> Iterator[Finding]:
    """Do a step, and tell it: what was found, or the error that it ends with."""
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
    """Give what tells the steps of attempts: a failed one is a warning where another follows it."""
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
