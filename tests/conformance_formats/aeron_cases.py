"""Cases of Aeron's flow control: an object with some of the lists below, each of cases with an id.

    flow_control_cases              steps of a receiver group, each with the limit before it
    parse_cases                     an fc= parameter, and what the Java and the C driver make of it
    liveness_cases                  steps of the list of receivers that were heard lately
    status_message_validity_cases   is a status message so far from the sender taken
    connected_truth_table           is a publication connected

A case passes when the product's code answers every step as expected. Where Aeron's drivers do not
agree there is a choice, written down in ``docs/howto/relay.md``, and the tally counts how it fell:

- ``defect``: the case shows what a driver does although it is wrong. It passes when we answer
  otherwise, and it is understood: a model of that driver (``aeron_java.py``) gives its answer.
- ``divergence``: our choice is the C driver's answer. A case of C passes when we give that answer,
  one of Java when we do not and the model of it does. (Should we agree with Java, it passes, too.)
- ``parse_cases``: what both say must come out. Where one refuses we refuse; where they take a text
  with different values, ours are those of one of them.

The group's tag is not compared where the strategy knows none (C keeps it for ``min``, Java does
not). A step or a section that is not known here fails, and says so.
"""

from collections.abc import Callable, Iterator
from typing import Any, Final

from dcp.errors import ConfigError, DcplakeError
from dcp.protocol.flow_spec import parse_flow_spec
from dcp.protocol.flow_strategy import GROUP_STRATEGIES, FlowSpec, FlowStrategy
from dcp.protocol.receiver_group import StatusMessage
from tests.conformance_formats.aeron_java import JavaReceiverGroup
from tests.conformance_formats.aeron_receivers import AeronReceiverGroup
from tests.conformance_formats.case_file import CaseFile, CaseResult
from tests.conformance_formats.receiver_liveness import (
    ReceiverLiveness,
    is_acceptable,
    is_connected,
)

Case = dict[str, Any]
Compared = Iterator[tuple[str, object, object]]
"""What was asked, what was found, what was expected."""

MALFORMED: Final = (ValueError, TypeError, KeyError, AttributeError, OverflowError, DcplakeError)
"""What reading a case may raise: that case fails, the others are run."""

_AS_BOTH: Final = "as Aeron"
_AS_C: Final = "as Aeron's C driver alone"
_AS_JAVA: Final = "as Aeron's Java driver alone"


class AeronCases:
    """The format's entry in the registry of ``tests/conformance.py``."""

    name = "Aeron flow control cases"

    def recognises(self, file: CaseFile) -> bool:
        """Whether the file is an object with at least one of the sections."""
        content = file.content
        return isinstance(content, dict) and any(
            isinstance(content.get(section), list) for section in _SECTIONS
        )

    def run(self, file: CaseFile) -> Iterator[CaseResult]:
        """Yield one result per case of each section."""
        yield from run_sections(file, _SECTIONS)


def run_sections(
    file: CaseFile, sections: dict[str, Callable[[Case], CaseResult]]
) -> Iterator[CaseResult]:
    """Run each list of cases that a file has; one of a name not known here is a failure."""
    for section, cases in file.content.items():
        run = sections.get(section)
        if run is None:
            if isinstance(cases, list):
                expected = ", ".join(sections)
                yield CaseResult(section, (f"found an unknown section, expected: {expected}",))
            continue
        for index, case in enumerate(cases):
            name = f"{section} {index}"
            try:
                name = str(case.get("id", name))
                yield run(case)
            except MALFORMED as error:
                yield CaseResult(name, (f"{type(error).__name__}: {error}",))


def result_of(case: Case, compared: Compared, tally: str = "") -> CaseResult:
    """Return the result of a case from what was compared."""
    failures = tuple(
        f"{what}: found {found}, expected {expected}"
        for what, found, expected in compared
        if found != expected
    )
    counted = {} if failures or not tally else {tally: 1}
    return CaseResult(str(case.get("id", "without an id")), failures, counted)


# --- receiver groups ----------------------------------------------------------------------------


def _spec_of(case: Case) -> FlowSpec:
    context = case.get("context") or {}

    def configured(strategy: FlowStrategy) -> FlowSpec:
        """What a driver's configuration says where the parameter says nothing."""
        multiple = context.get("rrwm", 4)
        if strategy not in GROUP_STRATEGIES:
            return FlowSpec(strategy, retransmit_multiple=multiple)
        return FlowSpec(
            strategy,
            context.get("group_tag", -1) if strategy is FlowStrategy.TAGGED else None,
            context.get("group_min_size", 0),
            context.get("receiver_timeout_ns", 5_000_000_000),
            multiple,
        )

    if case["fc"] is None:
        return configured(FlowStrategy(context.get("default_strategy", FlowStrategy.MAX)))
    return parse_flow_spec(case["fc"], configured)


def _group_answers(kind: type[AeronReceiverGroup], case: Case) -> Compared:
    group = kind(_spec_of(case))
    for number, step in enumerate(case["steps"], 1):
        name = f"step {number}, {step.get('op')}"
        answer = _GROUP_STEPS.get(step.get("op"))
        if answer is None:
            yield name, "an unknown step", f"one of {', '.join(_GROUP_STEPS)}"
            return
        found = answer(group, step)
        expected = [step[key] for key in _EXPECTATIONS if key in step]
        if expected:
            yield name, found, expected[0]


_EXPECTATIONS: Final = ("expect_limit", "expect_length", "expect")


def _status_message(group: AeronReceiverGroup, step: Case) -> object:
    message = StatusMessage(
        step["receiver"],
        step["position"],
        step["window"],
        step.get("tag"),
        step.get("eos", False),
    )
    return group.on_status_message(message, step["sender_limit"], step["now_ns"])


