"""``dcplake metrics``: a lake's figures, as Prometheus reads them.

Reads the lake's own tables and starts no Spark where the lake is a folder of this machine, so that
it suits scheduled runs: the textfile collector of Prometheus' node exporter reads what it writes.
"""

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
    from dcp.lake.monitor.figures_reader import read_figures

    figures = read_figures(settings_from(config, lake, overrides), searches=True)
    text = figures.exposition()
    if output is None:
        say(text.rstrip("\n"))
    else:
        write_whole(output, text)
    return 0
