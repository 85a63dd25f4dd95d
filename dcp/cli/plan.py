"""``dcplake plan``: what the next round would do, without doing it."""

import argparse

from dcp.cli.options import add_settings_options, settings_from
from dcp.cli.output import say, say_json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_settings_options(parser)
    parser.add_argument("--json", action="store_true", help="the plan as one JSON object")


def run(arguments: argparse.Namespace) -> int:
    """Plan and print."""
    from dcp.lake.run.preview import preview

    plan = preview(settings_from(arguments))
    if arguments.json:
        say_json(plan.to_json())
    else:
        say(str(plan))
    return 0
