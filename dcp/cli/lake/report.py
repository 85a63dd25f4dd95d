"""``dcplake report``: the page of a lake as a file, which needs no run and no network."""

from pathlib import Path
from typing import Annotated

from typer import Option

from dcp.cli.options.lake_options import Config, Lake, Overrides, settings_from
from dcp.cli.terminal.output import say_json, write_whole


def run(
    *,
    config: Config = None,
    lake: Lake = None,
    overrides: Overrides = None,
    html: Annotated[
        Path | None,
        Option(metavar="FILE", help="write the page there (default: print its figures as JSON)"),
    ] = None,
) -> int:
    """Read the lake, and write or print."""
    from dcp.lake.monitor.figures_reader import read_figures
    from dcp.lake.monitor.page import page_html

    told = read_figures(settings_from(config, lake, overrides), searches=True).to_json()
    if html is None:
        say_json(told)
    else:
        write_whole(html, page_html(told))
    return 0
