"""Checks the quality of replica tables: ``spark-submit jobs/quality.py --config FILE``.

Prints what holds and what does not; ends with 0 if everything holds, with 8 if not, and with the
other codes of docs/operations.md where it could not look.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from dcp.cli.main import ended
from dcp.errors import QualityError
from dcp.lake.config.settings_load import load_settings
from dcp.lake.quality.quality import check_replica
from dcp.lake.quality.quality_suite import load_suite
from dcp.lake.tables.opening import lake_location, spark_of
from dcp.lake.tables.tables import open_lake


def main(argv: Sequence[str] | None = None) -> int:
    """Check the tables asked for and return the exit code."""
    arguments = _parser().parse_args(argv)
    return ended("quality", lambda: _run(arguments))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="quality.py", description=__doc__.split(":")[0])
    parser.add_argument("--config", type=Path, metavar="FILE", help="TOML file with the settings")
    parser.add_argument(
        "--table", action="append", metavar="NAME", help="replica to check (repeatable): docs"
    )
    parser.add_argument(
        "--suite",
        type=Path,
        metavar="FILE",
        help="a suite of your own instead of the installed one",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document per table")
    return parser


def _run(arguments: argparse.Namespace) -> int:
    settings = load_settings(arguments.config)
    suite = load_suite(arguments.suite)
    lake = open_lake(spark_of(settings), lake_location(settings))
    reports = [check_replica(lake, table, suite) for table in arguments.table or ["docs"]]
    for report in reports:
        print(json.dumps(report.to_json()) if arguments.json else report, flush=True)
    if failed := [result.name for report in reports for result in report.failed]:
        raise QualityError(f"does not hold: {', '.join(failed)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
