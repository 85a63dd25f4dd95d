"""Reports the set-up of a connection step by step, with the finding of each step."""

import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from time import monotonic
from types import TracebackType
from typing import Annotated, Any, Final

from dcp.client.addresses import NodeAddress
from dcp.client.certificates import certificate_names, common_names
from dcp.client.reader import SetUpStep
from dcp.client.transport import TCP, TLS
from dcp.errors import DcplakeError
from dcp.protocol import bootstrap
from dcp.protocol.negotiation import refused_features
from dcp.records import SPREAD, Record
from dcp.wire.vocabulary import HelloFeature


class StepState(StrEnum):
    """The end of a step. After a warning a run works, but lacks something, or will fail soon."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class CheckedStep(Record):
    name: Annotated[str, "step"]
    state: StepState
    seconds: float
    found: str
    facts: Annotated[Mapping[str, Any], SPREAD] = field(default_factory=dict)


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
        return CheckedStep(name, state, round(monotonic() - begun, 3), found, self.facts)


Tell = Callable[[CheckedStep], None]
"""Gets each finished step. Another thread calls it for the set-up of a connection."""


@contextmanager
def checking(name: str, tell: Tell) -> Iterator[Finding]:
    begun = monotonic()
    finding = Finding()
    try:
        yield finding
    except DcplakeError as error:
        tell(_failed(name, begun, error))
        raise
    tell(finding.checked(name, begun))


def _failed(name: str, begun: float, error: DcplakeError) -> CheckedStep:
    return CheckedStep(name, StepState.FAILED, round(monotonic() - begun, 3), str(error))


@contextmanager
def attempts(tell: Tell) -> Iterator[Tell]:
    """Give a function that reports steps. A failed attempt is a warning if another one follows."""
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


_SECONDS_A_DAY: Final = 86_400
_FEW_DAYS: Final = 30
"""A certificate that ends within this time is worth a warning."""

_LINES: Final = {
    TCP: "TCP",
    TLS: "TLS",
    bootstrap.HELLO.name: "HELLO",
    bootstrap.LIST_MECHANISMS.name: "SASL",
    bootstrap.AUTHENTICATE.name: "SASL",
    bootstrap.CONTINUE_AUTHENTICATION.name: "SASL",
    bootstrap.SELECT_BUCKET.name: "bucket",
    bootstrap.GET_CLUSTER_CONFIG.name: "bucket",
}
_DCP: Final = "DCP"
"""The steps VERSION, DCP_OPEN and the controls."""


class SetUpCheck(AbstractContextManager["SetUpCheck"]):
    """Reports the steps of one connection's set-up, each when the next one begins.

    The block sets the connection up. `finding` is that of the last step, which ends with the block.
    """

    def __init__(self, node: NodeAddress, tell: Tell, *, is_first: bool) -> None:
        """``is_first``: report the steps before DCP, too. Later connections repeat those."""
        self._node = node
        self._tell = tell
        self._is_first = is_first
        self._name = ""
        self._begun = monotonic()
        self.finding = Finding()
        self.progress: bootstrap.Bootstrap | None = None

    def begin(self, step: SetUpStep) -> None:
        self.progress = step.progress
        name = _LINES.get(step.name, _DCP)
        if step.name and name != self._name:
            if self._name and self._is_first:
                finding = Finding()
                _describe(self._name, step, self._node, finding)
                with suppress(BrokenPipeError):  # this is not its thread: the next line ends it
                    self._tell(finding.checked(self._name, self._begun))
            self._name, self._begun = name, monotonic()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self._tell(self.finding.checked(self._name, self._begun))
        elif isinstance(error, DcplakeError):
            self._tell(_failed(self._name, self._begun, error))


def _describe(line: str, step: SetUpStep, node: NodeAddress, finding: Finding) -> None:
    match line:
        case "TCP":
            finding.say(f"connected to {node}")
        case "TLS":
            _describe_tls(step, finding)
        case "HELLO":
            granted = [HelloFeature(code).name for code in sorted(step.progress.features)]
            refused = refused_features(step.progress.features)
            finding.say(f"granted {', '.join(granted)}", granted=granted, refused=refused)
            finding.warnings.extend(costs_of(refused))
        case "SASL":
            mechanism, user = step.progress.mechanism, step.progress.credentials.username
            finding.say(f"signed in as {user!r} by {mechanism}", mechanism=mechanism)


def _describe_tls(step: SetUpStep, finding: Finding) -> None:
    certificate = step.certificate
    names = certificate_names(certificate)
    issuer = ", ".join(common_names(certificate.get("issuer", ()))) or "(no name)"
    ends = ssl.cert_time_to_seconds(certificate["notAfter"])
    days = int((ends - time.time()) // _SECONDS_A_DAY)
    finding.say(
        f"{step.tls_version}, certificate of {', '.join(names)}, by {issuer}, {days} days left",
        names=names,
        issuer=issuer,
        days_left=days,
    )
    if days < _FEW_DAYS:
        finding.warnings.append("renew it soon")


def costs_of(refused: Mapping[str, str]) -> list[str]:
    return [f"without {name}: {lost}" for name, lost in refused.items()]