_GROUP_STEPS: Final[dict[str, Callable[[AeronReceiverGroup, Case], object]]] = {
    "sm": _status_message,
    "idle": lambda group, step: group.on_idle(step["sender_limit"], step["now_ns"]),
    "has_required": lambda group, _: group.has_required,
    "receiver_count": lambda group, _: group.receiver_count,
    "setup_trigger": lambda group, step: group.on_setup_trigger(step.get("tag")),
    "setup_sent": lambda group, step: group.on_setup_sent(step["sender_limit"], step["now_ns"]),
    "error": lambda group, step: group.on_error(step["receiver"], step.get("tag")),
    "retransmit": lambda group, step: group.retransmit_bytes(
        step["term_offset"], step["resend_length"], step["term_length"]
    ),
}


def _flow_control_case(case: Case) -> CaseResult:
    ours = result_of(case, _group_answers(AeronReceiverGroup, case), _AS_BOTH)
    kind, run_on = case.get("kind"), case.get("run_on") or []
    if kind == "divergence" and "c" in run_on:
        return result_of(case, _group_answers(AeronReceiverGroup, case), _AS_C)
    if kind not in ("defect", "divergence"):
        return ours
    if not ours.failures:
        same = "found the driver's wrong answers, expected others"
        return CaseResult(ours.name, (same,)) if kind == "defect" else ours
    if "java" in run_on:
        theirs = result_of(case, _group_answers(JavaReceiverGroup, case))
        if theirs.failures:
            understood = "a case that shows what Java does otherwise; its model says: "
            return CaseResult(ours.name, tuple(understood + each for each in theirs.failures))
    return CaseResult(ours.name, tally={_AS_C: 1})


# --- the parameter ------------------------------------------------------------------------------

_COMPARED: Final = {
    FlowStrategy.MAX: ("strategy", "rrwm"),
    FlowStrategy.MIN: ("strategy", "group_min_size", "receiver_timeout_ns", "rrwm"),
    FlowStrategy.TAGGED: ("strategy", "group_tag", "group_min_size", "receiver_timeout_ns", "rrwm"),
}
"""What each strategy takes from its parameter."""


def _parse_case(case: Case) -> CaseResult:
    name, java, c = str(case["id"]), _meant(case["java"]), _meant(case["c"])
    ours, why = _ours(case)
    if case.get("agree", java == c) != (java == c):
        found = f"found java {java} and c {c}, expected them as agree: {case['agree']} says"
        return CaseResult(name, (found,))
    if java == c:
        choices = {_AS_BOTH: java}
    elif None in (java, c):
        choices = {_AS_JAVA if java is None else _AS_C: None}
    else:
        choices = {_AS_JAVA: java, _AS_C: c}
    for tally, expected in choices.items():
        if ours == expected:
            return CaseResult(name, tally={tally: 1})
    expected_text = " or ".join(_shown(each) for each in choices.values())
    found = f"fc={case['fc']}: found {_shown(ours)}{why}, expected {expected_text}"
    return CaseResult(name, (found,))


def _meant(told: Case) -> Case | None:
    """Return what a driver makes of a parameter, None where it refuses it."""
    if not told["accepted"]:
        return None
    compared = _COMPARED.get(told.get("strategy", ""))
    # A driver that falls back to what it is configured with tells no strategy.
    return {} if compared is None else {key: told[key] for key in compared}


def _ours(case: Case) -> tuple[Case | None, str]:
    try:
        spec = _spec_of(case)
    except ConfigError as error:
        return None, f" ({error})"
    found = {
        "strategy": spec.strategy.value,
        "group_tag": spec.group_tag,
        "group_min_size": spec.group_min_size,
        "receiver_timeout_ns": spec.receiver_timeout_ns,
        "rrwm": spec.retransmit_multiple,
    }
    return {key: found[key] for key in _COMPARED[spec.strategy]}, ""


def _shown(meant: Case | None) -> str:
    return "refused" if meant is None else f"accepted as {meant}"


# --- who is there -------------------------------------------------------------------------------


def _liveness_answers(case: Case) -> Compared:
    receivers = ReceiverLiveness()
    for number, step in enumerate(case["steps"], 1):
        name = f"step {number}, {step.get('op')}"
        match step.get("op"):
            case "sm":
                receivers.on_status_message(step["receiver"], step["now_ns"])
            case "idle":
                receivers.on_idle(step["timeout_ns"], step["now_ns"])
            case "close":
                yield name, receivers.on_closed(step["receiver"]), step["expect"]
            case "alive":
                yield name, receivers.has_live_receiver, step["expect"]
            case _:
                yield name, "an unknown step", "one of sm, idle, close, alive"
                return


def _liveness_case(case: Case) -> CaseResult:
    return result_of(case, _liveness_answers(case), _AS_BOTH)


def _validity_case(case: Case) -> CaseResult:
    position, sender = case["sm_position"], case["sender_position"]
    found = is_acceptable(position, sender, case["term_length"])
    return result_of(case, iter([("accepted", found, case["expect_accepted"])]), _AS_BOTH)


def _connected_case(case: Case) -> CaseResult:
    found = is_connected(
        has_live_receiver=case["has_live_receiver"],
        has_required=case["has_required"],
        has_spies=case["has_spies"],
        spies_count=case["spies_simulate"],
    )
    return result_of(case, iter([("connected", found, case["expect_connected"])]), _AS_BOTH)


_SECTIONS: Final[dict[str, Callable[[Case], CaseResult]]] = {
    "flow_control_cases": _flow_control_case,
    "parse_cases": _parse_case,
    "liveness_cases": _liveness_case,
    "status_message_validity_cases": _validity_case,
    "connected_truth_table": _connected_case,
}
