"""Texts of others: nothing of them moves a cursor or ends a line, and no two names become one."""

import logging
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcp.cli.terminal.logs import OneLineFormatter
from dcp.cli.terminal.output import say
from dcp.cli.terminal.table import table
from dcp.printable import printable, printable_lines, printable_name
from dcp.prometheus import exposition, metrics
from dcp.relay_figures import UpstreamFigures
from dcp.server.model.connection_name import display_name

HOSTILE = "e\x1b[2J\nv\rl\x85\u202e\u2028\0"
SHOWN = r"e\x1b[2J\nv\rl\x85\u202e\u2028\x00"


@given(st.text())
def test_all_of_a_text_is_printable(text: str) -> None:
    assert printable(text).isprintable()
    assert [line for line in printable_lines(text).split("\n") if not line.isprintable()] == []


def test_what_a_person_reads_stays() -> None:
    assert printable("é #gtag=7 … 漢\\") == "é #gtag=7 … 漢\\"
    assert printable(HOSTILE) == SHOWN
    assert printable_lines("ours\nours\x1b") == "ours\nours\\x1b"


NAMES = st.binary() | st.text("ab\\x8\x85\x1b\n0").map(str.encode)


@given(NAMES, NAMES)
def test_no_two_names_become_one(one: bytes, other: bytes) -> None:
    assert printable_name(one).isprintable()
    assert (printable_name(one) == printable_name(other)) is (one == other)


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        (b"lake", "lake"),
        ("é".encode(), "é"),
        (b"a\x1b[2J\n", r"a\x1b[2J\x0a"),
        (rb"a\x1b", r"a\\x1b"),
        (b"\x85", r"\x85"),
        (b"\xc2\x85", r"\xc2\x85"),
        (b"\x7f", r"\x7f"),
    ],
)
def test_names_are_told_byte_by_byte_where_they_must(name: bytes, shown: str) -> None:
    assert display_name(name) == f"eq_dcpq:{shown}"


@given(st.binary(max_size=200))
def test_names_as_long_as_documented_are_told_whole(name: bytes) -> None:
    assert display_name(name) == f"eq_dcpq:{printable_name(name)}"


def test_a_cell_of_a_table_is_in_one_line() -> None:
    rows = table([HOSTILE, "n"], [(HOSTILE, 1), (HOSTILE.encode(), 22)]).split("\n")
    assert [row.split()[0] for row in rows[::2]] == [SHOWN, SHOWN]
    assert len({len(row) for row in rows}) == 1, "widths are those of what is shown"


def test_lines_that_are_said_move_no_cursor(capsys: pytest.CaptureFixture[str]) -> None:
    say("first\nsecond \x1b[2J")
    assert capsys.readouterr().out == "first\nsecond \\x1b[2J\n"


def test_a_record_of_the_log_is_one_line() -> None:
    record = logging.LogRecord("dcp", logging.INFO, "", 0, "consumer %s is stuck", (HOSTILE,), None)
    assert OneLineFormatter("%(message)s").format(record) == f"consumer {SHOWN} is stuck"
    try:
        raise ValueError("\x1b[2J")
    except ValueError:
        record.exc_info = sys.exc_info()
    head, *stack = OneLineFormatter("%(message)s").format(record).split("\n")
    assert (head, stack[-1]) == (f"consumer {SHOWN} is stuck", r"ValueError: \x1b[2J")


def test_a_label_of_a_metric_is_printable_and_escaped_as_prometheus_reads_it() -> None:
    consumer = UpstreamFigures("a:1", is_ready=True, waits_for='a"\\\n\0\r')
    up = metrics({}, "up waits_for[consumer] Is up.")
    _, _, line = exposition((up, [consumer])).splitlines()
    assert line == r'up{consumer="a\"\\\n\\x00\\r"} 1.0'
