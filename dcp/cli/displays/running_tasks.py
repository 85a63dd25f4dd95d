"""The running tasks of a lake: tables of connections and of stages, as plain text."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from dcp.cli.terminal.output import json_text
from dcp.cli.terminal.table import table
from dcp.client.stats import StageStats
from dcp.errors import LakeError
from dcp.lake.config.lake_root import local_root
from dcp.lake.config.settings import Settings
from dcp.lake.config.table_names import CHANGES_TABLE
from dcp.lake.task_board.board_files import BoardFigures, read_board
from dcp.lake.task_board.board_folder import BoardFolder
from dcp.lake.task_board.task_metrics import task_exposition
from dcp.lake.task_board.task_stats import Connection, TaskStats
from dcp.protocol.window_policies import WindowPolicy
from dcp.quantities import bar, count_text, memory_text, share_text, size_text


def looks_at_board(settings: Settings) -> Iterator[BoardFigures]:
    """Read the task board again and again; yield its figures.

    Raises:
        LakeError: there is no lake, as far as this machine can tell.
    """
    board, lake = BoardFolder.of(settings), settings.lake
    while True:
        figures = BoardFigures(datetime.now(UTC), tuple(read_board(board)))
        root = None if figures.tasks or lake.schema else local_root(lake.root)
        if root is not None and not (root / CHANGES_TABLE).exists():
            raise LakeError(
                f"{root}: found no lake there, expected one (lake.root, --lake); a first "
                "`dcplake run` makes it"
            )
        yield figures


def board_shown(figures: BoardFigures, *, metrics: bool, as_json: bool) -> str:
    """Return the figures for Prometheus, as JSON, or as text."""
    if metrics:
        return task_exposition(figures.tasks)
    return json_text(figures.to_json()) if as_json else board_text(figures.tasks)


def board_text(samples: Sequence[TaskStats]) -> str:
    """Return all that is seen of running tasks, as text."""
    if not samples:
        return "no task is running"
    rows = sum(sample.rows for sample in samples)
    rate = sum(sample.bytes_per_second for sample in samples)
    rounds = ", ".join(str(each) for each in sorted({sample.round for sample in samples}))
    tasks = count_text(len(samples), "task")
    head = f"{tasks} of round {rounds}: {rows:,} rows so far, {size_text(rate)}/s"
    head = "\n".join([head, *_memories(samples), *_shares(samples)])
    return "\n\n".join([head, _connections(samples), _stages(samples)])


def _memories(samples: Sequence[TaskStats]) -> list[str]:
    return [
        f"{sample.label}: {memory_text(sample.resident_bytes, sample.bound_bytes)}"
        for sample in samples
    ]


def _shares(samples: Sequence[TaskStats]) -> list[str]:
    """Say how the executors of the tasks share out their windows, where they do."""
    return [
        f"{sample.label}: {sample.windows.policy} gives "
        f"{count_text(sample.windows.connections, 'connection')} of the executor windows of "
        f"{size_text(sample.windows.windows_bytes)} in all"
        for sample in samples
        if sample.windows.policy not in (WindowPolicy.NONE, WindowPolicy.STATIC)
    ]


def _connections(samples: Sequence[TaskStats]) -> str:
    heads = ["task", "node", "buffer", "in use", "full", "rate", "waits for"]
    found = [(sample, each) for sample in samples for each in sample.connections]
    return table(heads, [_connection(sample, each) for sample, each in found])


def _connection(sample: TaskStats, each: Connection) -> Sequence[object]:
    rate = f"{size_text(each.bytes_per_second)}/s"
    if each.window is None:
        return sample.label, each.node, "-", "-", "-", rate, each.waits_for
    size = size_text(each.window.size)
    if each.stream_windows:
        size += f" + {each.stream_windows} x {size_text(each.stream_window_bytes)}"
    return (
        sample.label,
        each.node,
        f"{bar(each.window.in_use, each.window.size)} {size}",
        size_text(each.window.in_use),
        share_text(each.window.full_seconds, sample.seconds),
        rate,
        each.waits_for,
    )


def _stages(samples: Sequence[TaskStats]) -> str:
    heads = ["task", "stage", "at most", "in use", "waited for"]
    rows: list[Sequence[object]] = []
    for sample in samples:
        for node, stage in [
            *((each.node, stage) for each in sample.connections for stage in each.stages),
            *(("", stage) for stage in sample.stages),
        ]:
            rows.append(_stage(sample, f"{stage.name} {node}".strip(), stage))
        stages = {stage.name for each in sample.connections for stage in each.stages}
        stages |= {stage.name for stage in sample.stages}
        # What is freed waits in no stage.
        for bottleneck in sorted(set(sample.bottleneck_seconds) - stages):
            waited = share_text(sample.bottleneck_seconds[bottleneck], sample.seconds)
            rows.append((sample.label, bottleneck, "-", "-", waited))
    return table(heads, rows)


def _stage(sample: TaskStats, name: str, stage: StageStats) -> Sequence[object]:
    def amount(number: int) -> str:
        return size_text(number) if stage.kind == "bytes" else str(number)

    waited = sample.bottleneck_seconds.get(stage.name, 0.0)
    return (
        sample.label,
        name,
        f"{bar(stage.in_use, stage.size)} {amount(stage.size)}",
        amount(stage.in_use),
        share_text(waited, sample.seconds),
    )
