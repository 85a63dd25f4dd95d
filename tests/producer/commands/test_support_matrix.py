"""The matrix of docs/reference/protocol.md against the code, and against a running producer.

A table of the matrix has the columns name, state, module, tests, note; its header's first cell says
what it lists (``KINDS``). What is marked *no* is asked for over the wire.
"""

import ast
import re
from collections.abc import Callable, Iterator
from enum import IntEnum, IntFlag
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from dcp.producer.cluster import ProducerCluster
from dcp.server.commands.controls import CONTROLS
from dcp.server.commands.dcp_commands import wrong_way
from dcp.server.commands.setup_commands import GRANTED, adjust_time
from dcp.wire import messages as m
from dcp.wire.codec import encode
from dcp.wire.frame import Frame
from dcp.wire.frame_info import FrameInfo, RequestInfo, ResponseInfo, encode_frame_infos
from dcp.wire.vocabulary import (
    Datatype,
    EndReason,
    HelloFeature,
    Magic,
    Opcode,
    OpenFlag,
    OsoFlag,
    ServerOpcode,
    SnapshotFlag,
    Status,
    StreamFlag,
    SystemEventKind,
    VbucketState,
)
from tests.producer.all_commands import COMMANDS
from tests.producer.raw_client import FEATURES, RawClient

Connect = Callable[..., RawClient]
ROOT = Path(__file__).resolve().parents[3]
MODULES = [*(ROOT / "dcp/server").rglob("*.py"), *(ROOT / "dcp/producer").rglob("*.py")]
KINDS: dict[str, type[IntEnum | IntFlag]] = {
    "magic": Magic,
    "request framing extra": RequestInfo,
    "response framing extra": ResponseInfo,
    "datatype": Datatype,
    "feature": HelloFeature,
    "command": Opcode,
    "message of a server": ServerOpcode,
    "message": Opcode,
    "open flag": OpenFlag,
    "stream flag": StreamFlag,
    "marker flag": SnapshotFlag,
    "out-of-order snapshot": OsoFlag,
    "system event": SystemEventKind,
    "reason": EndReason,
    "state of a vbucket": VbucketState,
    "status": Status,
}
SAID = {
    "BARRIER": r"b\"\\x00\" \+ MAJORITY",
    "DURABILITY": r"durability\(",
    "STREAM_ID": "stream_id",
    "SASL_STEP": r"\.scram\(",
    "AUTH_CONTINUE": r"\.scram\(",
    "v1": r"m\.SnapshotMarker\(0, 5, FIRST_MEMORY\)",
    "v2.0": "consumer_name",
    "v2.2": r"max_marker_version=\"2\.2\"",
}
"""What a test says instead of the name, where it has the bytes or another's words for it."""
OF_CLIENTS = {"error_map.py"}
"""Modules that name statuses which they do not send."""
UNSAID = {"DISCONNECTED": {"dcp_connection.py"}}
"""Where a reason is given to a stream that has nobody left to tell."""
FRAMINGS = {
    RequestInfo.BARRIER: b"",
    RequestInfo.DURABILITY: b"\x01",
    RequestInfo.IMPERSONATED_USER: b"someone",
    RequestInfo.PRESERVE_TTL: b"",
    RequestInfo.EXTRA_PRIVILEGE: b"Read",
    RequestInfo.TOKEN_AUTH: b"\x00\x01",
}
"""Something to say in each framing extra that has no stream."""


class Row(NamedTuple):
    """A line of the matrix; ``answer`` is what a client gets of what there is not."""

    kind: str
    name: str
    number: int | None
    state: str
    answer: str
    modules: tuple[str, ...]
    tests: tuple[str, ...]
    note: str


def _rows() -> list[Row]:
    text = (ROOT / "docs" / "reference" / "protocol.md").read_text("utf-8")
    _, _, matrix = text.partition("\n## The embedded producer")
    rows: list[Row] = []
    kind = ""
    for line in matrix.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if not line.startswith("|"):
            kind = ""
        elif cells[1:4] == ["state", "module", "tests"]:
            kind = cells[0]
        elif kind and set(cells[0]) != {"-"}:
            rows.append(_row(kind, *cells))
    return rows


def _row(kind: str, what: str, state: str, module: str, tests: str, note: str) -> Row:
    name, _, number = what.partition(" ")
    state, _, answer = state.partition(": ")
    return Row(
        kind,
        name.strip("`"),
        int(number, 0) if number else None,
        state,
        answer,
        tuple(re.findall(r"`([^`]+)`", module)),
        tuple(re.findall(r"`([^`]+)`", tests)),
        note,
    )


