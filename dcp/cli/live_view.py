"""How the live board looks to a person: tables of connections and of stages, as plain text."""

from collections.abc import Sequence
from typing import Any, Final

from dcp.cli.output import table
from dcp.client.looks import StageLook
from dcp.lake.monitor.live_look import Connection, TaskLook
from dcp.printable import printable

_BAR_WIDTH: Final = 10
_MIB: Final = 1024 * 1024
_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB")


def size_text(size: float) -> str:
    """Return a number of bytes in the unit that suits it."""
    for unit in _UNITS[:-1]:
        if abs(size) < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} {_UNITS[-1]}"


def count_text(count: int, what: str) -> str:
    """Return a number of things: ``1 task``, ``2 tasks``."""
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def bar(part: float, whole: float) -> str:
    """Return how full something is; more than all is marked."""
    share = part / whole if whole > 0 else 0.0
    filled = min(_BAR_WIDTH, round(share * _BAR_WIDTH))
    return f"[{'#' * filled}{'.' * (_BAR_WIDTH - filled)}{'+' if share > 1 else ']'}"


def share_text(seconds: float, of_seconds: float) -> str:
    """Return a part of some time in percent."""
    return f"{min(1.0, seconds / of_seconds):.0%}" if of_seconds > 0 else "0%"


def memory_text(resident_bytes: int | None, bound_bytes: int) -> str:
    """Return what a process has, and may have at most: ``RSS 312 of at most 540 MiB``."""
    has = "not known" if resident_bytes is None else f"{resident_bytes / _MIB:,.0f}"
    most = f" of at most {bound_bytes / _MIB:,.0f}" if bound_bytes else ""
    unit = " MiB" if bound_bytes or resident_bytes is not None else ""
    return f"RSS {has}{most}{unit}"


def connection_lines(looks: Sequence[TaskLook]) -> list[str]:
    """Return one line for each task, and for each of its connections, for ``dcplake status``."""
    lines = []
    for look in looks:
        lines.append(f"{look.label}: {memory_text(look.resident_bytes, look.bound_bytes)}")
        for each in look.connections:
            window = ""
            if each.window is not None:
                full = share_text(each.window.full_seconds, look.seconds)
                window = (
                    f"; {size_text(each.window.in_use)} of {size_text(each.window.size)} in use, "
                    f"full {full} of the time"
                )
            lines.append(f"{look.label} {each.node}: waits for {each.waits_for}{window}")
    return [printable(line) for line in lines]


def connections_json(looks: Sequence[TaskLook]) -> list[dict[str, Any]]:
    """Return the connections of all tasks for a machine."""
    return [
        {"task": look.label, "round": look.round, **connection}
        for look in looks
        for connection in look.to_json()["connections"]
    ]


def board_text(looks: Sequence[TaskLook]) -> str:
    """Return all that is seen of running tasks, as text."""
    rows = sum(look.rows for look in looks)
    rate = sum(look.bytes_per_second for look in looks)
    rounds = ", ".join(str(each) for each in sorted({look.round for look in looks}))
    tasks = count_text(len(looks), "task")
    head = f"{tasks} of round {rounds}: {rows:,} rows so far, {size_text(rate)}/s"
    head = "\n".join([head, *_memories(looks), *_shares(looks)])
    return "\n\n".join([head, _connections(looks), _stages(looks)])


def _memories(looks: Sequence[TaskLook]) -> list[str]:
    return [f"{look.label}: {memory_text(look.resident_bytes, look.bound_bytes)}" for look in looks]


def _shares(looks: Sequence[TaskLook]) -> list[str]:
    """Say how the executors of the tasks share out their windows, where they do."""
    return [
        f"{look.label}: {look.windows.policy} gives "
        f"{count_text(look.windows.connections, 'connection')} of the executor windows of "
        f"{size_text(look.windows.windows_bytes)} in all"
        for look in looks
        if look.windows is not None and look.windows.policy not in ("none", "static")
    ]


def _connections(looks: Sequence[TaskLook]) -> str:
    heads = ["task", "node", "window", "in use", "full", "rate", "waits for"]
    found = [(look, each) for look in looks for each in look.connections]
    return table(heads, [_connection(look, each) for look, each in found])


def _connection(look: TaskLook, each: Connection) -> Sequence[object]:
    rate = f"{size_text(each.bytes_per_second)}/s"
    if each.window is None:
        return look.label, each.node, "-", "-", "-", rate, each.waits_for
    size = size_text(each.window.size)
    if each.stream_windows:
        size += f" + {each.stream_windows} x {size_text(each.stream_window_bytes)}"
    return (
        look.label,
        each.node,
        f"{bar(each.window.in_use, each.window.size)} {size}",
        size_text(each.window.in_use),
        share_text(each.window.full_seconds, look.seconds),
        rate,
        each.waits_for,
    )


def _stages(looks: Sequence[TaskLook]) -> str:
    heads = ["task", "stage", "at most", "in use", "windows waited"]
    rows: list[Sequence[object]] = []
    for look in looks:
        for node, stage in [
            *((each.node, stage) for each in look.connections for stage in each.stages),
            *(("", stage) for stage in look.stages),
        ]:
            rows.append(_stage(look, f"{stage.name} {node}".strip(), stage))
        stages = {stage.name for each in look.connections for stage in each.stages}
        stages |= {stage.name for stage in look.stages}
        for gate in sorted(set(look.gate_seconds) - stages):  # what is freed waits in no stage
            waited = share_text(look.gate_seconds[gate], look.seconds)
            rows.append((look.label, gate, "-", "-", waited))
    return table(heads, rows)


def _stage(look: TaskLook, name: str, stage: StageLook) -> Sequence[object]:
    def amount(number: int) -> str:
        return size_text(number) if stage.kind == "bytes" else str(number)

    waited = look.gate_seconds.get(stage.name, 0.0)
    return (
        look.label,
        name,
        f"{bar(stage.in_use, stage.size)} {amount(stage.size)}",
        amount(stage.in_use),
        share_text(waited, look.seconds),
    )
