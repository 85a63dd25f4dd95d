"""Replicates a bucket into its lake: ``spark-submit jobs/replicate.py --config FILE [--once]``.

The same as ``dcplake run``, for schedulers: one line for each step, and an exit code of
docs/operations.md.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from dcp.errors import ConfigError, DcplakeError
from dcp.lake.applied import AppliedVersion
from dcp.lake.observer import Observer
from dcp.lake.plan import Idle, RoundPlan
from dcp.lake.round import RoundReport
from dcp.lake.run import run
from dcp.lake.settings_load import load_settings


class LinePrinter(Observer):
    """Prints each step as it happens; as JSON lines where a machine reads."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json

    def planned(self, plan: RoundPlan) -> None:
        """Print the plan; machines get what came of it."""
        if not self._as_json:
            print(plan, flush=True)

    def committed(self, report: RoundReport) -> None:
        """Print what the round brought."""
        print(json.dumps(report.to_json()) if self._as_json else report, flush=True)

    def idle(self, idle: Idle) -> None:
        """Print why there is no round."""
        print(json.dumps(idle.to_json()) if self._as_json else idle, flush=True)

    def applied(self, version: AppliedVersion) -> None:
        """Print the new version of a replica table."""
        told = {
            "table": version.table,
            "version": version.version,
            "from_round": version.from_round,
            "to_round": version.to_round,
        }
        print(json.dumps(told) if self._as_json else version, flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Run, and return the exit code."""
    arguments = _parser().parse_args(argv)
    try:
        settings = load_settings(arguments.config, overrides=_overrides(arguments.set))
        run(settings, once=arguments.once, observer=LinePrinter(as_json=arguments.json))
    except DcplakeError as error:
        print(f"dcplake replicate: {error}", file=sys.stderr, flush=True)
        return error.exit_code
    return 0


def _overrides(words: Sequence[str]) -> dict[str, object]:
    overrides: dict[str, object] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals:
            raise ConfigError(f"option --set: found {word!r}, expected section.key=value")
        overrides[name] = value
    return overrides


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="replicate.py", description=__doc__.split(":")[0])
    parser.add_argument("--config", type=Path, metavar="FILE", help="TOML file with the settings")
    parser.add_argument(
        "--once",
        action="store_true",
        help="end when what the cluster held at the start is applied (else: run until stopped)",
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="SECTION.KEY=VALUE", help="one setting"
    )
    parser.add_argument("--json", action="store_true", help="print JSON lines")
    return parser


if __name__ == "__main__":
    sys.exit(main())
