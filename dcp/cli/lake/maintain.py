"""``dcplake maintain``: keep the lake small, and every rollback within the horizon possible."""

from typing import Annotated, Final

from typer import BadParameter, Option

from dcp.cli.options.lake_options import Config, Lake, Overrides, settings_from
from dcp.cli.terminal.output import say, say_json
from dcp.lake.maintain.steps import STEPS, maintain
from dcp.suggestions import did_you_mean

_MOST_HOURS: Final = 876_000.0
"""A hundred years; infinity is none."""


def _step(text: str) -> str:
    if text not in STEPS:
        raise BadParameter(
            f"found {text!r}{did_you_mean(text, STEPS)}, expected one of {', '.join(STEPS)}"
        )
    return text


def run(
    *,
    config: Config = None,
    lake: Lake = None,
    overrides: Overrides = None,
    step: Annotated[
        list[str] | None,
        Option(
            parser=_step,
            metavar="|".join(STEPS),
            help="do this step only (repeatable); without it, all of them, in this order",
        ),
    ] = None,
    retain_hours: Annotated[
        float | None,
        Option(
            min=0,
            max=_MOST_HOURS,
            metavar="HOURS",
            help="keep old versions and changes longer than lake.horizon_hours; less is refused",
        ),
    ] = None,
    dry_run: Annotated[
        bool, Option("--dry-run", help="print the plan, and change nothing")
    ] = False,
    json: Annotated[bool, Option("--json", help="one JSON object per step and table")] = False,
) -> int:
    """Maintain, and tell of each step."""
    maintain(
        settings_from(config, lake, overrides),
        steps=step,
        retain_hours=retain_hours,
        dry_run=dry_run,
        told=lambda report: say_json(report.to_json()) if json else say(str(report)),
    )
    return 0
