"""``dcplake run``: replicate a bucket, once or on and on."""

import argparse

from dcp.cli.options import add_settings_options, settings_from
from dcp.cli.run_output import JsonObserver, observer_for_people


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_settings_options(parser)
    parser.add_argument(
        "--once",
        action="store_true",
        help="end when what the cluster holds now is applied; without it, go on until stopped",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object per step")


def run(arguments: argparse.Namespace) -> int:
    """Replicate."""
    from dcp.lake.run.run import run as replicate

    observer = JsonObserver() if arguments.json else observer_for_people()
    replicate(settings_from(arguments), once=arguments.once, observer=observer)
    return 0
