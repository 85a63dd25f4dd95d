"""``dcplake metrics``: a lake's figures, as Prometheus reads them.

Reads the lake's own tables and starts no Spark where the lake is a folder of this machine, so that
it suits scheduled runs: the textfile collector of Prometheus' node exporter reads what it writes.
"""

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

from typer import Option

from dcp.cli.options.lake_options import Config, Lake, Overrides, settings_from
from dcp.cli.terminal.output import say, write_whole


def run(
    *,
    config: Config = None,
    lake: Lake = None,
    overrides: Overrides = None,
    output: Annotated[
        Path | None,
        Option(metavar="FILE", help="write there, the whole file at once (default: print)"),
    ] = None,
) -> int:
    """Read, and print or write."""
    from dcp.lake.adapters.opening import opened_lake
    from dcp.lake.monitor.lake_figures import FiguresReader
    from dcp.lake.monitor.lake_metrics import lake_exposition
    from dcp.lake.task_board.board_folder import BoardFolder

    settings = settings_from(config, lake, overrides)
    with opened_lake(settings) as tables:
        reader = FiguresReader(tables, BoardFolder.of(settings), searches=True)
        figures = reader.read(datetime.now(UTC))
    text = lake_exposition(figures)
    if output is None:
        say(text.rstrip("\n"))
    else:
        write_whole(output, text)
    return 0
