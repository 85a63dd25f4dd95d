"""``dcplake status``: where the lake stands, and what it waits for."""

import argparse

from dcp.cli.options import add_settings_options, settings_from
from dcp.cli.output import say, say_json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_settings_options(parser)
    parser.add_argument("--json", action="store_true", help="the status as one JSON object")


def run(arguments: argparse.Namespace) -> int:
    """Read and print."""
    from dcp.lake.run import lake_location, session
    from dcp.lake.status import lake_status
    from dcp.lake.tables import open_lake

    settings = settings_from(arguments)
    status = lake_status(open_lake(session(settings), lake_location(settings)))
    if arguments.json:
        say_json(status.to_json())
    else:
        say(str(status))
    return 0
