"""``dcplake status``: where the lake stands, and what it waits for.

Where a run is going on that this machine can see, also what each of its connections waits for; and
where the source is a relay, what that one waits for.
"""

from datetime import UTC, datetime
from typing import Annotated

from typer import Option

from dcp.cli.options.lake_options import Config, Lake, Overrides, settings_from
from dcp.cli.terminal.output import say, say_json


def run(
    *,
    config: Config = None,
    lake: Lake = None,
    overrides: Overrides = None,
    json: Annotated[bool, Option("--json", help="the status as one JSON object")] = False,
) -> int:
    """Read and print."""
    from dcp.cli.displays.running_tasks import connection_lines
    from dcp.cli.displays.source_report import ask_source
    from dcp.lake.adapters.opening import opened_lake
    from dcp.lake.monitor.lake_figures import FiguresReader
    from dcp.lake.task_board.board_folder import BoardFolder

    settings = settings_from(config, lake, overrides)
    with opened_lake(settings) as tables, tables.read_once():
        reader = FiguresReader(tables, BoardFolder.of(settings), searches=False)
        figures = reader.read(datetime.now(UTC))
    source = ask_source(settings)
    if json:
        say_json(figures.to_json() | {"source": source.to_json()})
    else:
        say(str(figures))
        if figures.tasks:
            say(f"connections of round {max(task.round for task in figures.tasks)}:")
        for line in connection_lines(figures.tasks):
            say(f"  {line}")
        for line in source.lines():
            say(line)
    return 0
