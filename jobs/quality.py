"""Checks the quality of replica tables: ``spark-submit jobs/quality.py --config FILE``.

Prints what holds and what does not, and appends it to the lake's table ``quality``; ends with 0 if
everything holds (warnings aside), with 8 if not, and with the other codes of
docs/reference/exit-codes.md where it could not look.
"""

import sys
from collections.abc import Sequence
from json import dumps
from pathlib import Path
from typing import Annotated

import typer

from dcp.cli.main import application_of, parsed
from dcp.errors import QualityError
from dcp.lake.adapters.opening import opened_lake
from dcp.lake.config.settings_load import load_settings
from dcp.lake.config.table_names import DOCS_TABLE
from dcp.lake.quality.check import check_replica
from dcp.lake.quality.engine import write_data_docs
from dcp.lake.quality.report import write_results
from dcp.lake.quality.suite import load_suite


def main(argv: Sequence[str] | None = None) -> int:
    """Check the tables asked for and return the exit code."""
    application = application_of("quality", check, __doc__.split(":")[0])
    return parsed(application, sys.argv[1:] if argv is None else argv, "quality.py")


def check(
    *,
    config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="TOML file with the settings")
    ] = None,
    table: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="replica to check (repeatable): docs"),
    ] = None,
    suite: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="a suite of your own instead of the installed one"),
    ] = None,
    whole_table: Annotated[
        bool,
        typer.Option("--whole-table", help="check all rows, not those since the last that passed"),
    ] = False,
    data_docs: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="write a page of Data Docs (HTML) per table there"),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="print one JSON document per table")] = False,
) -> int:
    """Check and print."""
    settings = load_settings(config)
    expected = load_suite(suite)
    reports = []
    with opened_lake(settings) as lake:
        for each in table or [DOCS_TABLE]:
            report = check_replica(lake, each, expected, whole_table=whole_table)
            write_results(lake, report)
            if data_docs is not None:
                write_data_docs(report, data_docs)
            print(dumps(report.to_json()) if json else report, flush=True)
            reports.append(report)
    if failed := [result.expectation for report in reports for result in report.failed]:
        raise QualityError(f"does not hold: {', '.join(failed)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