ROWS = _rows()
REFUSED = [row for row in ROWS if row.state == "no"]


def _id(row: Row) -> str:
    return f"{row.kind} {row.name}"


def _of(*kinds: str) -> list[Row]:
    return [row for row in ROWS if row.kind in kinds]


def _not(*kinds: str) -> list[Row]:
    return [row for row in REFUSED if row.kind in kinds]


def test_kinds_are_known() -> None:
    assert {row.kind for row in ROWS} == {*KINDS, "control", "marker version"}


@pytest.mark.parametrize("vocabulary", sorted(set(KINDS.values()), key=str))
def test_every_name_of_the_vocabulary_has_its_line(vocabulary: type[IntEnum | IntFlag]) -> None:
    """Lines beyond it are of what is refused: retired, or not worth a name."""
    rows = [row for row in ROWS if KINDS.get(row.kind) is vocabulary]
    listed = [(row.name, row.number) for row in rows]
    assert len(set(listed)) == len(listed)
    named = {(name, int(member)) for name, member in vocabulary.__members__.items()}
    assert named <= set(listed)
    beyond = [row for row in rows if (row.name, row.number) not in named]
    assert {row.state for row in beyond} <= {"no"}


@pytest.mark.parametrize("row", ROWS, ids=_id)
def test_a_line_is_whole(row: Row) -> None:
    assert row.state in ("done", "partial", "no")
    if row.state == "no":
        assert (bool(row.answer), row.modules, row.tests) == (True, (), ())
        return
    assert row.modules
    assert row.tests
    assert row.note or row.state == "done"
    for module in row.modules:
        assert len([each for each in MODULES if each.match(module)]) == 1


@cache
def _parts(file: str) -> dict[str, str]:
    """Return the top-level definitions of a test module by name, each with its decorators."""
    (path,) = (ROOT / "tests" / "producer").rglob(file)
    source = path.read_text("utf-8")
    lines = source.splitlines()
    found: dict[str, str] = {}
    for node in ast.parse(source).body:
        first = node.lineno
        names: list[str] = []
        match node:
            case ast.FunctionDef() | ast.ClassDef():
                first = min([first, *(each.lineno for each in node.decorator_list)])
                names = [node.name]
            case ast.Assign():
                targets = [each for target in node.targets for each in ast.walk(target)]
                names = [each.id for each in targets if isinstance(each, ast.Name)]
            case ast.AnnAssign(target=ast.Name(id=name)):
                names = [name]
            case ast.ImportFrom(module=str(module)) if module.startswith("tests.producer."):
                names = [each.name for each in node.names]
        found |= dict.fromkeys(names, "\n".join(lines[first - 1 : node.end_lineno]))
    return found


def _said(file: str, test: str) -> Iterator[str]:
    """A test, and what it uses of its module, and of functions and constants of others."""
    seen: set[tuple[str, str]] = set()
    left = [(file, test)]
    while left:
        at = left.pop()
        parts = _parts(at[0])
        if at in seen or at[1] not in parts:
            continue
        seen.add(at)
        text = parts[at[1]]
        imported = re.match(r"from tests\.producer\.(\w+) import", text)
        if imported is not None:
            if not at[1].istitle() and at[1] != "RawClient":  # it says everything
                left.append((f"{imported[1]}.py", at[1]))
            continue
        yield text
        left += [(at[0], name) for name in re.findall(r"\w+", text)]


WORKS = [row for row in ROWS if row.state != "no"]


@pytest.mark.parametrize("row", WORKS, ids=_id)
def test_the_tests_of_a_line_are_of_it(row: Row) -> None:
    """They are there, run everywhere, and name what the line is about, or the class of its body."""
    said = ""
    for test in row.tests:
        file, _, name = test.partition("::")
        parts = _parts(file)
        names = [name] if name else [each for each in parts if each.startswith("test_")]
        assert names
        for each in names:
            assert each.startswith("test_")
            assert each in parts, f"{file} has no {each}"
        assert any("mark.skip" not in parts[each] for each in names)
        (path,) = (ROOT / "tests" / "producer").rglob(file)
        whole = path.read_text("utf-8")
        said += "\n".join([*_said(file, name), ""]) if name else whole
    body = "".join(word.title() for word in row.name.removeprefix("DCP_").split("_"))
    assert re.search(rf"\b{re.escape(row.name)}\b|\bm\.{body}\b|{SAID.get(row.name, '(?!)')}", said)


