"""The live board of a lake: tables of connections and of stages, as plain text."""

from collections.abc import Sequence
from time import time
from typing import Any

from dcp.cli.terminal.quantities import bar, count_text, memory_text, share_text, size_text
from dcp.cli.terminal.table import table
from dcp.client.stats import StageStats
from dcp.errors import LakeError
from dcp.lake.config.lake_root import local_root
from dcp.lake.config.settings import Settings
from dcp.lake.task_monitor.live_board import read_board
from dcp.lake.task_monitor.live_metrics import exposition
from dcp.lake.task_monitor.live_place import LivePlace
from dcp.lake.task_monitor.task_stats import Connection, TaskStats
from dcp.printable import printable


class BoardView:
    """The running tasks of a lake, looked at again and again."""

    def __init__(self, settings: Settings) -> None:
        """Look at nothing yet."""
        self._settings = settings
        self._place = LivePlace.of(settings)
        self._looks: Sequence[TaskStats] = ()

    def refresh(self) -> None:
        """Read the board.

        Raises:
            LakeError: there is no lake, as far as this machine can tell.
        """
        self._looks = read_board(self._place)
        lake = self._settings.lake
        root = None if self._looks or lake.schema else local_root(lake.root)
        if root is not None and not (root / "changes").exists():
            raise LakeError(
                f"{root}: found no lake there, expected one (lake.root, --lake); a first "
                "`dcplake run` makes it"
            )

    def to_json(self) -> dict[str, Any]:
        """Return the last look as a JSON object."""
        return {"at": time(), "tasks": [each.to_json() for each in self._looks]}

    def metrics(self) -> str:
        """Return the last look as Prometheus reads it."""
        return exposition(self._looks)

    def text(self) -> str:
        """Return the last look as text."""
        return board_text(self._looks) if self._looks else "no task is running"

    def close(self) -> None:
        """Nothing is open."""


def connection_lines(looks: Sequence[TaskStats]) -> list[str]:
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


def connections_json(looks: Sequence[TaskStats]) -> list[dict[str, Any]]:
    """Return the connections of all tasks for a machine."""
    return [
        {"task": look.label, "round": look.round, **connection}
        for look in looks
        for connection in look.to_json()["connections"]
    ]


def board_text(looks: Sequence[TaskStats]) -> str:
    """Return all that is seen of running tasks, as text."""
    rows = sum(look.rows for look in looks)
    rate = sum(look.bytes_per_second for look in looks)
    rounds = ", ".join(str(each) for each in sorted({look.round for look in looks}))
    tasks = count_text(len(looks), "task")
    head = f"{tasks} of round {rounds}: {rows:,} rows so far, {size_text(rate)}/s"
    head = "\n".join([head, *_memories(looks), *_shares(looks)])
    return "\n\n".join([head, _connections(looks), _stages(looks)])


def _memories(looks: Sequence[TaskStats]) -> list[str]:
    return [f"{look.label}: {memory_text(look.resident_bytes, look.bound_bytes)}" for look in looks]


def _shares(looks: Sequence[TaskStats]) -> list[str]:
    """Say how the executors of the tasks share out their windows, where they do."""
    return [
        f"{look.label}: {look.windows.policy} gives "
        f"{count_text(look.windows.connections, 'connection')} of the executor windows of "
        f"{size_text(look.windows.windows_bytes)} in all"
        for look in looks
        if look.windows is not None and look.windows.policy not in ("none", "static")
    ]


def _connections(looks: Sequence[TaskStats]) -> str:
    heads = ["task", "node", "window", "in use", "full", "rate", "waits for"]
    found = [(look, each) for look in looks for each in look.connections]
    return table(heads, [_connection(look, each) for look, each in found])


def _connection(look: TaskStats, each: Connection) -> Sequence[object]:
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


def _stages(looks: Sequence[TaskStats]) -> str:
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


def _stage(look: TaskStats, name: str, stage: StageStats) -> Sequence[object]:
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
