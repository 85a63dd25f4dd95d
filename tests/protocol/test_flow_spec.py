"""The fc= parameter: what is said about wrong ones, and that what is written is read again.

Also that nothing else can be made than what a parameter can say.
"""

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcp.errors import ConfigError
from dcp.protocol.flow_spec import parse_flow_spec
from dcp.protocol.flow_strategy import NEVER_NS, FlowSpec, FlowStrategy

SECOND_NS = 1_000_000_000


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("max", FlowSpec(FlowStrategy.MAX, None)),
        ("max,", FlowSpec(FlowStrategy.MAX, None)),
        ("min,g:7/2,t:1s", FlowSpec(FlowStrategy.MIN, None, 2, SECOND_NS)),
        ("min,g:-", FlowSpec(FlowStrategy.MIN, None)),
        ("min,g:abc/3", FlowSpec(FlowStrategy.MIN, None, 3)),
        ("min,g:99999999999999999999/3", FlowSpec(FlowStrategy.MIN, None, 3)),
        ("tagged,g:1001/3,t:5s", FlowSpec(FlowStrategy.TAGGED, 1001, 3, 5 * SECOND_NS)),
        ("tagged,g:1/2,g:5", FlowSpec(FlowStrategy.TAGGED, 5, 2)),
        ("tagged,g:5,g:/6", FlowSpec(FlowStrategy.TAGGED, 5, 6)),
        ("tagged,g:/-0", FlowSpec(FlowStrategy.TAGGED, -1, 0)),
        ("tagged,g:-9223372036854775808", FlowSpec(FlowStrategy.TAGGED, -(2**63))),
        (f"min,rrwm:{'0' * 5000}3", FlowSpec(FlowStrategy.MIN, None, retransmit_multiple=3)),
        ("tagged,rrwm:2,rrwm:+3", FlowSpec(FlowStrategy.TAGGED, -1, retransmit_multiple=3)),
        ("min,t:9223372036854775807", FlowSpec(FlowStrategy.MIN, None, 0, NEVER_NS)),
        ("min,t:9223372037s", FlowSpec(FlowStrategy.MIN, None, 0, NEVER_NS)),
    ],
)
def test_what_a_parameter_says(text: str, spec: FlowSpec) -> None:
    assert parse_flow_spec(text) == spec


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "at character 1: found '', expected a strategy: max, min or tagged"),
        ("unicast", "at character 1: found 'unicast', expected a strategy"),
        (" min", "found ' min'"),
        (",min", "at character 1: found ''"),
        ("max,t:5s", "at character 5: found 't:5s', expected an option of max: rrwm:"),
        ("min,,", "at character 5: found '', expected an option of min: g:, t:, rrwm:"),
        ("tagged,g:1/3,t:5m", "at character 16: found '5m', expected a duration"),
        ("tagged,g:1/3x", "at character 12: found '3x', expected a group size from 0 to"),
        ("tagged,g:1f2/3", "at character 10: found '1f2', expected a group tag"),
        ("tagged,g:", "at character 10: found '', expected a group: TAG, /SIZE or TAG/SIZE"),
        ("min,g:5x/3", "at character 7: found '5x', expected a group tag"),
        ("min,g:99999999999999999999", "expected a group tag: a decimal number of 64 bits"),
        ("min,g:/-1", "at character 8: found '-1', expected a group size"),
        ("min,g:/00000000003", "found '00000000003', expected a group size"),
        ("min,t:9223372036854775808", "expected a duration"),
        ("min,t:99999999999999999999s", "expected a duration"),
        ("min,t:+5s", "expected a duration"),
        ("min,t:\u0665s", "expected a duration"),
        ("tagged,g:\u0665", "expected a group tag"),
        ("min,rrwm:2147483648", "at character 10: found '2147483648', expected a number from 1 to"),
        ("min,rrwm: 2", "found ' 2', expected a number"),
    ],
)
def test_a_wrong_parameter_is_refused_with_the_place(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_flow_spec(text)
    assert str(caught.value).startswith(f"fc={text}: at character ")
    assert message in str(caught.value)


def test_a_long_parameter_is_not_repeated_whole() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_flow_spec("x" * 100_000)
    assert len(str(caught.value)) < 600


def test_numbers_that_the_text_leaves_out_are_as_configured() -> None:
    configured = {
        FlowStrategy.MAX: FlowSpec(FlowStrategy.MAX, retransmit_multiple=9),
        FlowStrategy.MIN: FlowSpec(FlowStrategy.MIN, None, 2, 7, 9),
        FlowStrategy.TAGGED: FlowSpec(FlowStrategy.TAGGED, 5, 2, 7, 9),
    }
    bare = configured.__getitem__
    assert parse_flow_spec("tagged,t:8", bare) == FlowSpec(FlowStrategy.TAGGED, 5, 2, 8, 9)
    assert {each: parse_flow_spec(each.value, bare) for each in configured} == configured


def test_without_configuration_they_are_aerons() -> None:
    assert parse_flow_spec("max") == FlowSpec()
    assert parse_flow_spec("min") == FlowSpec(FlowStrategy.MIN, None, 0, 5 * SECOND_NS, 4)
    assert parse_flow_spec("tagged") == FlowSpec(FlowStrategy.TAGGED, -1, 0, 5 * SECOND_NS, 4)


OF_GROUPS = (FlowStrategy.MIN, FlowStrategy.TAGGED)
ILLEGAL: list[tuple[FlowStrategy, str, Any]] = [
    *((each, "group_tag", 5) for each in FlowStrategy if each is not FlowStrategy.TAGGED),
    *((each, "group_min_size", 1) for each in FlowStrategy if each not in OF_GROUPS),
    *((each, "receiver_timeout_ns", 1) for each in FlowStrategy if each not in OF_GROUPS),
    *(
        (each, "retransmit_multiple", wrong)
        for each in FlowStrategy
        for wrong in (0, -1, 2**31, 1.5)
    ),
    *((FlowStrategy.TAGGED, "group_tag", wrong) for wrong in (None, 2**63, -(2**63) - 1, True)),
    *((each, "group_min_size", wrong) for each in OF_GROUPS for wrong in (-1, 2**31, True)),
    *((each, "receiver_timeout_ns", wrong) for each in OF_GROUPS for wrong in (-1, 2**63)),
]


@pytest.mark.parametrize(("strategy", "name", "wrong"), ILLEGAL)
def test_what_no_parameter_can_say_is_refused(
    strategy: FlowStrategy, name: str, wrong: Any
) -> None:
    given = {"group_tag": 1 if strategy is FlowStrategy.TAGGED else None, name: wrong}
    with pytest.raises(ValueError, match=f"{name}: found {wrong}, expected "):
        FlowSpec(strategy, **given)


def edges(least: int, most: int) -> st.SearchStrategy[int]:
    """Numbers of a range, its ends, and what is just beyond them."""
    ends = [least - 1, least, least + 1, most - 1, most, most + 1]
    return st.one_of(st.sampled_from(ends), st.integers(least, most))


ROUND_NS = st.sampled_from([1, 1_000, 1_000_000, SECOND_NS])
TAGS = edges(-(2**63), 2**63 - 1)
SIZES = edges(0, 2**31 - 1)
TIMEOUTS_NS = st.one_of(
    edges(0, NEVER_NS),
    st.builds(lambda number, ns: number * ns, st.integers(0, 9000), ROUND_NS),
)
MULTIPLES = edges(1, 2**31 - 1)


@given(
    st.sampled_from(FlowStrategy),
    st.one_of(st.none(), TAGS),
    st.one_of(st.just(0), SIZES),
    st.one_of(st.just(5 * SECOND_NS), TIMEOUTS_NS),
    MULTIPLES,
)
def test_whatever_can_be_made_and_named_is_read_again(
    strategy: FlowStrategy, tag: int | None, size: int, timeout_ns: int, multiple: int
) -> None:
    try:
        spec = FlowSpec(strategy, tag, size, timeout_ns, multiple)
    except ValueError:
        return
    assert parse_flow_spec(str(spec)) == spec


def test_what_people_are_shown() -> None:
    assert str(parse_flow_spec("tagged,g:1001/3,t:1500ms")) == "tagged,g:1001/3,t:1500ms,rrwm:4"
    assert str(parse_flow_spec("min")) == "min,g:/0,t:5s,rrwm:4"
    assert str(parse_flow_spec("max,rrwm:2")) == "max,rrwm:2"
    # A comma at the end, times without a unit, the longest one.
    assert str(parse_flow_spec("min,")) == "min,g:/0,t:5s,rrwm:4"
    assert str(parse_flow_spec("min,t:5000000000")) == "min,g:/0,t:5s,rrwm:4"
    assert str(parse_flow_spec("min,t:1500")) == "min,g:/0,t:1500ns,rrwm:4"
    longest = "min,g:/0,t:9223372036854775807ns,rrwm:4"
    assert str(parse_flow_spec("min,t:9223372037s")) == longest


@given(st.text(alphabet="maxintgedr:/,-+0123456789snu w", max_size=30))
def test_any_text_is_taken_or_refused_with_its_place(text: str) -> None:
    try:
        spec = parse_flow_spec(text)
    except ConfigError as error:
        assert "expected" in str(error)
        return
    assert text.split(",", maxsplit=1)[0] == spec.strategy
    assert parse_flow_spec(str(spec)) == spec


PAGE = Path(__file__).parents[2] / "docs" / "howto" / "relay.md"
CHOICE = re.compile(
    r"^\| (`(?!fc)[^`]*`|\(empty\)) \| [^|]+ \| [^|]+ \| ([^|]+) \| [^|]+ \|$", re.MULTILINE
)
CHOICES = CHOICE.findall(PAGE.read_text())


def test_the_page_of_choices_has_some() -> None:
    assert len(CHOICES) == 18


@pytest.mark.parametrize(("shown", "choice"), CHOICES)
def test_the_page_tells_what_is_chosen(shown: str, choice: str) -> None:
    text = "" if shown == "(empty)" else shown.strip("`")
    try:
        found = f"`{parse_flow_spec(text)}`"
    except ConfigError:
        found = "refused"
    assert found == choice


@pytest.mark.parametrize(
    ("text", "at"), [(f"min,rrwm:{'9' * 5000}", 10), (f"min,g:{'1' * 5000}", 7)]
)
def test_a_number_of_any_length_is_refused(text: str, at: int) -> None:
    """Also one that is longer than Python makes numbers of."""
    with pytest.raises(ConfigError, match=f"at character {at}: found '{text[at - 1]}"):
        parse_flow_spec(text)