def test_what_has_a_handler_is_done_and_nothing_else() -> None:
    rows = {row.number: row for row in _of("command", "message")}
    refusals = {wrong_way, adjust_time}
    answered = {opcode for opcode, c in COMMANDS.items() if c.handler not in refusals}
    sent = {opcode for opcode, c in COMMANDS.items() if c.handler is wrong_way}
    noop = {int(Opcode.DCP_NOOP)}  # the session's own
    works = {number for number, row in rows.items() if row.state != "no"}
    assert answered | noop <= works
    assert works <= answered | noop | sent


def test_controls_are_those_of_the_table() -> None:
    rows = {row.name.encode(): row for row in _of("control")}
    assert CONTROLS.keys() <= rows.keys()
    assert all(row.state == "no" for name, row in rows.items() if name not in CONTROLS)


def test_features_are_granted_that_are_there() -> None:
    works = {row.number for row in _of("feature") if row.state != "no"}
    assert works == {int(feature) for feature in GRANTED}


def _sources() -> dict[str, str]:
    return {path.name: path.read_text("utf-8") for path in MODULES if path.name not in OF_CLIENTS}


@pytest.mark.parametrize("row", _of("status", "reason", "marker flag"), ids=_id)
def test_what_is_sent_is_named_by_its_module(row: Row) -> None:
    vocabulary = KINDS[row.kind].__name__
    name = re.compile(rf"\b{vocabulary}\.{row.name}\b")
    naming = {module for module, source in _sources().items() if name.search(source)}
    if row.state == "no":
        assert (row.answer, naming - UNSAID.get(row.name, set())) == ("never sent", set())
    else:
        assert set(row.modules) <= naming


# --- what is not there, asked for


@pytest.mark.parametrize("row", _not("feature"), ids=_id)
def test_other_features_are_not_granted(
    cluster: ProducerCluster, connect: Connect, row: Row
) -> None:
    assert row.answer == "not granted"
    told = connect(cluster).ok(m.Hello(b"probe", (row.number or 0, 0x12)), Opcode.HELLO)
    assert told == m.HelloAnswer((0x12,))


@pytest.mark.parametrize("row", _not("command", "message"), ids=_id)
def test_other_commands(cluster: ProducerCluster, connect: Connect, row: Row) -> None:
    client = connect(cluster).log_in().open_dcp()
    extras = b"\0" * {"DCP_ADD_STREAM": 4, "ADJUST_TIME": 12}.get(row.name, 0)
    client.send(Frame(Magic.REQUEST, row.number or 0, extras=extras))
    if row.answer == "closed":
        assert client.is_closed()
    else:
        assert client.answer().status == Status[row.answer]


@pytest.mark.parametrize("row", _not("open flag"), ids=_id)
def test_other_open_flags(cluster: ProducerCluster, connect: Connect, row: Row) -> None:
    flags = int(OpenFlag.PRODUCER) | (row.number or 0)
    answer = connect(cluster).log_in().call(m.DcpOpen(b"probe", flags), Opcode.DCP_OPEN)
    assert answer.status == Status[row.answer]


@pytest.mark.parametrize("row", _not("stream flag"), ids=_id)
def test_other_stream_flags(cluster: ProducerCluster, connect: Connect, row: Row) -> None:
    dcp = connect(cluster).log_in().open_dcp()
    assert dcp.request_stream(0, flags=row.number or 0).status == Status[row.answer]


@pytest.mark.parametrize("row", _not("control"), ids=_id)
def test_other_controls(cluster: ProducerCluster, connect: Connect, row: Row) -> None:
    dcp = connect(cluster).log_in().open_dcp()
    answer = dcp.call(m.DcpControl(row.name.encode(), b"true"), Opcode.DCP_CONTROL)
    assert answer.status == Status[row.answer]


@pytest.mark.parametrize("row", _not("request framing extra"), ids=_id)
def test_other_framing_extras(cluster: ProducerCluster, connect: Connect, row: Row) -> None:
    infos = encode_frame_infos((FrameInfo(row.number or 0, FRAMINGS[RequestInfo[row.name]]),))
    client = connect(cluster).log_in(tuple(set(HelloFeature) & GRANTED | set(FEATURES)))
    client.send(
        encode(m.Store(b"\0k", b"1"), Opcode.SET, magic=Magic.ALT_REQUEST, framing_extras=infos)
    )
    if row.answer == "closed":
        assert client.is_closed()
    else:
        assert client.answer().status == Status[row.answer]
