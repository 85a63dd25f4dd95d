"""``dcplake maintain``: keep the lake small, and every rollback within the horizon possible."""

import argparse
import math

from dcp.cli.options import add_settings_options, settings_from
from dcp.cli.output import say, say_json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    from dcp.lake.maintain.maintain import STEPS

    add_settings_options(parser)
    parser.add_argument(
        "--step",
        action="append",
        choices=tuple(STEPS),
        help="do this step only (repeatable); without it, all of them, in this order",
    )
    parser.add_argument(
        "--retain-hours",
        type=_hours,
        metavar="HOURS",
        help="keep old versions and changes longer than lake.horizon_hours; less is refused",
    )
    parser.add_argument("--dry-run", action="store_true", help="say what would be done, do nothing")
    parser.add_argument("--json", action="store_true", help="one JSON object per step and table")


def run(arguments: argparse.Namespace) -> int:
    """Maintain, and tell of each step."""
    from dcp.lake.maintain.maintain import maintain

    maintain(
        settings_from(arguments),
        steps=arguments.step,
        retain_hours=arguments.retain_hours,
        dry_run=arguments.dry_run,
        told=lambda report: say_json(report.to_json()) if arguments.json else say(str(report)),
    )
    return 0


def _hours(text: str) -> float:
    try:
        hours = float(text)
    except ValueError:
        hours = math.nan
    if not 0 <= hours < math.inf:
        raise argparse.ArgumentTypeError(f"found {text!r}, expected a number of hours, 0 or more")
    return hours
